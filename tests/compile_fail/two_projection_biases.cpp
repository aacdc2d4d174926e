// SPDX-License-Identifier: MIT
// expect: name all biased projections in one stage: ProjectionBias<at::Query, at::Key, ...>
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   ProjectionBias<at::Query>{}, ProjectionBias<at::Key>{});
