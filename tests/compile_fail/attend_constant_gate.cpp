// SPDX-License-Identifier: MIT
// expect: Attend has no parameters: its gates are FromHidden with NoBias and no HeadMean (add
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, Gate<at::Sdpa, Constant>> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
