// SPDX-License-Identifier: MIT
// expect: success
// The correct neighbours of the misuses beside this file.
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, ProjectionBias<at::Query>{},
    QkNorm<RmsNorm<weight::OffsetFromOne>>{.eps = 1e-6}, Rope<>{.theta = 1e4, .rotary_dim = 8},
    SlidingWindow{.window = 512}, Gate<at::Sdpa>{}, Gate<at::Sdpa, Headwise, Bias>{},
    Activate<at::Value, Silu>{}, Scale<at::Query>{.factor = 2});
const GatedAttention<double, Rope<>, Causal> named(
    Shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Rope<>{.theta = 1e4});
constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
const auto fixed = compose<float>(Static<shape>{}, Causal{}, Gate<at::Output, Bias>{});
const Attend<float, Gate<at::Sdpa>> attend(AttendShape{
    .query_heads = 4, .kv_heads = 2, .head_dim = 16});
