// SPDX-License-Identifier: MIT
// expect: a source of gate logits cannot read rows of the layer's scalar: give it template <class Scalar> static void read
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

struct Squares {
  static constexpr bool is_gate_source = true;
  static constexpr Index features(Index model_dim) { return model_dim; }
};

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Gate<at::Sdpa, Squares>{});
