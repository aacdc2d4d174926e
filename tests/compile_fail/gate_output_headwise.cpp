// SPDX-License-Identifier: MIT
// expect: there are no heads behind the output projection: write Gate<at::Output> with
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   Gate<at::Output, Headwise>{});
