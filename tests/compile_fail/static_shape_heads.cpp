// SPDX-License-Identifier: MIT
// expect: query_heads must be a multiple of kv_heads: each kv head serves query_heads /
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

constexpr Shape shape{.model_dim = 64, .query_heads = 6, .kv_heads = 4, .head_dim = 16};
const auto layer = compose<float>(Static<shape>{}, Causal{});
