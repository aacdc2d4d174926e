// SPDX-License-Identifier: MIT
// expect: a cache stores the layer's scalar, float, bfloat16, half or std::int8_t
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Causal{});
ContiguousCache cache(layer, {.tokens = 64}, stored_as<double>);
