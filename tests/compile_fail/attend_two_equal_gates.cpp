// SPDX-License-Identifier: MIT
// expect: Attend takes the logits of one gate: combine two gates' scores outside
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, Gate<at::Sdpa>, Gate<at::Sdpa>> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
