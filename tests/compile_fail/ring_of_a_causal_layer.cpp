// SPDX-License-Identifier: MIT
// expect: a RingCache forgets keys: it needs a layer with SlidingWindow or StreamingWindow; use ContiguousCache or PagedCache
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Causal{});
RingCache cache(layer, {.tokens = 64});
