// SPDX-License-Identifier: MIT
// Masks: rows that see nothing, numbers behind a mask, where a mask is anchored, how wide a window is.
#include "bug/copying_layer.hpp"

namespace gated_attention::test {
namespace {

constexpr AttendShape one{.query_heads = 1, .kv_heads = 1, .head_dim = 1};

/// T = 2, S = 2, V = {3, 5}; row 0 sees key 1 alone and row 1, which stands behind the last key, nothing.
template <class... Stages>
std::vector<float> row_that_sees_nothing(const std::vector<float>& logits,
                                         std::vector<float>* log_sum_exp = nullptr) {
  const Attend<float, SlidingWindow, Stages...> attend(one, SlidingWindow{.window = 1});
  const std::vector<float> zeros(2), values = {3, 5};
  std::vector<float> sinks;
  if constexpr ((... || std::is_same_v<Stages, LearnedSink>)) sinks = {2};
  HeadsView<const float> gate;
  if (!logits.empty()) gate = {logits.data(), 2, 1, 1};
  return run_attend(attend,
                    {.q = {zeros.data(), 2, 1, 1},
                     .k = {zeros.data(), 2, 1, 1},
                     .v = {values.data(), 2, 1, 1},
                     .gate_logits = gate,
                     .offset = 1,
                     .sinks = sinks},
                    log_sum_exp);
}

// pytorch/pytorch#103749, #103963; ml-explore/mlx#2608; robertknight/rten#1321: NaN
TEST(MaskBug, FullyMaskedRowIsZero) {
  std::vector<float> log_sum_exp;
  const std::vector<float> out = row_that_sees_nothing<>({}, &log_sum_exp);
  EXPECT_EQ(out[0], 5);
  EXPECT_EQ(out[1], 0);
  EXPECT_FALSE(std::signbit(out[1]));
  EXPECT_EQ(log_sum_exp[0], 0);
  EXPECT_EQ(log_sum_exp[1], -infinity<float>);
}

TEST(MaskBug, FullyMaskedRowIsZeroBesideASinkToo) {
  std::vector<float> log_sum_exp;
  const std::vector<float> out = row_that_sees_nothing<LearnedSink>({}, &log_sum_exp);
  EXPECT_NEAR(out[0], 5 / (1 + std::exp(2.0)), 1e-6);
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(log_sum_exp[1], -infinity<float>);
  // and through a gate behind it
  EXPECT_EQ((row_that_sees_nothing<LearnedSink, Gate<at::Sdpa>>({2, 2})[1]), 0);
}

TEST(MaskBug, FullyMaskedRowGoesThroughItsGate) {
  EXPECT_EQ(row_that_sees_nothing<Gate<at::Sdpa>>({2, 2})[1], 0);
  const std::vector<float> added = row_that_sees_nothing<Gate<at::Sdpa, Add, Silu>>({2, 2});
  expect_near(added, {5 + 1.7615942, 1.7615942}, 1e-6);
}

TEST(MaskBug, RowsBeforeTheFirstKeyAndWithoutAnyKeyAreZero) {
  EXPECT_EQ(attend_with_equal_logits<double>(Causal{}, 3, {}), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(attend_with_equal_logits<double>(Bidirectional{}, 2, {}), (std::vector<double>{0, 0}));
  EXPECT_EQ(attend_with_equal_logits<double>(Causal{}, 3, {4, 6}, -2),
            (std::vector<double>{0, 0, 4}));
}

// pytorch/pytorch#101967: K = {1, NaN}, V = {7, NaN}, key 1 masked for both rows
TEST(MaskBug, NanInAMaskedKeyReachesNoRow) {
  const Attend<float, Causal> attend({.query_heads = 2, .kv_heads = 1, .head_dim = 1});
  const std::vector<float> q = {1, 2};
  for (const float bad : {nan<float>, infinity<float>, -infinity<float>}) {
    const std::vector<float> k = {1, bad}, v = {7, bad};
    const std::vector<float> out = run_attend(attend, {.q = {q.data(), 1, 2, 1},
                                                       .k = {k.data(), 2, 1, 1},
                                                       .v = {v.data(), 2, 1, 1},
                                                       .offset = 0});
    EXPECT_EQ(out, (std::vector<float>{7, 7}));
  }
}

TEST(MaskBug, NanInALaterTokenReachesItsOwnRowAlone) {
  const auto layer = copying_layer<float>(one, Causal{});
  const std::vector<float> y = layer.forward({{1, 1, 7}, {1, nan<float>, nan<float>}});
  EXPECT_EQ(y[0], 7);
  EXPECT_TRUE(std::isnan(y[1]));
}

// flashinfer-ai/flashinfer#4267: a finite "minus infinity" hides rows whose logits all lie below it
TEST(MaskBug, VeryNegativeLogitsAreNotMasked) {
  // The logits themselves round: 8 ulp of 60000 in float, times the slope of the softmax.
  const auto run = [](auto scalar) {
    using Scalar = decltype(scalar);
    const Attend<Scalar, Bidirectional> attend(one);
    const std::vector<Scalar> q = {-1}, k = {60000, 60001}, v = {1, 0};
    return run_attend(
        attend, {.q = {q.data(), 1, 1, 1}, .k = {k.data(), 2, 1, 1}, .v = {v.data(), 2, 1, 1}});
  };
  expect_near(run(float{}), {0.7310586}, 2e-3);
  expect_near(run(double{}), {0.7310585786300049}, 1e-10);
}

// flash-attention#282, #517; ml-explore/mlx#2835; microsoft/onnxruntime#29020; pytorch/executorch#22426
TEST(MaskBug, CausalIsAnchoredAtTheLastKey) {
  const std::vector<float> out = attend_with_equal_logits<float>(Causal{}, 2, {0, 1, 2, 3, 4});
  expect_near(out, {1.5, 2.0}, 1e-6);
  EXPECT_TRUE(differs(out, {0, 0.5}, 1e-3));
}

// flash-attention#1778: more queries than keys
TEST(MaskBug, QueriesBeforeTheFirstKeySeeNothing) {
  expect_near(attend_with_equal_logits<float>(Causal{}, 5, {1, 3}), {0, 0, 0, 1, 2}, 1e-6);
}

// huggingface/transformers#39408; microsoft/onnxruntime#25927; ml-explore/mlx-lm#390; zml/zml#763; apple/axlearn#1009
TEST(MaskBug, WindowCountsTheCurrentToken) {
  const std::vector<float> alone =
      attend_with_equal_logits<float>(SlidingWindow{.window = 3}, 5, {0, 1, 2, 3, 4});
  expect_near(alone, {0, 0.5, 1, 2, 3}, 1e-6);
  const auto layer = copying_layer<float>(one, SlidingWindow{.window = 3});
  const std::vector<float> y =
      layer.forward({{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}, {0, 0, 4}});
  expect_near(y, {0, 0.5, 1, 2, 3}, 1e-6);
  EXPECT_TRUE(differs(y, {0, 0.5, 1, 1.5, 2.5}, 1e-3));
}

}  // namespace
}  // namespace gated_attention::test
