// SPDX-License-Identifier: MIT
// expect: this stage has a number without a default: write it by name
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, StreamingWindow{.kept = 4});
