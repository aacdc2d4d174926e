// SPDX-License-Identifier: MIT
// expect: not one of this layer's stages
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
const GatedAttention<float, Static<shape>, Causal> layer(shape);
