// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gated_attention/gated_attention.hpp"
#include "gated_attention/model/gated_qwen3_config.hpp"
#include "gated_attention/model/opened_layer.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The layers of the paper's own models: QK norm by w, rotary embedding of the whole head, causal.
/// B is NoBias, or Bias for those with qkv_bias: biases of q, k, v and o, and of the gate. Another
/// causal mask may stand in for Causal.
template <class Scalar, class B, class Mask, class... Gates>
using GatedQwen3Layer = std::conditional_t<
    std::is_same_v<B, Bias>,
    GatedAttention<Scalar, ProjectionBias<at::Query, at::Key, at::Value, at::Output>, QkNorm<>,
                   Rope<>, Mask, Gates...>,
    GatedAttention<Scalar, QkNorm<>, Rope<>, Mask, Gates...>>;

/// Without a gate.
template <class Scalar, class B = NoBias, class Mask = Causal>
using GatedQwen3Baseline = GatedQwen3Layer<Scalar, B, Mask>;

/// With a sigmoid gate per head on the SDPA output.
template <class Scalar, class B = NoBias, class Mask = Causal>
using GatedQwen3Headwise = GatedQwen3Layer<Scalar, B, Mask, Gate<at::Sdpa, Headwise, B>>;

/// With a sigmoid gate per channel on the SDPA output.
template <class Scalar, class B = NoBias, class Mask = Causal>
using GatedQwen3Elementwise = GatedQwen3Layer<Scalar, B, Mask, Gate<at::Sdpa, Elementwise, B>>;

/// The layer of these numbers, of one of the types above; its gate and biases are the type's.
template <class Layer, class Mask = Causal>
Layer gated_qwen3_attention(const GatedQwen3Numbers& numbers, const Mask& mask = {}) {
  return Layer({.model_dim = numbers.model_dim,
                .query_heads = numbers.query_heads,
                .kv_heads = numbers.kv_heads,
                .head_dim = numbers.head_dim},
               QkNorm<>{.eps = numbers.eps}, Rope<>{.theta = numbers.theta, .yarn = numbers.yarn},
               mask);
}

/// function(attention), where attention is the layer of these numbers in the one of the types above
/// that has their gate and biases; what it returns must not depend on the type.
template <class Scalar, class Function, class Mask = Causal>
auto visit_gated_qwen3(const GatedQwen3Numbers& numbers, const Function& function,
                       const Mask& mask = {}) {
  const auto with = [&]<class B>(B) {
    switch (numbers.gate) {
      case GatedQwen3Gate::Headwise:
        return function(gated_qwen3_attention<GatedQwen3Headwise<Scalar, B, Mask>>(numbers, mask));
      case GatedQwen3Gate::Elementwise:
        return function(
            gated_qwen3_attention<GatedQwen3Elementwise<Scalar, B, Mask>>(numbers, mask));
      case GatedQwen3Gate::None:
        break;
    }
    return function(gated_qwen3_attention<GatedQwen3Baseline<Scalar, B, Mask>>(numbers, mask));
  };
  return numbers.has_bias ? with(Bias{}) : with(NoBias{});
}

/// parameters = the tensors of a layer of the paper's own models, the gate's rows parted from the
/// query's. The parameters are those of a layer with its gate and biases, else a ShapeError.
template <class Scalar>
void read_parameters(const GatedQwen3Description& found, Parameters<Scalar>& parameters) {
  const auto vector = [&parameters](std::string_view name) {
    const MatrixView<Scalar> row = parameters[name];
    return std::span<Scalar>(row.data(), static_cast<std::size_t>(row.columns()));
  };
  const bool is_gated = found.numbers.gate != GatedQwen3Gate::None;
  const PackedQuery packing = found.numbers.packing();
  read_packed_query<Scalar>(found.q_proj, packing, parameters["q_proj.weight"],
                            is_gated ? parameters["sdpa_gate.weight"] : MatrixView<Scalar>());
  read_matrix<Scalar>(found.k_proj, parameters["k_proj.weight"]);
  read_matrix<Scalar>(found.v_proj, parameters["v_proj.weight"]);
  read_matrix<Scalar>(found.o_proj, parameters["o_proj.weight"]);
  read_vector<Scalar>(found.q_norm, vector("query_norm.weight"));
  read_vector<Scalar>(found.k_norm, vector("key_norm.weight"));
  if (!found.biases) return;
  const std::vector<Scalar> packed = read_values<Scalar>(found.biases->q_proj, {packing.rows()});
  split_query_bias<Scalar>(packing, packed, vector("q_proj.bias"),
                           is_gated ? vector("sdpa_gate.bias") : std::span<Scalar>());
  read_vector<Scalar>(found.biases->k_proj, vector("k_proj.bias"));
  read_vector<Scalar>(found.biases->v_proj, vector("v_proj.bias"));
  read_vector<Scalar>(found.biases->o_proj, vector("o_proj.bias"));
}

/// Opens layer `layer` of a checkpoint of the paper's own models as one of the types above. Every
/// number is read from its configuration and every tensor checked; a FileError names what the layer
/// cannot honour, also a gate or biases other than the type's.
template <class Layer>
OpenedLayer<Layer> open_gated_qwen3(const Checkpoint& checkpoint, Index layer) {
  const GatedQwen3Description found = read_gated_qwen3(checkpoint, layer);
  const Layer attention = gated_qwen3_attention<Layer>(found.numbers);
  const auto rows_of = [&attention](std::string_view name) -> Index {
    for (const TensorInfo& tensor : attention.tensors())
      if (tensor.name == name) return tensor.rows;
    return 0;
  };
  const Index gate_rows = rows_of("sdpa_gate.weight");
  const bool has_bias = rows_of("q_proj.bias") != 0;
  if (gate_rows != found.numbers.packing().gate_rows() || has_bias != found.numbers.has_bias)
    detail::raise<FileError>("checkpoint ", checkpoint.directory().string(), ": its layers have ",
                             found.numbers.packing().gate_rows(), " gate rows and ",
                             found.numbers.has_bias ? "biases" : "no biases",
                             ", the layer type asked for has ", gate_rows, " and ",
                             has_bias ? "biases" : "no biases");
  Parameters<typename Layer::Scalar> parameters(attention);
  read_parameters(found, parameters);
  return {attention, std::move(parameters)};
}

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
