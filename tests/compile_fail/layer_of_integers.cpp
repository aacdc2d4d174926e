// SPDX-License-Identifier: MIT
// expect: a layer computes in float or double: GatedAttention<float, ...>
#include "gated_attention/gated_attention.hpp"

namespace {

using namespace gated_attention;

const auto layer =
    compose<int>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Causal{});

}  // namespace
