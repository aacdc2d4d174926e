// SPDX-License-Identifier: MIT
// expect: Attend has no projections: give it one mask and stages at::Sdpa
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, ProjectionBias<at::Query>> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
