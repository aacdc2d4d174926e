// SPDX-License-Identifier: MIT
// expect: two equal stages: remove one
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, ScoreBias, ScoreBias> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
