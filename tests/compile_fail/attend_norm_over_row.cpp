// SPDX-License-Identifier: MIT
// expect: Attend has no parameters: its gates are FromHidden with NoBias and no HeadMean (add
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const Attend<float, Normalize<at::Sdpa, RmsNorm<weight::Weightless, over::Row>>> attend(
    AttendShape{.query_heads = 4, .kv_heads = 2, .head_dim = 16},
    Normalize<at::Sdpa, RmsNorm<weight::Weightless, over::Row>>{.eps = 1e-6});
