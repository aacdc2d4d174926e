// SPDX-License-Identifier: MIT
// expect: HeadBias is one bias per head of an Elementwise gate with a score per head: write
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   Gate<at::Output, HeadBias>{});
