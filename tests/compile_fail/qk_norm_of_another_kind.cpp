// SPDX-License-Identifier: MIT
// expect: a norm is RmsNorm with its choices
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   QkNorm<weight::OffsetFromOne>{.eps = 1e-6});
