// SPDX-License-Identifier: MIT
// expect: attention has one mask: keep one of Causal, CausalTopLeft, SlidingWindow
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, Causal, Bidirectional> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
