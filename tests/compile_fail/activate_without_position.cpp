// SPDX-License-Identifier: MIT
// expect: an activation names its position first: Activate<at::Sdpa, Silu>
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Activate<Silu, at::Sdpa>{});
