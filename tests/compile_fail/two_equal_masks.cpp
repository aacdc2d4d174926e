// SPDX-License-Identifier: MIT
// expect: a layer has one mask: keep one of Causal, CausalTopLeft, SlidingWindow
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Causal{}, Causal{});
