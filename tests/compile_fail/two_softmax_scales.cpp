// SPDX-License-Identifier: MIT
// expect: two equal stages: remove one
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   SoftmaxScale{.scale = 0.5}, SoftmaxScale{.scale = 1});
