// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gated_attention/core/shape.hpp"
#include "gated_attention/io/packing.hpp"
#include "gated_attention/io/safetensors.hpp"
#include "gated_attention/layer/parameters.hpp"
#include "gated_attention/reference/reference.hpp"

// Recorded layers: what a published layer's numbers are, and what its published code answers.

namespace gated_attention::test {

/// The numbers of a recorded layer that a composition names. What the recording does not have is
/// not a number that a stage would take.
struct Numbers {
  Shape shape;
  double eps = std::numeric_limits<double>::quiet_NaN();
  double theta = std::numeric_limits<double>::quiet_NaN();
  Index rotary_dim = -1;
  Index rotated_pairs = -1;
  Yarn yarn = {.factor = -1, .original_max_position = -1};
  Index window = -1;
  double softcap = std::numeric_limits<double>::quiet_NaN();
  double scale = std::numeric_limits<double>::quiet_NaN();
  double query_factor = std::numeric_limits<double>::quiet_NaN();
};

/// The YaRN of a rotation in a config, if it has one.
inline Optional<Yarn> yarn_of(const nlohmann::json& rope) {
  const nlohmann::json& yarn = rope.at("yarn");
  if (yarn.is_null()) return {};
  return Yarn{.factor = yarn.at("factor").get<double>(),
              .original_max_position = yarn.at("original_max_position").get<double>(),
              .beta_fast = yarn.at("beta_fast").get<double>(),
              .beta_slow = yarn.at("beta_slow").get<double>(),
              .truncate = yarn.at("truncate").get<bool>(),
              .attention_factor = rope.at("attention_factor").get<double>()};
}

/// One recorded layer: a file, or a variant in a file of several.
///
/// Metadata `config` (JSON) says what the layer is: shape, mask, scale, `projection` (tensor names
/// and packing) and `stages` in their order at each position; `float32_error` how far a float32 run
/// of the published code was off. A variant's own tensors are `<variant>/<name>` and replace a
/// shared tensor of that name; an expected attention that equals the ungated variant's is left out.
class Recording {
 public:
  explicit Recording(const std::string& file, const std::string& variant = "")
      : file_(open(file)),
        prefix_(variant.empty() ? "" : variant + "/"),
        config_(metadata(file_, "config")) {
    nlohmann::json error = metadata(file_, "float32_error");
    if (!variant.empty()) {
      config_ = nlohmann::json(config_.at("variants").at(variant));
      error = nlohmann::json(error.at(variant));
    }
    float_tolerance_ = 4 * error.at("output").get<double>();
  }

  /// The names of a file's variants, ascending.
  static std::set<std::string> variants(const std::string& file) {
    std::set<std::string> names;
    const nlohmann::json config = metadata(open(file), "config");
    for (const auto& [name, variant] : config.at("variants").items()) names.insert(name);
    return names;
  }

  const nlohmann::json& config() const { return config_; }

  /// Of a float32 library, relative to the largest magnitude of what is expected: 4 times the error
  /// of a float32 run of the published code.
  double float_tolerance() const { return float_tolerance_; }

  Index tokens() const { return config_.at("tokens").get<Index>(); }

  /// Of a ragged batch; empty: one sequence.
  std::vector<Index> lengths() const {
    return config_.value("sequence_lengths", std::vector<Index>());
  }

  /// Rows that keys and values come from, where those are not the layer's input.
  bool has_context() const { return config_.at("tokens") != config_.at("context_tokens"); }
  Index context_tokens() const { return config_.at("context_tokens").get<Index>(); }
  Index context_dim() const {
    return has_context() ? config_.value("context_dim", config_.at("model_dim").get<Index>()) : 0;
  }

  /// Of a prefix mask, one per sequence; else empty.
  std::vector<Index> prefixes() const {
    const nlohmann::json& mask = config_.at("mask");
    if (!mask.contains("prefix")) return {};
    return {mask.at("prefix").get<Index>()};
  }

  /// The layer's own tensor of that name, or the one it shares with the file's other layers.
  TensorView tensor(const std::string& name) const {
    return file_.tensor(file_.contains(prefix_ + name) ? prefix_ + name : name);
  }

  /// attention, gate_scores or output, if it is recorded.
  std::optional<TensorView> expected(const std::string& name) const {
    const std::string expected = "expected." + name;
    if (file_.contains(prefix_ + expected)) return file_.tensor(prefix_ + expected);
    const std::string shared = "no_gate/" + expected;
    if (name == "attention" && file_.contains(shared)) return file_.tensor(shared);
    return {};
  }

  /// The layer's own tensors that are learned.
  std::set<std::string> weights() const {
    std::set<std::string> names;
    for (const std::string_view name : file_.names()) {
      if (!name.starts_with(prefix_)) continue;
      const std::string own(name.substr(prefix_.size()));
      if (!own.starts_with("expected.") && own != "grad_output" && own != "hidden_states" &&
          own != "context_states")
        names.insert(own);
    }
    return names;
  }

  Numbers numbers() const {
    Numbers numbers;
    numbers.shape = {.model_dim = config_.at("model_dim").get<Index>(),
                     .query_heads = config_.at("query_heads").get<Index>(),
                     .kv_heads = config_.at("kv_heads").get<Index>(),
                     .head_dim = config_.at("head_dim").get<Index>(),
                     .value_dim = config_.at("value_dim").get<Index>(),
                     .context_dim = context_dim()};
    numbers.window = config_.at("mask").value("window", Index{-1});
    numbers.scale = config_.at("scale").get<double>();
    if (!config_.at("softcap").is_null()) numbers.softcap = config_.at("softcap").get<double>();
    for (const nlohmann::json& stage : config_.at("stages")) {
      if (stage.at("stage") == "Normalize") numbers.eps = stage.at("eps").get<double>();
      if (stage.at("stage") == "Scale") numbers.query_factor = stage.at("factor").get<double>();
      if (stage.at("stage") == "Rope") read_rope(stage, numbers);
    }
    return numbers;
  }

 private:
  static Safetensors open(const std::string& file) {
    return Safetensors::open(std::string(GATED_ATTENTION_TEST_DATA) + "/golden/" + file +
                             ".safetensors");
  }

  static nlohmann::json metadata(const Safetensors& file, const char* key) {
    return nlohmann::json::parse(file.metadata().at(key));
  }

  static void read_rope(const nlohmann::json& stage, Numbers& numbers) {
    numbers.theta = stage.at("theta").get<double>();
    numbers.rotary_dim = stage.at("rotary_dim").get<Index>();
    numbers.rotated_pairs = stage.value("rotated_pairs", Index{-1});
    if (const auto yarn = yarn_of(stage)) numbers.yarn = *yarn;
  }

  Safetensors file_;
  std::string prefix_;
  nlohmann::json config_;
  double float_tolerance_ = 0;
};

/// A layer as lines of text, the stages of each position in their order: made from a recording's
/// config and from a composed layer, and then compared.
using Lines = std::vector<std::string>;

inline std::string text(double number) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.14g", number);
  return buffer;
}

inline std::string text(Index number) {
  return std::to_string(number);
}

template <class... Words>
std::string line(const Words&... words) {
  std::string all;
  const auto add = [&](const std::string& word) { all += (all.empty() ? "" : " ") + word; };
  (add(words), ...);
  return all;
}

inline constexpr const char* position_names[] = {"Query", "Key", "Value", "Sdpa", "Output"};

inline std::string rope_text(const std::string& pairing, Index rotary_dim, Index first_dim,
                             Index pairs, double theta, const Optional<Yarn>& yarn) {
  std::string all = line("Rope", pairing, text(rotary_dim), "from", text(first_dim), "pairs",
                         text(pairs), "theta", text(theta));
  if (!yarn) return all + " attention factor 1";
  const double derived = 0.1 * std::log(yarn->factor) + 1;
  return line(all, "yarn", text(yarn->factor), text(yarn->original_max_position),
              text(yarn->beta_fast), text(yarn->beta_slow), yarn->truncate ? "truncated" : "exact",
              "attention factor", text(yarn->attention_factor.value_or(derived)));
}

/// What the config says of a stage, its place aside. `packed_bias`: the gate's bias lies in that of
/// the packed query.
inline std::string stage_text(const nlohmann::json& stage, bool packed_bias) {
  const auto word = [&](const char* key) { return stage.at(key).get<std::string>(); };
  const std::string kind = word("stage");
  if (kind == "Normalize")
    return line(kind, word("over"), word("convention"), text(stage.at("eps").get<double>()));
  if (kind == "Scale") return line(kind, text(stage.at("factor").get<double>()));
  if (kind == "Activate") return line(kind, word("activation"));
  if (kind == "Rope" && !stage.contains("mrope_section")) {
    const Index rotary_dim = stage.at("rotary_dim").get<Index>();
    const Optional<Yarn> yarn = yarn_of(stage);
    if (!yarn && stage.at("attention_factor") != 1.0) return "Rope with a factor without YaRN";
    return rope_text(word("pairing"), rotary_dim, stage.at("first_dim").get<Index>(),
                     stage.value("rotated_pairs", rotary_dim / 2), stage.at("theta").get<double>(),
                     yarn);
  }
  if (kind != "Gate") return line("not known:", stage.dump());
  const bool has_bias = !stage.at("bias").is_null() || (packed_bias && word("weight") == "packed");
  return line(kind, word("granularity"), word("sharing"), word("combine"), word("activation"),
              word("source"), "bias per",
              has_bias ? stage.value("bias_shape", std::string("logit")) : "nothing");
}

inline std::string activation_text(double (*activation)(double)) {
  if (activation == &reference::activation<Sigmoid>) return "sigmoid";
  if (activation == &reference::activation<Silu>) return "silu";
  if (activation == &reference::activation<NonSparseSigmoid>) return "non_sparse_sigmoid";
  if (activation == &reference::activation<Identity>) return "identity";
  if (activation == &reference::activation<Tanh>) return "tanh";
  if (activation == &reference::activation<Softplus>) return "softplus";
  if (activation == &reference::activation<TwiceSigmoid>) return "twice_sigmoid";
  return "an activation of the user's";
}

/// The same of a stage of a composed layer.
inline std::string stage_text(const reference::Stage& stage) {
  using Kind = reference::Stage::Kind;
  switch (stage.kind) {
    case Kind::normalize:
      return line("Normalize", stage.over_row ? "row" : "head",
                  !stage.weighted         ? "weightless"
                  : stage.offset_from_one ? "offset_from_one"
                                          : "plain",
                  text(stage.number));
    case Kind::scale:
      return line("Scale", text(stage.number));
    case Kind::activate:
      return line("Activate", activation_text(stage.activation));
    case Kind::rotate: {
      const reference::Rotation& rope = stage.rotation;
      return rope_text(rope.interleaved ? "interleaved" : "half", rope.rotary_dim, rope.first_dim,
                       rope.rotated_pairs, rope.theta, rope.yarn);
    }
    case Kind::gate:
      break;
  }
  using GateBias = reference::Stage::GateBias;
  return line("Gate", stage.elementwise ? "elementwise" : "headwise",
              stage.shared     ? "shared_heads"
              : stage.averaged ? "head_mean"
                               : "per_head",
              stage.adds ? "add" : "multiply", activation_text(stage.activation),
              stage.constant ? "constant" : "hidden", "bias per",
              stage.bias == GateBias::per_logit  ? "logit"
              : stage.bias == GateBias::per_head ? "head"
                                                 : "nothing");
}

inline std::string extents_text(const Shape& shape) {
  return line("model", text(shape.model_dim), "heads", text(shape.query_heads), "on",
              text(shape.kv_heads), "of", text(shape.head_dim), "values", text(shape.value_width()),
              shape.is_cross() ? "context" : "no context", text(shape.context_dim));
}

/// A scale of a layer's own is one that the query is multiplied by in the end.
inline void add_own_scale(Lines& lines, const Shape& shape, double scale) {
  const double factor = scale * std::sqrt(static_cast<double>(shape.head_dim));
  if (std::abs(factor - 1) > 1e-15) lines.push_back(line("Query: Scale", text(factor)));
}

inline Lines lines_of(const Recording& recording) {
  const nlohmann::json& config = recording.config();
  const Shape shape = recording.numbers().shape;
  Lines lines = {extents_text(shape)};
  const nlohmann::json& projection = config.at("projection");
  const auto is_biased = [&](const char* name) {
    return !projection.value(std::string(name) + "_bias", nlohmann::json()).is_null();
  };
  for (const char* name : {"query", "key", "value", "output"})
    if (is_biased(name)) lines.push_back(line("bias of", name));
  const nlohmann::json& mask = config.at("mask");
  const std::string kind = mask.at("kind").get<std::string>();
  lines.push_back(mask.contains("window") ? line(kind, text(mask.at("window").get<Index>()))
                                          : kind);
  if (!config.at("softcap").is_null())
    lines.push_back(line("Scores: softcap", text(config.at("softcap").get<double>())));
  if (!config.at("sink").is_null()) lines.push_back("Scores: sink");

  for (const std::string position : position_names) {
    for (const nlohmann::json& stage : config.at("stages")) {
      const std::string at = stage.at("at").get<std::string>();
      if (at == position || (at == "QueryKey" && (position == "Query" || position == "Key")))
        lines.push_back(line(position + ":", stage_text(stage, is_biased("query"))));
    }
    if (position == "Query") add_own_scale(lines, shape, config.at("scale").get<double>());
  }
  return lines;
}

inline std::string mask_text(const reference::Visible& visible) {
  const reference::Visible all;
  if (visible.top_left) return "causal from the top left";
  const bool sees_past = visible.past == all.past;
  if (visible.future == all.future)
    return sees_past ? "bidirectional" : line("future and", text(visible.past + 1));
  if (visible.future > 0) return line("up to", text(visible.future), "keys behind it");
  if (!sees_past) return line("sliding_window", text(visible.past + 1));
  return visible.prefixed ? "prefix_causal" : "causal";
}

inline Lines lines_of(const reference::Description& layer) {
  Lines lines = {extents_text(layer.shape)};
  if (layer.query_bias) lines.push_back("bias of query");
  if (layer.key_bias) lines.push_back("bias of key");
  if (layer.value_bias) lines.push_back("bias of value");
  if (layer.output_bias) lines.push_back("bias of output");
  lines.push_back(mask_text(layer.visible));
  for (const reference::ScoreStage& stage : layer.score_stages)
    lines.push_back(stage.kind == reference::ScoreStage::Kind::softcap
                        ? line("Scores: softcap", text(stage.cap))
                        : "Scores: a stage that no recording has");
  if (layer.sink) lines.push_back("Scores: sink");
  for (int position = 0; position < 5; ++position) {
    for (const reference::Stage& stage : layer.stages)
      if (stage.position == static_cast<Position>(position))
        lines.push_back(line(std::string(position_names[position]) + ":", stage_text(stage)));
    if (position == static_cast<int>(Position::query))
      add_own_scale(lines, layer.shape, layer.scale);
  }
  return lines;
}

/// Fills a composed layer's parameters from a recording's tensors.
template <class Scalar>
class Loader {
 public:
  Loader(const Recording& recording, Parameters<Scalar>& parameters)
      : recording_(recording), parameters_(parameters) {}

  void load() {
    const nlohmann::json& projection = recording_.config().at("projection");
    if (projection.at("kind") == "fused_per_head") {
      read_fused(projection.at("query_key_value").get<std::string>());
    } else {
      read_query(projection);
      read(projection, "key", "k_proj.weight");
      read(projection, "value", "v_proj.weight");
      read(projection, "key_bias", "k_proj.bias");
      read(projection, "value_bias", "v_proj.bias");
    }
    read(projection, "output", "o_proj.weight");
    read(projection, "output_bias", "o_proj.bias");
    for (const nlohmann::json& stage : recording_.config().at("stages")) read_stage(stage);
    read(recording_.config(), "sink", "sink.logits");
  }

  /// The parameters that were given their numbers, and the recording's tensors that were read.
  const std::set<std::string>& filled() const { return filled_; }
  const std::set<std::string>& used() const { return used_; }

 private:
  TensorView use(const std::string& name) {
    used_.insert(name);
    return recording_.tensor(name);
  }

  MatrixView<Scalar> fill(const std::string& name) {
    filled_.insert(name);
    return parameters_[name];
  }

  /// parameters[to] = the tensor that object[key] names, if it names one
  void read(const nlohmann::json& object, const char* key, const std::string& to) {
    const nlohmann::json name = object.value(key, nlohmann::json());
    if (name.is_null()) return;
    const TensorView from = use(name.get<std::string>());
    const MatrixView<Scalar> out = fill(to);
    if (from.shape.size() == 1)
      read_vector(from, std::span<Scalar>(out.data(), static_cast<std::size_t>(out.columns())));
    else
      read_matrix(from, out);
  }

  /// The query's rows, and with packing A or B those of the gate between them.
  void read_query(const nlohmann::json& projection) {
    const std::string packing = projection.at("packing").get<std::string>();
    if (packing != "A" && packing != "B") {
      read(projection, "query", "q_proj.weight");
      read(projection, "query_bias", "q_proj.bias");
      return;
    }
    const Shape shape = recording_.numbers().shape;
    const MatrixView<Scalar> query = fill("q_proj.weight"), gate = fill("sdpa_gate.weight");
    const PackedQuery layout{packing == "A" ? QueryPacking::PerKvGroup : QueryPacking::PerQueryHead,
                             shape.query_heads, shape.kv_heads, shape.head_dim,
                             gate.rows() / shape.query_heads};
    const TensorView weight = use(projection.at("query").get<std::string>());
    const std::vector<Scalar> packed =
        read_values<Scalar>(weight, {layout.rows(), shape.model_dim});
    split_query<Scalar>(layout, {packed.data(), layout.rows(), shape.model_dim}, query, gate);
    if (projection.at("query_bias").is_null()) return;
    const TensorView bias = use(projection.at("query_bias").get<std::string>());
    const std::vector<Scalar> packed_bias = read_values<Scalar>(bias, {layout.rows()});
    split_query_bias<Scalar>(layout, packed_bias, as_span(fill("q_proj.bias")),
                             as_span(fill("sdpa_gate.bias")));
  }

  /// One matrix whose rows are, for each head, those of its query, its key and its value.
  void read_fused(const std::string& name) {
    const Shape shape = recording_.numbers().shape;
    const TensorView from = use(name);
    Index row = 0;
    const MatrixView<Scalar> out[] = {fill("q_proj.weight"), fill("k_proj.weight"),
                                      fill("v_proj.weight")};
    for (Index h = 0; h < shape.query_heads; ++h)
      for (const MatrixView<Scalar>& matrix : out) {
        read_rows(
            from, row,
            MatrixView<Scalar>(matrix.row(h * shape.head_dim), shape.head_dim, matrix.columns()));
        row += shape.head_dim;
      }
    EXPECT_EQ(row, from.shape[0]);
  }

  /// What a stage learns has the name of its position and kind.
  void read_stage(const nlohmann::json& stage) {
    const bool is_gate = stage.at("stage") == "Gate", is_norm = stage.at("stage") == "Normalize";
    if ((!is_gate && !is_norm) || stage.at("weight") == "packed") return;
    std::string name = stage.at("at").get<std::string>();
    name[0] = static_cast<char>(name[0] - 'A' + 'a');
    name += is_gate ? "_gate." : "_norm.";
    const bool is_constant = is_gate && stage.at("source") == "constant";
    read(stage, "weight", name + (is_constant ? "logits" : "weight"));
    read(stage, "bias", name + "bias");
  }

  static std::span<Scalar> as_span(const MatrixView<Scalar>& row) {
    return {row.data(), static_cast<std::size_t>(row.columns())};
  }

  const Recording& recording_;
  Parameters<Scalar>& parameters_;
  std::set<std::string> filled_, used_;
};

}  // namespace gated_attention::test
