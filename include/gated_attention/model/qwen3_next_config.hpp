// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/io/checkpoint.hpp"
#include "gated_attention/io/json.hpp"
#include "gated_attention/io/packing.hpp"
#include "gated_attention/io/safetensors.hpp"
#include "gated_attention/model/tensors.hpp"

namespace gated_attention {

/// The numbers of one softmax-attention layer of a qwen3_next model, as config.json states them.
struct Qwen3NextNumbers {
  Index model_dim = 0;    ///< hidden_size
  Index query_heads = 0;  ///< num_attention_heads
  Index kv_heads = 0;     ///< num_key_value_heads
  Index head_dim = 0;     ///< head_dim; absent: hidden_size / num_attention_heads
  double eps = 0;         ///< rms_norm_eps, of the QK norm
  double theta = 0;       ///< rope_theta; absent: 10000
  Index rotary_dim = 0;   ///< partial_rotary_factor · head_dim; absent: a quarter
};

/// One layer of a checkpoint: numbers, and tensors with exactly the shapes that follow from them.
/// The tensors look into the checkpoint, which must stay open.
///
///   q, k, v = q_proj x, k_proj x, v_proj x       q_proj: [2·Hq·D, E], query and gate packed per
///   query head q, k = rope(norm(q)·(1+q_norm)), rope(norm(k)·(1+k_norm))           k_proj, v_proj:
///   [Hkv·D, E], norms: [D] y = o_proj (attend(q, k, v) ⊙ σ(gate)) o_proj: [E, Hq·D] scale D^-1/2,
///   causal, rotate-half over the first rotary_dim channels, no biases
struct Qwen3NextDescription {
  Index layer = 0;
  Qwen3NextNumbers numbers;
  TensorView q_proj, k_proj, v_proj, o_proj, q_norm, k_norm;

  /// How q_proj's rows split into those of the query and of the gate.
  PackedQuery packing() const {
    return {.packing = QueryPacking::PerQueryHead,
            .query_heads = numbers.query_heads,
            .kv_heads = numbers.kv_heads,
            .head_dim = numbers.head_dim,
            .gate_dim = numbers.head_dim};
  }
};

namespace detail {

/// What the rope parameters of full-attention layers say: `rope_parameters`, or `rope_scaling` as
/// older files spell it, with one entry for all layers or one per layer type; keys that are not
/// there may stand beside them.
class RopeEntry {
 public:
  explicit RopeEntry(const JsonObject& config) : places_{} {
    for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
      if (!config.has(key)) continue;
      const JsonObject entry = config.object(key);
      places_.push_back(entry.has("full_attention") ? entry.object("full_attention") : entry);
    }
    for (const JsonObject& place : places_)
      for (const std::string_view key : {"rope_type", "type"})
        if (const std::string type = place.text_or(key, "default"); type != "default")
          raise<FileError>(place.place(), ": ", key, " ", in_quotes(type),
                           " is not supported for qwen3_next; supported: default");
    places_.push_back(config);
  }

  /// The first place that has the key.
  double positive_or(std::string_view key, double absent) const {
    for (const JsonObject& place : places_)
      if (place.has(key)) return place.positive(key);
    return absent;
  }

 private:
  std::vector<JsonObject> places_;
};

/// factor · head_dim as an even integer, which the published code cuts off to.
inline Index rotary_dim_of(double factor, Index head_dim, const std::string& place) {
  const double channels = factor * static_cast<double>(head_dim);
  const auto whole = factor <= 1 ? static_cast<Index>(channels) : 0;
  if (whole == 0 || whole % 2 != 0 || channels - static_cast<double>(whole) > 1e-6)
    raise<FileError>(place, ": partial_rotary_factor ", shown(nlohmann::json(factor)),
                     " of head_dim ", head_dim, " is ", shown(nlohmann::json(channels)),
                     " channels; an even integer from 2 to ", head_dim, " is expected");
  return whole;
}

inline void refuse_qwen3_next_flags(const JsonObject& config) {
  if (config.flag_or("attention_bias", false))
    raise<FileError>(config.place(), ": attention_bias true is not supported for qwen3_next");
  if (!config.flag_or("attn_output_gate", true))
    raise<FileError>(config.place(),
                     ": attn_output_gate false is not supported: a qwen3_next layer is gated");
  if (config.has("quantization_config"))
    raise<FileError>(
        config.place(),
        ": quantization_config is not supported: weights must be F64, F32, F16 or BF16");
}

inline Qwen3NextNumbers read_qwen3_next_numbers(const JsonObject& config) {
  refuse_qwen3_next_flags(config);
  Qwen3NextNumbers numbers;
  numbers.model_dim = config.extent("hidden_size");
  numbers.query_heads = config.extent("num_attention_heads");
  numbers.kv_heads = config.extent("num_key_value_heads");
  if (numbers.query_heads % numbers.kv_heads != 0)
    raise<FileError>(config.place(), ": num_attention_heads ", numbers.query_heads,
                     " is not a multiple of num_key_value_heads ", numbers.kv_heads);
  if (!config.has("head_dim") && numbers.model_dim % numbers.query_heads != 0)
    raise<FileError>(config.place(), ": has no head_dim, and hidden_size ", numbers.model_dim,
                     " is not a multiple of num_attention_heads ", numbers.query_heads);
  numbers.head_dim = config.extent_or("head_dim", numbers.model_dim / numbers.query_heads);
  numbers.eps = config.positive("rms_norm_eps");
  const RopeEntry rope(config);
  numbers.theta = rope.positive_or("rope_theta", 10000);
  numbers.rotary_dim = rotary_dim_of(rope.positive_or("partial_rotary_factor", 0.25),
                                     numbers.head_dim, config.place());
  return numbers;
}

}  // namespace detail

/// Layer `layer` of a qwen3_next checkpoint, every number and shape checked. What the layer type
/// cannot honour is a FileError by name: another model type, a layer that does not exist or is not
/// softmax attention over the whole sequence, biases, another rope type, a rotated width that is
/// not an even integer, a tensor of another shape, one too many or one too few.
inline Qwen3NextDescription read_qwen3_next(const Checkpoint& checkpoint, Index layer) {
  checkpoint.check_model_type({"qwen3_next"});
  checkpoint.check_softmax_layer(layer);
  if (const std::string type = checkpoint.layer_type(layer); type != "full_attention")
    detail::raise<FileError>("checkpoint ", checkpoint.directory().string(), ": layer ", layer,
                             " is ", type,
                             ", which is not supported for qwen3_next; supported: full_attention");

  Qwen3NextDescription found;
  found.layer = layer;
  found.numbers = detail::read_qwen3_next_numbers(checkpoint.numbers());
  const Qwen3NextNumbers& n = found.numbers;
  const Index query_width = n.query_heads * n.head_dim;
  const Index kv_width = n.kv_heads * n.head_dim;
  const auto tensor = [&](std::string_view leaf, std::initializer_list<Index> shape,
                          const std::string& meaning) {
    return detail::expect_weights(checkpoint.attention_tensor(layer, leaf), shape, meaning);
  };
  detail::refuse_other_attention_tensors(checkpoint, layer,
                                         {"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                          "o_proj.weight", "q_norm.weight", "k_norm.weight"},
                                         "qwen3_next");
  const std::string kv_meaning = detail::message(n.kv_heads, " kv heads of ", n.head_dim);
  found.q_proj = tensor("q_proj.weight", {2 * query_width, n.model_dim},
                        detail::message(n.query_heads, " heads of ", n.head_dim, " query and ",
                                        n.head_dim, " gate rows"));
  found.k_proj = tensor("k_proj.weight", {kv_width, n.model_dim}, kv_meaning);
  found.v_proj = tensor("v_proj.weight", {kv_width, n.model_dim}, kv_meaning);
  found.o_proj = tensor("o_proj.weight", {n.model_dim, query_width},
                        detail::message(n.query_heads, " heads of ", n.head_dim));
  found.q_norm = tensor("q_norm.weight", {n.head_dim}, "head_dim");
  found.k_norm = tensor("k_norm.weight", {n.head_dim}, "head_dim");
  return found;
}

/// The same of the first softmax-attention layer.
inline Qwen3NextDescription read_qwen3_next(const Checkpoint& checkpoint) {
  checkpoint.check_model_type({"qwen3_next"});
  return read_qwen3_next(checkpoint, checkpoint.first_softmax_layer());
}

}  // namespace gated_attention
