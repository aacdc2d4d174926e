// SPDX-License-Identifier: MIT
// expect: two values behind the shape are for the same stage: give one
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const GatedAttention<float, SlidingWindow> layer(
    Shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
    SlidingWindow{.window = 3}, SlidingWindow{.window = 5});
