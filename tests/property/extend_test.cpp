// SPDX-License-Identifier: MIT
// A token's output has the same bits however it came to the cache: in chunks of any length, beside any neighbours, on any
// number of threads, in any kind of cache, behind truncations and forks. Layers that compute in float.
#include "property/trial.hpp"

namespace gated_attention::test {
namespace {

TEST(ExtendBits, OfACausalLayerWithStagesEverywhere) {
  expect_same_bits_in_every_schedule<float, bfloat16, half, std::int8_t>(
      [](const Schedule&) { return causal_layer().layer; });
}

TEST(ExtendBits, OfAWindowWithACapAndASink) {
  expect_same_bits_in_every_schedule<float, half>([](const Schedule& schedule) {
    return compose<float>({.model_dim = 40, .query_heads = 4, .kv_heads = 4, .head_dim = 10},
                          Rope<>{.theta = 1e4}, SoftmaxScale{.scale = 0.5}, Softcap{.cap = 3},
                          SlidingWindow{.window = schedule.window}, LearnedSink{},
                          Gate<at::Sdpa, Headwise>{});
  });
}

TEST(ExtendBits, OfAWindowWithABiasOnScores) {
  expect_same_bits_in_every_schedule<float, bfloat16>([](const Schedule& schedule) {
    return compose<float>({.model_dim = 32, .query_heads = 2, .kv_heads = 2, .head_dim = 16},
                          ScoreBias{}, SlidingWindow{.window = schedule.window}, Gate<at::Key>{});
  });
}

TEST(ExtendBits, OfACausalLayerWithABooleanMask) {
  expect_same_bits_in_every_schedule<float, std::int8_t>([](const Schedule&) {
    return compose<float>({.model_dim = 32, .query_heads = 4, .kv_heads = 1, .head_dim = 16},
                          BooleanMask{}, Gate<at::Query, Headwise>{}, Gate<at::Sdpa, Add, Silu>{});
  });
}

TEST(ExtendBits, OfKeptTokensAndAWindow) {
  expect_same_bits_in_every_schedule<float, bfloat16>([](const Schedule& schedule) {
    return compose<float>({.model_dim = 48, .query_heads = 6, .kv_heads = 2, .head_dim = 8},
                          QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4, .rotary_dim = 4},
                          StreamingWindow{.kept = schedule.kept, .window = schedule.window},
                          Gate<at::Sdpa>{});
  });
}

TEST(ExtendBits, OfKeptTokensAtPositionsInTheCache) {
  expect_same_bits_in_every_schedule<float, half>([](const Schedule& schedule) {
    return compose<float>(
        {.model_dim = 48, .query_heads = 4, .kv_heads = 2, .head_dim = 12},
        Rope<pairing::Interleaved>{.theta = 100}, Alibi{},
        StreamingWindow{
            .kept = schedule.kept, .window = schedule.window, .positions = KeyPositions::in_cache},
        Gate<at::Value, HeadMean>{}, Gate<at::Output>{});
  });
}

TEST(ExtendBits, OfALayerThatSeesItsPrefix) {
  expect_same_bits_in_every_schedule<float, bfloat16>([](const Schedule&) {
    return compose<float>({.model_dim = 48, .query_heads = 6, .kv_heads = 1, .head_dim = 8},
                          Rope<>{.theta = 1e4}, PrefixCausal{},
                          Normalize<at::Sdpa, RmsNorm<weight::Plain, over::Row>>{.eps = 1e-6},
                          Gate<at::Sdpa, SharedHeads>{});
  });
}

// Past 2048 keys the softmax restarts, and threads share a tile.
TEST(ExtendBits, OfLongContexts) {
  expect_same_bits_in_every_schedule<float, bfloat16>(
      [](const Schedule&) {
        return compose<float>({.model_dim = 32, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                              Rope<>{.theta = 1e4}, Gate<at::Sdpa>{});
      },
      {.trials = 100, .most_tokens = 4300});
}

TEST(ExtendBits, OfLongWindowsBehindKeptTokens) {
  expect_same_bits_in_every_schedule<float, std::int8_t>(
      [](const Schedule& schedule) {
        return compose<float>({.model_dim = 32, .query_heads = 2, .kv_heads = 1, .head_dim = 16},
                              Rope<>{.theta = 1e4},
                              StreamingWindow{.kept = schedule.kept,
                                              .window = schedule.window,
                                              .positions = KeyPositions::in_cache},
                              Gate<at::Sdpa>{});
      },
      {.trials = 100,
       .most_tokens = 4300,
       .windows = {1900, 2047, 2048, 2100},
       .kept = {0, 3, 64, 2050}});
}

}  // namespace
}  // namespace gated_attention::test
