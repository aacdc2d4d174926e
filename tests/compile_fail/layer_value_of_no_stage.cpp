// SPDX-License-Identifier: MIT
// expect: a value behind the shape is not one of this layer's stages: name its type among the
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const GatedAttention<float, Rope<>> layer(
    Shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Rope<>{.theta = 1e4},
    QkNorm<>{.eps = 1e-6});
