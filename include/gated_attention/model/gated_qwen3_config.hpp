// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/core/optional.hpp"
#include "gated_attention/io/checkpoint.hpp"
#include "gated_attention/io/json.hpp"
#include "gated_attention/io/packing.hpp"
#include "gated_attention/io/safetensors.hpp"
#include "gated_attention/math/rotary.hpp"
#include "gated_attention/model/tensors.hpp"

// The models that Qiu et al. 2025 published with their paper (github.com/qiuzh20/gated_attention):
// a Qwen3 whose configuration has the keys headwise_attn_output_gate and
// elementwise_attn_output_gate. Keys that the published configuration class gives a default may be
// absent; everything else that decides the numbers must be there.

namespace gated_attention {

/// What multiplies the SDPA output of a model.
enum class GatedQwen3Gate : std::uint8_t { None, Headwise, Elementwise };

constexpr std::string_view name_of(GatedQwen3Gate gate) {
  switch (gate) {
    case GatedQwen3Gate::None:
      return "none";
    case GatedQwen3Gate::Headwise:
      return "headwise";
    case GatedQwen3Gate::Elementwise:
      return "elementwise";
  }
  return "unknown";
}

/// The numbers of every layer of one of these models, as config.json states them.
struct GatedQwen3Numbers {
  Index model_dim = 0;                         ///< hidden_size
  Index query_heads = 0;                       ///< num_attention_heads
  Index kv_heads = 0;                          ///< num_key_value_heads
  Index head_dim = 0;                          ///< head_dim; absent: 128
  double eps = 0;                              ///< rms_norm_eps, of every norm; absent: 1e-6
  double theta = 0;                            ///< rope_theta; absent: 10000
  Optional<Yarn> yarn = {};                    ///< rope_scaling of the type yarn
  GatedQwen3Gate gate = GatedQwen3Gate::None;  ///< headwise wins where the file sets both
  bool has_bias = false;  ///< qkv_bias: biases of q, k, v and o, and of the gate

  /// How q_proj's rows split into those of the query and of the gate.
  PackedQuery packing() const {
    return {
        .packing = gate == GatedQwen3Gate::None ? QueryPacking::Separate : QueryPacking::PerKvGroup,
        .query_heads = query_heads,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
        .gate_dim = gate == GatedQwen3Gate::None       ? 0
                    : gate == GatedQwen3Gate::Headwise ? 1
                                                       : head_dim};
  }
};

/// The attention of one layer of a checkpoint: numbers, and tensors with exactly the shapes that
/// follow from them. The tensors look into the checkpoint, which must stay open.
///
///   q, gate = q_proj x, k, v = k_proj x, v_proj x        G = Hq/Hkv; W = D elementwise, 1 headwise
///   q, k = rope(norm(q)·q_norm), rope(norm(k)·k_norm)    rotate-half over the whole head
///   y = o_proj (attend(q, k, v) ⊙ σ(gate))               scale D^-1/2, causal
///
///   q_proj: [Hq·(D + W), E], for each kv head [G·D query rows | G·W gate rows]
///   k_proj, v_proj: [Hkv·D, E], o_proj: [E, Hq·D], q_norm, k_norm: [D]
struct GatedQwen3Description {
  struct Biases {
    TensorView q_proj, k_proj, v_proj, o_proj;
  };

  Index layer = 0;
  GatedQwen3Numbers numbers;
  TensorView q_proj, k_proj, v_proj, o_proj, q_norm, k_norm;
  std::optional<Biases> biases;  ///< where numbers.has_bias
};

/// Whether it is one of these models: the package's own qwen3 has neither key.
inline bool is_gated_qwen3(const Checkpoint& checkpoint) {
  return checkpoint.model_type() == "qwen3" &&
         (checkpoint.config().contains("headwise_attn_output_gate") ||
          checkpoint.config().contains("elementwise_attn_output_gate"));
}

namespace detail {

inline void check_is_gated_qwen3(const Checkpoint& checkpoint) {
  checkpoint.check_model_type({"qwen3"});
  if (!is_gated_qwen3(checkpoint))
    raise<FileError>("checkpoint ", checkpoint.directory().string(),
                     ": has neither headwise_attn_output_gate nor elementwise_attn_output_gate: a "
                     "qwen3 without these keys is another model");
}

/// What the layers cannot honour. `attention_bias` and, without use_sliding_window,
/// `sliding_window` are not read by the published code and say nothing.
inline void refuse_gated_qwen3_keys(const JsonObject& config) {
  const auto refuse = [&config](std::string_view what, std::string_view why) {
    raise<FileError>(config.place(), ": ", what, " is not supported: ", why);
  };
  if (!config.flag_or("use_qk_norm", true))
    refuse("use_qk_norm false", "the layer normalises queries and keys");
  if (config.flag_or("use_sliding_window", false))
    refuse("use_sliding_window true",
           "the published code has a window with one of its attention implementations only");
  if (config.has("rope_parameters"))
    refuse("rope_parameters", "rope_theta and rope_scaling are expected at the top level");
  if (const double share = config.number_or("partial_rotary_factor", 1); share != 1)
    refuse("partial_rotary_factor " + shown(nlohmann::json(share)), "the whole head turns");
  if (config.has("quantization_config"))
    refuse("quantization_config", "weights must be F64, F32, F16 or BF16");
}

/// rope_scaling, which is absent, of the type default, or of the type yarn. The published code takes
/// max_position_embeddings for the length before the scaling; a file that states another one beside
/// it is refused.
inline Optional<Yarn> read_gated_qwen3_scaling(const JsonObject& config) {
  if (!config.has("rope_scaling")) return {};
  const JsonObject scaling = config.object("rope_scaling");
  const std::string type = scaling.text(scaling.has("type") ? "type" : "rope_type");
  if (type == "default") return {};
  if (type != "yarn")
    raise<FileError>(scaling.place(), ": type ", in_quotes(type),
                     " is not supported; supported: default, yarn");
  constexpr std::array known = {"type",
                                "rope_type",
                                "factor",
                                "attention_factor",
                                "beta_fast",
                                "beta_slow",
                                "original_max_position_embeddings"};
  for (const auto& [key, value] : scaling.json().items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      raise<FileError>(scaling.place(), ": ", in_quotes(key),
                       " is not supported for the type yarn");
  const Index length = config.extent("max_position_embeddings");
  if (const Index stated = scaling.extent_or("original_max_position_embeddings", length);
      stated != length)
    raise<FileError>(scaling.place(), ": original_max_position_embeddings is ", stated,
                     ", max_position_embeddings ", length, "; they are expected to be the same");
  Yarn yarn{.factor = scaling.positive("factor"),
            .original_max_position = static_cast<double>(length),
            .beta_fast = scaling.positive_or("beta_fast", 32),
            .beta_slow = scaling.positive_or("beta_slow", 1)};
  if (yarn.factor < 1)
    raise<FileError>(scaling.place(), ": factor is ", shown(nlohmann::json(yarn.factor)),
                     ", at least 1 is expected");
  // The published code has no special case for a given factor of 1: both rules give 1 there.
  if (scaling.has("attention_factor")) yarn.attention_factor = scaling.positive("attention_factor");
  return yarn;
}

inline GatedQwen3Gate read_gated_qwen3_gate(const JsonObject& config) {
  const bool elementwise = config.flag_or("elementwise_attn_output_gate", false);
  if (config.flag_or("headwise_attn_output_gate", false)) return GatedQwen3Gate::Headwise;
  return elementwise ? GatedQwen3Gate::Elementwise : GatedQwen3Gate::None;
}

}  // namespace detail

/// The numbers of a checkpoint's layers, each checked. What they cannot honour is a FileError by
/// name: another model type or the package's own qwen3, queries and keys without norm, a sliding
/// window, another rope type, quantised weights.
inline GatedQwen3Numbers read_gated_qwen3_numbers(const Checkpoint& checkpoint) {
  detail::check_is_gated_qwen3(checkpoint);
  const JsonObject& config = checkpoint.numbers();
  detail::refuse_gated_qwen3_keys(config);
  GatedQwen3Numbers numbers;
  numbers.model_dim = config.extent("hidden_size");
  numbers.query_heads = config.extent("num_attention_heads");
  numbers.kv_heads = config.extent("num_key_value_heads");
  if (numbers.query_heads % numbers.kv_heads != 0)
    detail::raise<FileError>(config.place(), ": num_attention_heads ", numbers.query_heads,
                             " is not a multiple of num_key_value_heads ", numbers.kv_heads);
  numbers.head_dim = config.extent_or("head_dim", 128);
  if (numbers.head_dim % 2 != 0)
    detail::raise<FileError>(config.place(), ": head_dim is ", numbers.head_dim,
                             ", an even number is expected: the whole head turns in pairs");
  numbers.eps = config.positive_or("rms_norm_eps", 1e-6);
  numbers.theta = config.positive_or("rope_theta", 10000);
  numbers.yarn = detail::read_gated_qwen3_scaling(config);
  numbers.gate = detail::read_gated_qwen3_gate(config);
  numbers.has_bias = config.flag("qkv_bias");
  return numbers;
}

/// The attention of layer `layer`, every number and shape checked; beside what the numbers refuse,
/// a FileError names a layer that does not exist, a tensor of another shape, one too many or one too
/// few.
inline GatedQwen3Description read_gated_qwen3(const Checkpoint& checkpoint, Index layer) {
  GatedQwen3Description found;
  found.numbers = read_gated_qwen3_numbers(checkpoint);
  found.layer = layer;
  const GatedQwen3Numbers& n = found.numbers;
  if (const std::string type = checkpoint.layer_type(layer); type != "full_attention")
    detail::raise<FileError>("checkpoint ", checkpoint.directory().string(), ": layer ", layer,
                             " is ", detail::printable(type),
                             ", which is not supported; supported: full_attention");
  const PackedQuery packing = n.packing();
  const Index query_width = n.query_heads * n.head_dim, kv_width = n.kv_heads * n.head_dim;
  const auto tensor = [&](const char* leaf, std::initializer_list<Index> shape,
                          const std::string& meaning) {
    return detail::expect_weights(checkpoint.attention_tensor(layer, leaf), shape, meaning);
  };
  const std::string heads = detail::message(n.query_heads, " heads of ", n.head_dim);
  const std::string query_meaning =
      detail::message(heads, " query and ", packing.gate_dim, " gate rows");
  const std::string kv_meaning = detail::message(n.kv_heads, " kv heads of ", n.head_dim);
  constexpr const char* model = "gated qwen3";
  if (n.has_bias)
    detail::refuse_other_attention_tensors(
        checkpoint, layer,
        {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_norm.weight",
         "k_norm.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"},
        model);
  else
    detail::refuse_other_attention_tensors(checkpoint, layer,
                                           {"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                            "o_proj.weight", "q_norm.weight", "k_norm.weight"},
                                           model);
  found.q_proj = tensor("q_proj.weight", {packing.rows(), n.model_dim}, query_meaning);
  found.k_proj = tensor("k_proj.weight", {kv_width, n.model_dim}, kv_meaning);
  found.v_proj = tensor("v_proj.weight", {kv_width, n.model_dim}, kv_meaning);
  found.o_proj = tensor("o_proj.weight", {n.model_dim, query_width}, heads);
  found.q_norm = tensor("q_norm.weight", {n.head_dim}, "head_dim");
  found.k_norm = tensor("k_norm.weight", {n.head_dim}, "head_dim");
  if (n.has_bias)
    found.biases = {tensor("q_proj.bias", {packing.rows()}, query_meaning),
                    tensor("k_proj.bias", {kv_width}, kv_meaning),
                    tensor("v_proj.bias", {kv_width}, kv_meaning),
                    tensor("o_proj.bias", {n.model_dim}, "hidden_size")};
  return found;
}

}  // namespace gated_attention
