// SPDX-License-Identifier: MIT
// expect: the first choice of an RmsNorm is weight::Plain, weight::OffsetFromOne or
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   QkNorm<RmsNorm<over::Head>>{.eps = 1e-6});
