// SPDX-License-Identifier: MIT
// expect: a layer has one mask: keep one of
#include "gated_attention/gated_attention.hpp"

namespace {

using namespace gated_attention;

const Attend<float, Causal, Bidirectional> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});

}  // namespace
