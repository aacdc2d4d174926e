// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/core/view.hpp"
#include "gated_attention/io/json.hpp"
#include "gated_attention/io/packing.hpp"
#include "gated_attention/io/safetensors.hpp"
#include "gated_attention/io/tensor_files.hpp"

namespace gated_attention {
namespace detail {

/// A tensor's name as [prefix] "layers." N "." module "." leaf; the views look into the name.
struct LayerTensorName {
  std::string_view prefix;  ///< empty, or ends with '.'
  Index layer = 0;
  std::string_view leaf;  ///< "q_proj.weight"
};

/// The number that `text` starts with, spelled as a program would: digits, no leading zero.
inline std::optional<std::pair<Index, std::string_view>> split_number(std::string_view text) {
  Index number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const bool is_spelled = error == std::errc() && text.front() != '-' &&
                          (text.front() != '0' || rest == text.data() + 1);
  if (!is_spelled) return std::nullopt;
  return std::pair(number, text.substr(static_cast<std::size_t>(rest - text.data())));
}

/// The name's parts, if it is that of a tensor of a layer's `module` ("self_attn").
inline std::optional<LayerTensorName> parse_layer_tensor(std::string_view name,
                                                         std::string_view module) {
  constexpr std::string_view layers = "layers.";
  for (std::size_t at = name.find(layers); at != name.npos; at = name.find(layers, at + 1)) {
    if (at != 0 && name[at - 1] != '.') continue;
    const auto number = split_number(name.substr(at + layers.size()));
    if (!number) continue;
    std::string_view rest = number->second;
    if (!rest.starts_with('.') || !rest.substr(1).starts_with(module)) continue;
    rest.remove_prefix(1 + module.size());
    if (rest.size() < 2 || rest.front() != '.') continue;
    return LayerTensorName{name.substr(0, at), number->first, rest.substr(1)};
  }
  return std::nullopt;
}

inline std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : ", ") + printable(word);
  return line;
}

inline std::string joined(const std::vector<Index>& numbers) {
  std::string line;
  for (const Index number : numbers) line += (line.empty() ? "" : ", ") + std::to_string(number);
  return line;
}

}  // namespace detail

/// A model directory in the Hugging Face layout: config.json and model*.safetensors with their
/// index.
///
/// Knows names and numbers, not layers: what a model type means is said under model/. Errors are
/// FileErrors that name the file or directory, and what was looked for. Movable; immutable, so safe
/// to share between threads.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory)
      : directory_(checked_directory(directory)),
        config_(
            std::make_unique<nlohmann::json>(detail::read_json_object(directory / "config.json"))),
        numbers_(*config_, (directory / "config.json").string()),
        model_type_(numbers_.text("model_type")),
        tensors_(directory) {}

  const std::filesystem::path& directory() const { return directory_; }

  /// The whole of config.json.
  const nlohmann::json& config() const { return *config_; }

  /// config.json, read by key with errors that name file, key and what is expected.
  const JsonObject& numbers() const { return numbers_; }

  const std::string& model_type() const { return model_type_; }

  /// A FileError that names the model type and the known ones, unless it is one of them.
  void check_model_type(std::initializer_list<std::string_view> known) const {
    if (std::find(known.begin(), known.end(), model_type_) == known.end())
      detail::raise<FileError>(
          "checkpoint ", directory_.string(), ": model_type ", detail::in_quotes(model_type_),
          " is not known; known: ",
          detail::joined(std::vector<std::string>(known.begin(), known.end())));
  }

  const TensorFiles& tensors() const { return tensors_; }

  /// Decoder layers, `num_hidden_layers`.
  Index layers() const { return static_cast<Index>(layer_types().size()); }

  /// "full_attention", "linear_attention", ... of every layer. Where config.json has no
  /// `layer_types`: every `full_attention_interval`-th is "full_attention" (qwen3_next: 4 if not
  /// given), or all are. Read anew at every call, not on opening: models of a type that nobody asks
  /// for layers may spell these keys otherwise.
  std::vector<std::string> layer_types() const {
    const Index layers = numbers_.extent("num_hidden_layers");
    constexpr Index most_layers = 1 << 20;
    if (layers > most_layers)
      detail::raise<FileError>(numbers_.place(), ": 'num_hidden_layers' is ", layers, "; at most ",
                               most_layers, " are expected");
    if (numbers_.has("layer_types")) {
      std::vector<std::string> types = numbers_.texts("layer_types");
      if (static_cast<Index>(types.size()) != layers)
        detail::raise<FileError>(numbers_.place(), ": 'layer_types' has ", types.size(),
                                 " entries, 'num_hidden_layers' is ", layers);
      return types;
    }
    const Index interval =
        numbers_.extent_or("full_attention_interval", model_type_ == "qwen3_next" ? 4 : 1);
    std::vector<std::string> types;
    for (Index layer = 0; layer < layers; ++layer)
      types.emplace_back((layer + 1) % interval == 0 ? "full_attention" : "linear_attention");
    return types;
  }

  /// The type of one layer, or a FileError that names it and how many there are.
  std::string layer_type(Index layer) const {
    const std::vector<std::string> types = layer_types();
    const auto layers = static_cast<Index>(types.size());
    if (layer < 0 || layer >= layers)
      detail::raise<FileError>("checkpoint ", directory_.string(), ": layer ", layer,
                               " does not exist: it has ", layers, " layers, 0 to ", layers - 1);
    return types[static_cast<std::size_t>(layer)];
  }

  /// The layers of softmax attention, whole or sliding, ascending.
  std::vector<Index> softmax_layers() const {
    std::vector<Index> found;
    Index layer = 0;
    for (const std::string& type : layer_types()) {
      if (type == "full_attention" || type == "sliding_attention") found.push_back(layer);
      ++layer;
    }
    return found;
  }

  /// The first of them, or a FileError if there is none.
  Index first_softmax_layer() const {
    const std::vector<Index> layers = softmax_layers();
    if (layers.empty())
      detail::raise<FileError>("checkpoint ", directory_.string(),
                               ": has no softmax-attention layer");
    return layers.front();
  }

  /// A FileError unless the layer exists and is one of softmax attention.
  void check_softmax_layer(Index layer) const {
    const std::string type = layer_type(layer);
    const std::vector<Index> softmax = softmax_layers();
    if (!std::binary_search(softmax.begin(), softmax.end(), layer))
      detail::raise<FileError>(
          "checkpoint ", directory_.string(), ": layer ", layer, " is ", detail::printable(type),
          "; softmax-attention layers: ", softmax.empty() ? "none" : detail::joined(softmax));
  }

  /// What stands behind `layers.N.self_attn.` in the names of layer N's tensors ("q_proj.weight",
  /// ...), ascending.
  ///
  /// Whatever stands before `layers.N` is the prefix: it must be the same for all of them, else a
  /// FileError lists the prefixes. A multi-token-prediction head ("mtp.") numbers its own layers
  /// and is passed over, as the published code does. With a `prefix` given, the one that ends with
  /// it is meant ("H_module.").
  std::vector<std::string> attention_tensor_names(Index layer, std::string_view prefix = {}) const {
    const std::string found = attention_prefix(layer, prefix);
    std::vector<std::string> leaves;
    for (const std::string_view name : tensors_.names()) {
      const auto parts = detail::parse_layer_tensor(name, "self_attn");
      if (parts && parts->layer == layer && parts->prefix == found)
        leaves.emplace_back(parts->leaf);
    }
    return leaves;
  }

  /// The tensor `<prefix>layers.N.self_attn.<leaf>`, whatever the prefix; see
  /// attention_tensor_names.
  TensorView attention_tensor(Index layer, std::string_view leaf,
                              std::string_view prefix = {}) const {
    const std::string end = "layers." + std::to_string(layer) + ".self_attn." + std::string(leaf);
    const std::string name = attention_prefix(layer, prefix) + end;
    if (!tensors_.contains(name))
      detail::raise<FileError>("checkpoint ", directory_.string(), ": no tensor ",
                               detail::in_quotes(name), "; layer ", layer, " has ",
                               detail::joined(attention_tensor_names(layer, prefix)));
    return tensors_.tensor(name);
  }

 private:
  static const std::filesystem::path& checked_directory(const std::filesystem::path& directory) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(directory, ignored))
      detail::raise<FileError>(
          "checkpoint ", directory.string(),
          detail::is_present(directory) ? ": is not a directory" : ": does not exist");
    return directory;
  }

  static bool is_prediction_head(std::string_view prefix) {
    return prefix.starts_with("mtp.") || prefix.find(".mtp.") != prefix.npos;
  }

  std::string attention_prefix(Index layer, std::string_view wanted) const {
    std::set<std::string> found;
    for (const std::string_view name : tensors_.names()) {
      const auto parts = detail::parse_layer_tensor(name, "self_attn");
      if (!parts || parts->layer != layer) continue;
      if (wanted.empty() ? !is_prediction_head(parts->prefix) : parts->prefix.ends_with(wanted))
        found.emplace(parts->prefix);
    }
    const std::string looked_for = message_name(layer, wanted);
    if (found.empty())
      detail::raise<FileError>("checkpoint ", directory_.string(), ": no tensor is named ",
                               looked_for);
    if (found.size() > 1)
      detail::raise<FileError>(
          "checkpoint ", directory_.string(), ": ", looked_for,
          " is ambiguous; what stands "
          "before layers.",
          layer, " may be: ", detail::joined(std::vector<std::string>(found.begin(), found.end())));
    return *found.begin();
  }

  static std::string message_name(Index layer, std::string_view prefix) {
    return "..." + detail::printable(prefix) + "layers." + std::to_string(layer) + ".self_attn...";
  }

  std::filesystem::path directory_;
  std::unique_ptr<const nlohmann::json> config_;  ///< numbers_ points to it, also after a move
  JsonObject numbers_;
  std::string model_type_;
  TensorFiles tensors_;
};

/// query, gate = split of the rows of a stored matrix [layout.rows(), in], read row by row without
/// a copy of the whole; a wrong width is a FileError that names the tensor and both numbers.
template <class Scalar>
void read_packed_query(const TensorView& tensor, const PackedQuery& layout,
                       MatrixView<Scalar> query, std::type_identity_t<MatrixView<Scalar>> gate) {
  detail::check_packed_extents("read_packed_query", layout, layout.rows(), query.rows(),
                               gate.rows());
  detail::check_packed_columns("read_packed_query", query.columns(), query.columns(),
                               gate.columns(), gate.rows());
  expect_shape(
      tensor, {layout.rows(), query.columns()},
      detail::message(layout.query_heads, " heads of ", layout.head_dim, " with ", layout.gate_dim,
                      " gate rows each, packing ", name_of(layout.packing)));
  const auto read_row = [&](MatrixView<Scalar> out, Index row, Index packed_row) {
    read_rows(tensor, packed_row, MatrixView<Scalar>(out.row(row), 1, out.columns()));
  };
  detail::for_each_packed_row(
      layout, [&](Index row, Index packed_row) { read_row(query, row, packed_row); },
      [&](Index row, Index packed_row) { read_row(gate, row, packed_row); });
}

/// `expected.safetensors` beside config.json: what the published code answers on recorded hidden
/// states, as `layers.N.self_attn.input` and `layers.N.self_attn.output`, both [tokens, model_dim].
class ExpectedOutputs {
 public:
  /// The file in the directory, if it exists.
  static std::optional<ExpectedOutputs> beside(const Checkpoint& checkpoint) {
    const std::filesystem::path path = checkpoint.directory() / "expected.safetensors";
    if (!detail::is_present(path)) return std::nullopt;
    return ExpectedOutputs(Safetensors::open(path));
  }

  /// The layers that are recorded, ascending.
  std::vector<Index> layers() const {
    std::set<Index> found;
    for (const std::string_view name : file_.names()) {
      const auto parts = detail::parse_layer_tensor(name, "self_attn");
      if (parts && parts->prefix.empty() && parts->leaf == "output") found.insert(parts->layer);
    }
    return {found.begin(), found.end()};
  }

  bool has(Index layer) const { return file_.contains(name(layer, "output")); }

  /// [tokens, model_dim], tokens as recorded; both of a layer have one shape, else a FileError.
  TensorView input(Index layer) const {
    const TensorView tensor = file_.tensor(name(layer, "input"));
    if (tensor.shape.size() != 2)
      detail::raise<FileError>(file_.file(), ": tensor ", detail::in_quotes(tensor.name), " is ",
                               detail::shape_text(tensor.shape),
                               ", [tokens, model_dim] is expected");
    return tensor;
  }

  TensorView output(Index layer) const {
    const TensorView tensor = file_.tensor(name(layer, "output"));
    expect_shape(tensor, input(layer).shape, "the shape of the layer's input");
    return tensor;
  }

 private:
  explicit ExpectedOutputs(Safetensors file) : file_(std::move(file)) {}

  static std::string name(Index layer, std::string_view leaf) {
    return "layers." + std::to_string(layer) + ".self_attn." + std::string(leaf);
  }

  Safetensors file_;
};

}  // namespace gated_attention
