// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/gated_attention.hpp"

/// The layers of Qiu et al. 2025, "Gated Attention for Large Language Models" (arXiv 2505.06708): one function for each
/// attention row of Tables 1, 3 and 4, with the paper's numbers. A shape of one's own may be given instead.
///
/// All share the base layer of Table 1 row 1: QK norm before RoPE of base 10000, causal. Gates at query and key stand
/// directly behind their projection, before the norm, which the paper leaves open.
namespace gated_attention::paper {

/// 15A2B, the mixture of Tables 1, 3 and 4 (24 layers).
inline constexpr Shape shape_15a2b{
    .model_dim = 2048, .query_heads = 32, .kv_heads = 4, .head_dim = 128};
/// The same with 8 kv heads, Table 1 row 2, and with 48 query heads, row 3.
inline constexpr Shape shape_15a2b_k8{
    .model_dim = 2048, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
inline constexpr Shape shape_15a2b_q48{
    .model_dim = 2048, .query_heads = 48, .kv_heads = 4, .head_dim = 128};
/// The dense 1.7B models of Table 2 with 28 and with 48 layers.
inline constexpr Shape shape_1_7b_28_layers{
    .model_dim = 2048, .query_heads = 16, .kv_heads = 8, .head_dim = 128};
inline constexpr Shape shape_1_7b_48_layers{
    .model_dim = 1536, .query_heads = 16, .kv_heads = 8, .head_dim = 128};

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The base layer with further stages.
template <class Scalar, class... Stages>
auto with(const Shape& shape, const Stages&... stages) {
  return compose<Scalar>(shape, stages..., QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4}, Causal{});
}

/// Table 1 row 1, Table 3 row 1, Table 4 row 1; with shape_15a2b_k8 Table 1 row 2, with shape_15a2b_q48 row 3.
template <class Scalar = float>
auto baseline(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape);
}

/// Table 1 row 2: k = 8.
template <class Scalar = float>
auto more_kv_heads() {
  return baseline<Scalar>(shape_15a2b_k8);
}

/// Table 1 row 3: q = 48.
template <class Scalar = float>
auto more_query_heads() {
  return baseline<Scalar>(shape_15a2b_q48);
}

/// Table 1 row 5, Table 3 row 2, Table 4 row 2: elementwise sigmoid at G1, the paper's best.
template <class Scalar = float>
auto sdpa_elementwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa>{});
}

/// Table 1 row 6, Table 3 row 3, Table 4 row 5: elementwise sigmoid at G2.
template <class Scalar = float>
auto value_elementwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Value>{});
}

/// Table 1 row 7: elementwise sigmoid at G3.
template <class Scalar = float>
auto key_elementwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Key>{});
}

/// Table 1 row 8: elementwise sigmoid at G4.
template <class Scalar = float>
auto query_elementwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Query>{});
}

/// Table 1 row 9: elementwise sigmoid at G5.
template <class Scalar = float>
auto output_elementwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Output>{});
}

/// Table 1 row 10, Table 4 row 3: headwise sigmoid at G1.
template <class Scalar = float>
auto sdpa_headwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, Headwise>{});
}

/// Table 1 row 11: headwise sigmoid at G2.
template <class Scalar = float>
auto value_headwise(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Value, Headwise>{});
}

/// Table 1 row 12, Table 4 row 4: G1, full-width scores averaged over the heads.
template <class Scalar = float>
auto sdpa_head_shared(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, HeadMean>{});
}

/// Table 1 row 13: G2, full-width scores averaged over the heads.
template <class Scalar = float>
auto value_head_shared(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Value, HeadMean>{});
}

/// Table 1 row 14, Table 3 row 4: additive SiLU at G1.
template <class Scalar = float>
auto sdpa_additive_silu(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, Add, Silu>{});
}

/// Table 1 row 15: multiplicative SiLU at G1.
template <class Scalar = float>
auto sdpa_silu_gate(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, Silu>{});
}

/// Table 3 row 5: "SDPA GroupNorm", an RMSNorm of each head's SDPA output.
template <class Scalar = float>
auto sdpa_norm(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Normalize<at::Sdpa>{.eps = 1e-6});
}

/// Table 3 row 6: SiLU of the SDPA output, no gate.
template <class Scalar = float>
auto sdpa_silu(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Activate<at::Sdpa, Silu>{});
}

/// Table 3 row 7: additive at G1 without activation.
template <class Scalar = float>
auto sdpa_additive_identity(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, Add, Identity>{});
}

/// Table 4 row 6: sigmoid of learned logits that do not read the input.
template <class Scalar = float>
auto sdpa_input_independent(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, Constant>{});
}

/// Table 4 row 7: non-sparse sigmoid 0.5 + 0.5·σ at G1.
template <class Scalar = float>
auto sdpa_non_sparse_sigmoid(const Shape& shape = shape_15a2b) {
  return with<Scalar>(shape, Gate<at::Sdpa, NonSparseSigmoid>{});
}

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention::paper
