// SPDX-License-Identifier: MIT
// expect: attention computes in float or double: GatedAttention<float, ...>, Attend<double, ...>
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const GatedAttention<const float, Causal> layer(Shape{
    .model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16});
