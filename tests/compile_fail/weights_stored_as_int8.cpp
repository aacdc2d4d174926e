// SPDX-License-Identifier: MIT
// expect: weights are stored as the layer's scalar, float, bfloat16 or half
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Causal{});
const auto weights = pack(layer, Parameters(layer), stored_as<std::int8_t>);
