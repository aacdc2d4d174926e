// SPDX-License-Identifier: MIT
// expect: a stage of this layer has numbers and was given none: pass its value behind the
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const GatedAttention<float, Rope<>, Causal> layer(Shape{
    .model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16});
