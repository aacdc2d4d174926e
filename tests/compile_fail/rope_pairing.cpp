// SPDX-License-Identifier: MIT
// expect: Rope pairs channels by pairing::Half or pairing::Interleaved
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   Rope<over::Head>{.theta = 1e4});
