// SPDX-License-Identifier: MIT
// expect: two equal stages: remove one (QkNorm is Normalize<at::Query> and
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   QkNorm<>{.eps = 1e-6}, Normalize<at::Query>{.eps = 1e-5});
