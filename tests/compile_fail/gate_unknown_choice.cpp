// SPDX-License-Identifier: MIT
// expect: a choice of this gate names no axis and is no activation
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   Gate<at::Sdpa, weight::Plain>{});
