// SPDX-License-Identifier: MIT
// expect: ProjectionBias names projections: any of at::Query, at::Key, at::Value, at::Output
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   ProjectionBias<at::Query, at::Sdpa>{});
