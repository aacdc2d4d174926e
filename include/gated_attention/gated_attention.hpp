// SPDX-License-Identifier: MIT
#pragma once

/// Gated softmax-attention layers for CPUs: compose a layer from stages, pack its weights, run it.
///
///     const auto attention = compose<float>({.model_dim = 2048, .query_heads = 16, .kv_heads = 2, .head_dim = 256},
///                                           QkNorm<RmsNorm<weight::OffsetFromOne>>{.eps = 1e-6},
///                                           Rope<>{.theta = 1e7, .rotary_dim = 64}, Causal{}, Gate<at::Sdpa>{});
///
/// Opt-in beside it: paper.hpp (the paper's variants), io/ and model/ (published weights), reference/ (the same layer in
/// double, written plainly), analysis/.
#include "gated_attention/cache/contiguous.hpp"
#include "gated_attention/cache/paged.hpp"
#include "gated_attention/cache/ring.hpp"
#include "gated_attention/core/version.hpp"
#include "gated_attention/layer/attend.hpp"
#include "gated_attention/layer/describe.hpp"
#include "gated_attention/layer/gated_attention.hpp"
#include "gated_attention/layer/initialize.hpp"
