// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/io/json.hpp"
#include "gated_attention/io/mapped_file.hpp"
#include "gated_attention/io/safetensors.hpp"

namespace gated_attention {
namespace detail {

/// The JSON object a file holds, or a FileError that names the file.
inline nlohmann::json read_json_object(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  nlohmann::json document = parse_json(text, path.string());
  if (!document.is_object())
    raise<FileError>(path.string(), ": is ", shown(document), ", an object is expected");
  return document;
}

inline bool is_present(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace detail

/// The tensors of a directory as one set: those of `model.safetensors`, or else of the shards that
/// `model.safetensors.index.json` lists ("weight_map": tensor → file).
///
/// A shard is named by a plain file name: an index that points out of the directory is refused.
/// Every listed tensor must lie in the shard the index says, and no tensor in two shards; one that
/// the index does not list is taken as the shard has it. Movable; immutable, so safe to share
/// between threads.
class TensorFiles {
 public:
  explicit TensorFiles(const std::filesystem::path& directory) : directory_(directory.string()) {
    const std::filesystem::path single = directory / "model.safetensors";
    const std::filesystem::path index = directory / "model.safetensors.index.json";
    if (detail::is_present(single))
      add(Safetensors::open(single));
    else if (detail::is_present(index))
      open_shards(directory, index);
    else
      detail::raise<FileError>(directory.string(),
                               ": has neither model.safetensors nor model.safetensors.index.json");
  }

  /// Every tensor's name, ascending.
  std::vector<std::string_view> names() const {
    std::vector<std::string_view> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }

  bool contains(std::string_view name) const { return tensors_.count(name) != 0; }

  /// The tensor, or a FileError that names it and the directory.
  TensorView tensor(std::string_view name) const {
    const auto entry = tensors_.find(name);
    if (entry == tensors_.end())
      detail::raise<FileError>(directory_, ": no file has a tensor ", detail::in_quotes(name));
    return entry->second;
  }

  /// The open files, in the order of their names.
  const std::vector<Safetensors>& files() const { return files_; }

 private:
  void add(Safetensors file) {
    for (const std::string_view name : file.names()) {
      const auto [entry, is_new] = tensors_.emplace(name, file.tensor(name));
      if (!is_new)
        detail::raise<FileError>(file.file(), ": tensor ", detail::in_quotes(name), " lies in ",
                                 entry->second.file, " too");
    }
    files_.push_back(std::move(file));
  }

  void open_shards(const std::filesystem::path& directory, const std::filesystem::path& index) {
    const nlohmann::json document = detail::read_json_object(index);
    const JsonObject map = JsonObject(document, index.string()).object("weight_map");
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto& entry : *map.json().get_ptr<const nlohmann::json::object_t*>())
      shards[shard_name(index, entry.first, entry.second)].push_back(entry.first);
    for (const auto& [shard, listed] : shards) {
      if (!detail::is_present(directory / shard))
        detail::raise<FileError>(index.string(), ": the shard ", detail::in_quotes(shard),
                                 " does not exist; tensor ", detail::in_quotes(listed.front()),
                                 " should lie in it");
      Safetensors file = Safetensors::open(directory / shard);
      for (const std::string& name : listed)
        if (!file.contains(name))
          detail::raise<FileError>(index.string(), ": tensor ", detail::in_quotes(name),
                                   " is not in the shard ", detail::in_quotes(shard));
      add(std::move(file));
    }
  }

  /// The file a weight_map entry names, if it is the plain name of a file in the directory.
  static std::string shard_name(const std::filesystem::path& index, std::string_view tensor,
                                const nlohmann::json& value) {
    const auto* const shard = value.get_ptr<const std::string*>();
    if (shard == nullptr)
      detail::raise<FileError>(index.string(), ": weight_map: ", detail::in_quotes(tensor), " is ",
                               detail::shown(value), ", a file name is expected");
    const bool is_plain = !shard->empty() && *shard != "." && *shard != ".." &&
                          shard->find_first_of(std::string_view("/\\:\0", 4)) == shard->npos;
    if (!is_plain)
      detail::raise<FileError>(index.string(), ": the shard ", detail::in_quotes(*shard),
                               " is not the name of a file in the directory of the index");
    return *shard;
  }

  std::string directory_;
  std::vector<Safetensors> files_;
  std::map<std::string_view, TensorView, std::less<>> tensors_;  ///< names lie in files_
};

}  // namespace gated_attention
