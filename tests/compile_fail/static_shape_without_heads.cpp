// SPDX-License-Identifier: MIT
// expect: model_dim, query_heads, kv_heads and head_dim of a static shape are at least 1
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 0, .head_dim = 16};
const auto layer = compose<float>(Static<shape>{}, Causal{});
