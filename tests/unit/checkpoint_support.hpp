// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "unit/io_support.hpp"

namespace gated_attention::test {

using Shapes = std::map<std::string, std::vector<Index>>;

inline const std::filesystem::path checkpoints =
    std::filesystem::path(GATED_ATTENTION_TEST_DATA) / "checkpoints";

/// A checkpoint directory that a test spoils: config.json with a merge patch over the one it began
/// with, and one file.
class CheckpointDirectory {
 public:
  CheckpointDirectory(std::string config, const Shapes& shapes) : config_(std::move(config)) {
    set_tensors(shapes);
    patch("{}");
  }
  const std::filesystem::path& path() const { return directory_.path(); }
  const ScratchDirectory& directory() const { return directory_; }

  /// F32 tensors, all zero.
  void set_tensors(const Shapes& shapes) {
    directory_.write("model.safetensors", zeros_file(shapes));
  }

  /// F32 tensors; element i of each is i.
  void number_tensors(const Shapes& shapes) {
    Bytes bytes = zeros_file(shapes);
    std::size_t count = 0;
    for (const auto& [name, shape] : shapes) count += elements(shape);
    std::byte* at = bytes.data() + bytes.size() - count * sizeof(float);
    for (const auto& [name, shape] : shapes)
      for (std::size_t i = 0; i < elements(shape); ++i, at += sizeof(float)) {
        const auto value = static_cast<float>(i);
        std::memcpy(at, &value, sizeof(float));
      }
    directory_.write("model.safetensors", bytes);
  }

  void patch(const std::string& text) {
    nlohmann::json config = nlohmann::json::parse(config_);
    config.merge_patch(nlohmann::json::parse(text));
    directory_.write("config.json", config.dump());
  }

 private:
  static std::size_t elements(const std::vector<Index>& shape) {
    Index count = 1;
    for (const Index extent : shape) count *= extent;
    return static_cast<std::size_t>(count);
  }

  std::string config_;
  ScratchDirectory directory_;
};

/// A merge patch, and what an error then says.
struct Patch {
  const char* patch;
  std::vector<std::string> message;
};

}  // namespace gated_attention::test
