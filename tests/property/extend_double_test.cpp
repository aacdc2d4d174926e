// SPDX-License-Identifier: MIT
// extend_test.cpp for layers that compute in double.
#include "property/trial.hpp"

namespace gated_attention::test {
namespace {

TEST(ExtendBitsInDouble, OfAWindowWithARowNorm) {
  expect_same_bits_in_every_schedule<double, float, bfloat16, half, std::int8_t>(
      [](const Schedule& schedule) {
        return compose<double>(
            {.model_dim = 70, .query_heads = 4, .kv_heads = 4, .head_dim = 9},
            SlidingWindow{.window = schedule.window},
            Rope<pairing::Interleaved>{.theta = 1e4, .rotary_dim = 8}, Gate<at::Sdpa, Constant>{},
            Normalize<at::Sdpa, RmsNorm<weight::Plain, over::Row>>{.eps = 1e-6},
            Gate<at::Sdpa, SharedHeads, Add, Silu>{}, Scale<at::Key>{.factor = 1.5});
      });
}

TEST(ExtendBitsInDouble, OfACausalLayerWithSlopes) {
  expect_same_bits_in_every_schedule<double, bfloat16>([](const Schedule&) {
    return compose<double>({.model_dim = 40, .query_heads = 5, .kv_heads = 1, .head_dim = 8},
                           Alibi{}, QkNorm<>{.eps = 1e-6}, Gate<at::Sdpa>{});
  });
}

TEST(ExtendBitsInDouble, OfLongContexts) {
  expect_same_bits_in_every_schedule<double, float>(
      [](const Schedule& schedule) {
        return compose<double>({.model_dim = 32, .query_heads = 2, .kv_heads = 1, .head_dim = 16},
                               Rope<>{.theta = 1e4},
                               StreamingWindow{.kept = schedule.kept, .window = schedule.window},
                               Gate<at::Sdpa, Headwise>{});
      },
      {.trials = 100, .most_tokens = 2700, .windows = {130, 2100}, .kept = {0, 3, 130}});
}

}  // namespace
}  // namespace gated_attention::test
