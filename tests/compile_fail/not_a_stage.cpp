// SPDX-License-Identifier: MIT
// expect: an argument is not a stage: stages are Gate, Normalize, QkNorm, Activate, Scale,
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Sigmoid{}, Causal{});
