// SPDX-License-Identifier: MIT
// expect: attention is computed in float or double: Attend<float, ...>
#include "gated_attention/gated_attention.hpp"

namespace {

using namespace gated_attention;

const Attend<int, Causal> attend(AttendShape{.query_heads = 4, .kv_heads = 2, .head_dim = 16});

}  // namespace
