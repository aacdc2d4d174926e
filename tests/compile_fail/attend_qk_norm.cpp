// SPDX-License-Identifier: MIT
// expect: Attend has no projections: give it one mask and stages at::Sdpa
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, QkNorm<>> attend(AttendShape{.query_heads = 4, .kv_heads = 2, .head_dim = 16},
                                     QkNorm<>{.eps = 1e-6});
