// SPDX-License-Identifier: MIT
// Rope: angles in double, pairings, channels that do not turn, YaRN's attention factor.
#include "bug/copying_layer.hpp"

namespace gated_attention::test {
namespace {

/// q behind the rotation at a position.
template <class Pairing = pairing::Half, class Scalar = double>
std::vector<double> rotated(const Rope<Pairing>& rope, const std::vector<Scalar>& q,
                            Index position) {
  const auto layer = copying_layer<Scalar>(
      {.query_heads = 1, .kv_heads = 1, .head_dim = static_cast<Index>(q.size())}, rope, Causal{});
  return layer.query_at(q, position);
}

/// What queries and keys are multiplied by: one token's score q·k at equal positions is factor².
double attention_factor(const Yarn& yarn) {
  const auto layer = copying_layer<double>({.query_heads = 1, .kv_heads = 1, .head_dim = 4},
                                           Rope<>{.theta = 1e4, .yarn = yarn});
  std::vector<double> log_sum_exp;
  layer.forward({{2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}}, {.lengths = {}, .positions = {7}},
                &log_sum_exp);
  return std::sqrt(log_sum_exp[0]);
}

// vllm-project/vllm#48351, #48623; mlx-lm#1507; TensorRT-LLM#16379; sglang#33558; exllamav3#259
TEST(RopeBug, YarnAttentionFactorIsGivenOrDerivedOnce) {
  const auto yarn = [](double factor) {
    return Yarn{.factor = factor, .original_max_position = 4096};
  };
  EXPECT_NEAR(attention_factor(yarn(64)), 1.4158883, 1e-7);
  EXPECT_NEAR(attention_factor(yarn(128)), 1.4852030, 1e-7);
  EXPECT_GT(std::abs(attention_factor(yarn(128)) - 2.2058), 0.1);
  Yarn given = yarn(64);
  given.attention_factor = 1.0;
  EXPECT_NEAR(attention_factor(given), 1.0, 1e-12);
  Yarn scales = yarn(16);
  scales.mscale = 1;
  scales.mscale_all_dim = 1;
  EXPECT_NEAR(attention_factor(scales), 1.0, 1e-12);
  EXPECT_NEAR(attention_factor(yarn(1)), 1.0, 1e-12);
}

// huggingface/candle#3520; sglang-jax#1472; transformers#29285; vllm#863: D = 128, base 1e4
TEST(RopeBug, AnglesAreComputedInDouble) {
  const auto cosine = [](auto scalar, std::size_t pair, Index position) {
    using Scalar = decltype(scalar);
    std::vector<Scalar> q(128);
    q[pair] = 1;
    return rotated(Rope<>{.theta = 1e4}, q, position)[pair];
  };
  EXPECT_NEAR(cosine(double{}, 1, 1000003), 0.8641496, 1e-7);
  EXPECT_NEAR(cosine(float{}, 1, 1000003), 0.8641496, 2e-6);  // float frequencies: 0.8722112
  EXPECT_NEAR(cosine(double{}, 0, (Index{1} << 24) + 1), 0.9943840, 1e-7);
  EXPECT_NEAR(cosine(float{}, 0, (Index{1} << 24) + 1), 0.9943840,
              2e-6);  // float positions: 0.6263230
}

// vllm-project/vllm-metal#44; karpathy/nanochat#264; nntile/nntile#382
TEST(RopeBug, PairingsAreNotMixed) {
  const std::vector<double> x = {1, 2, 3, 4};
  const Rope<pairing::Interleaved> interleaved{.theta = 1e4};
  const Rope<pairing::Half> half{.theta = 1e4};
  const std::vector<double> neighbours = {-1.142640, 1.922076, 2.959851, 4.029800};
  const std::vector<double> halves = {-1.984111, 1.959901, 2.462378, 4.019800};
  expect_near(rotated(interleaved, x, 1), neighbours, 1e-6);
  expect_near(rotated(half, x, 1), halves, 1e-6);
  EXPECT_TRUE(differs(rotated(half, x, 1), neighbours, 1e-2));
  expect_near(rotated(interleaved, x, 0), {1, 2, 3, 4}, 1e-9);
  expect_near(rotated(half, x, 0), {1, 2, 3, 4}, 1e-9);
}

// AI-Hypercomputer/maxtext#2529; UbiquitousLearning/mllm#518: a quarter of 8 channels
TEST(RopeBug, PartialRotaryLeavesTheTailAlone) {
  const std::vector<double> x = {1, 2, 3, 4, 5, 6, 7, 8};
  expect_near(rotated(Rope<>{.theta = 1e4, .rotary_dim = 2}, x, 1),
              {-1.142640, 1.922076, 3, 4, 5, 6, 7, 8}, 1e-6);
  // the exponent is over rotary_dim 4, so pair 1 turns by 1/100: over 8 it would turn by 1/10
  const std::vector<double> four =
      rotated(Rope<pairing::Interleaved>{.theta = 1e4, .rotary_dim = 4}, x, 1);
  expect_near(four, {-1.142640, 1.922076, 2.959851, 4.029800, 5, 6, 7, 8}, 1e-6);
  const std::vector<double> later =
      rotated(Rope<>{.theta = 1e4, .rotary_dim = 2, .first_dim = 6}, x, 1);
  expect_near(later,
              {1, 2, 3, 4, 5, 6, 7 * 0.5403023 - 8 * 0.8414710, 8 * 0.5403023 + 7 * 0.8414710},
              1e-6);
}

TEST(RopeBug, PositionsAreCountedInEachSequence) {
  // Scores depend on differences of positions alone, up to rounding: bits tell where the count began.
  const auto layer =
      copying_layer<float>({.query_heads = 1, .kv_heads = 1, .head_dim = 2}, Rope<>{.theta = 1e4});
  std::vector<std::vector<float>> tokens;
  std::vector<Index> counted_here, counted_over_all;
  for (int i = 0; i < 40; ++i) {
    const float t = static_cast<float>(i);
    tokens.push_back({std::sin(t), std::cos(3 * t), std::sin(5 * t), std::cos(t), std::sin(7 * t),
                      std::cos(2 * t)});
    counted_here.push_back(i < 25 ? i : i - 25);
    counted_over_all.push_back(i);
  }
  const std::vector<Index> lengths = {25, 0, 15};
  const std::vector<float> counted = layer.forward(tokens, {.lengths = lengths, .positions = {}});
  EXPECT_TRUE(
      same_bits(counted, layer.forward(tokens, {.lengths = lengths, .positions = counted_here})));
  EXPECT_FALSE(same_bits(
      counted, layer.forward(tokens, {.lengths = lengths, .positions = counted_over_all})));
}

}  // namespace
}  // namespace gated_attention::test
