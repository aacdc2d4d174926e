// SPDX-License-Identifier: MIT
// expect: a stage of this layer has numbers and was given none
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, StreamingWindow> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
