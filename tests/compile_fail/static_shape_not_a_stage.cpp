// SPDX-License-Identifier: MIT
// expect: an argument is not a stage
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
const auto layer = compose<float>(Static<shape>{}, Sigmoid{});
