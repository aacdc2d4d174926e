// SPDX-License-Identifier: MIT
// expect: Activate takes an activation: Sigmoid, Silu, ..., or a type with value and
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   Activate<at::Sdpa, Multiply>{});
