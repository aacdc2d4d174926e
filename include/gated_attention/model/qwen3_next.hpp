// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "gated_attention/gated_attention.hpp"
#include "gated_attention/model/opened_layer.hpp"
#include "gated_attention/model/qwen3_next_config.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The softmax-attention layer of Qwen3-Next: QK norm by 1 + w, rotary embedding of the first quarter of the head, causal,
/// an elementwise sigmoid gate on the SDPA output.
template <class Scalar>
using Qwen3NextAttention =
    GatedAttention<Scalar, QkNorm<RmsNorm<weight::OffsetFromOne>>, Rope<>, Causal, Gate<at::Sdpa>>;

/// The layer of these numbers.
template <class Scalar>
Qwen3NextAttention<Scalar> qwen3_next_attention(const Qwen3NextNumbers& numbers) {
  return Qwen3NextAttention<Scalar>(
      {.model_dim = numbers.model_dim,
       .query_heads = numbers.query_heads,
       .kv_heads = numbers.kv_heads,
       .head_dim = numbers.head_dim},
      QkNorm<RmsNorm<weight::OffsetFromOne>>{.eps = numbers.eps},
      Rope<>{.theta = numbers.theta, .rotary_dim = numbers.rotary_dim});
}

/// Opens layer `layer` of a qwen3_next checkpoint. Every number is read from its configuration and every tensor checked; a
/// FileError names what the layer cannot honour.
template <class Scalar>
OpenedLayer<Qwen3NextAttention<Scalar>> open_qwen3_next(const Checkpoint& checkpoint, Index layer) {
  const Qwen3NextDescription found = read_qwen3_next(checkpoint, layer);
  const Qwen3NextAttention<Scalar> attention = qwen3_next_attention<Scalar>(found.numbers);
  Parameters<Scalar> parameters(attention);
  read_packed_query<Scalar>(found.q_proj, found.packing(), parameters["q_proj.weight"],
                            parameters["sdpa_gate.weight"]);
  read_matrix<Scalar>(found.k_proj, parameters["k_proj.weight"]);
  read_matrix<Scalar>(found.v_proj, parameters["v_proj.weight"]);
  read_matrix<Scalar>(found.o_proj, parameters["o_proj.weight"]);
  const auto vector = [](const MatrixView<Scalar>& row) {
    return std::span<Scalar>(row.data(), static_cast<std::size_t>(row.columns()));
  };
  read_vector<Scalar>(found.q_norm, vector(parameters["query_norm.weight"]));
  read_vector<Scalar>(found.k_norm, vector(parameters["key_norm.weight"]));
  return {attention, std::move(parameters)};
}

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
