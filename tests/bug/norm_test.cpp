// SPDX-License-Identifier: MIT
// RMSNorm: what its weight means, its eps, its range, and that it stands before the rotation.
#include "bug/copying_layer.hpp"
#include "gated_attention/model/qwen3_next.hpp"

namespace gated_attention::test {
namespace {

/// x behind a norm of the values; every norm weight is w.
template <class Scalar, class Norm = RmsNorm<weight::Weightless>>
std::vector<Scalar> normed(const std::vector<Scalar>& x, double eps, Scalar w = 1) {
  const Index width = static_cast<Index>(x.size());
  const auto layer = compose<Scalar>(
      {.model_dim = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1, .value_dim = width},
      Normalize<at::Value, Norm>{.eps = eps});
  Parameters parameters(layer);
  std::copy(x.begin(), x.end(), parameters["v_proj.weight"].data());
  if constexpr (!Norm::weightless) std::fill_n(parameters["value_norm.weight"].data(), width, w);
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, {.tokens = 1, .threads = 1});
  std::vector<Scalar> attention(x.size());
  const Scalar unit = 1;
  Scalar y = 0;
  layer.forward({.x = {&unit, 1, 1}}, weights, workspace, {&y, 1, 1},
                {.attention = {attention.data(), 1, 1, width}});
  return attention;
}

// NeuraLegion/shainet#176; llmman#151; huggingface/transformers#40796; Blaizzy/mlx-vlm#2041: 1 + w or w, once
TEST(NormBug, WeightsAreMultipliedByOnceAsTheTypeSays) {
  using Plain = RmsNorm<weight::Plain>;
  using Offset = RmsNorm<weight::OffsetFromOne>;
  const std::vector<float> x = {3, 4};
  expect_near(normed<float, Offset>(x, 0, 0), {0.8485281, 1.1313708}, 1e-6);
  EXPECT_EQ((normed<float, Plain>(x, 0, 0)), (std::vector<float>{0, 0}));
  EXPECT_TRUE(same_bits((normed<float, Plain>(x, 0, 1)), (normed<float, Offset>(x, 0, 0))));
  expect_near(normed<double, Offset>({3, 4}, 0, 0.5),
              {1.5 * 0.848528137423857, 1.5 * 1.131370849898476}, 1e-12);
}

TEST(NormBug, NewParametersAreNeutralByEitherConvention) {
  const auto layer = compose<float>(
      {.model_dim = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 2},
      Normalize<at::Query>{.eps = 0}, Normalize<at::Key, RmsNorm<weight::OffsetFromOne>>{.eps = 0});
  const Parameters parameters(layer);
  EXPECT_EQ(parameters["query_norm.weight"](0, 0), 1);
  EXPECT_EQ(parameters["key_norm.weight"](0, 0), 0);
}

// tenstorrent/tt-metal#55159; nntrainer#3935; pytorch/pytorch#133085; coremltools#2821; minimind#301
TEST(NormBug, LargeTinyAndZeroRowsKeepTheirRange) {
  expect_near(normed<float>({1e25F, 1e25F, 1e25F, 1e25F}, 1e-6), {1, 1, 1, 1}, 1e-6);
  EXPECT_EQ(normed<float>({0, 0, 0}, 1e-6), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(normed<float>({0, 0, 0}, 0), (std::vector<float>{0, 0, 0}));
  expect_near(normed<float>({1e-4F, 1e-4F}, 1e-6), {0.0995037, 0.0995037}, 1e-6);
  expect_near(normed<float>({1e-25F, 1e-25F}, 0), {1, 1}, 1e-6);
  std::vector<float> wide(10000);
  wide[0] = 100;
  const std::vector<float> y = normed<float>(wide, 1e-6);
  EXPECT_NEAR(y[0], 99.99995, 1e-5);
  EXPECT_EQ(y[9999], 0);
}

// Wenyueh/MinivLLM#82: the eps that was given, not a default
TEST(NormBug, EpsIsTheOneGiven) {
  expect_near(normed<float>({1e-3F}, 1e-6), {0.7071068}, 1e-6);
  expect_near(normed<float>({1e-3F}, 1e-5), {0.3015113}, 1e-6);
  const auto layer = copying_layer<double>({.query_heads = 1, .kv_heads = 1, .head_dim = 2},
                                           QkNorm<>{.eps = 1e-6});
  std::vector<double> log_sum_exp;
  layer.forward({{1e-3, 1e-3, 1e-3, 1e-3, 0, 0}}, {}, &log_sum_exp);
  EXPECT_NEAR(log_sum_exp[0], 2 * 0.5 / std::sqrt(2.0),
              1e-9);  // both normed rows are 0.7071068·(1, 1)
}

// The same: rms_norm_eps of the configuration reaches the layer's norms.
TEST(NormBug, AnOpenedLayerHasTheEpsOfItsConfiguration) {
  const auto eps_of = [](const auto& layer) {
    std::vector<double> eps;
    layer.stages().for_each([&](const auto& stage) {
      if constexpr (requires { stage.eps; }) eps.push_back(stage.eps);
    });
    return eps;
  };
  const Checkpoint checkpoint(std::string(GATED_ATTENTION_TEST_DATA) + "/checkpoints/qwen3_next");
  EXPECT_EQ(eps_of(open_qwen3_next<float>(checkpoint, 3).layer), (std::vector<double>{1e-6, 1e-6}));
  Qwen3NextNumbers numbers = read_qwen3_next(checkpoint, 3).numbers;
  numbers.eps = 3e-4;
  EXPECT_EQ(eps_of(qwen3_next_attention<float>(numbers)), (std::vector<double>{3e-4, 3e-4}));
}

// meta-pytorch/torchtune#2809; vllm-project/vllm-metal#660: D = 2, w = {1, 2}, q = {1, 0}, angle 1
TEST(NormBug, StagesRunInTheOrderWritten) {
  const AttendShape heads{.query_heads = 1, .kv_heads = 1, .head_dim = 2};
  const Normalize<at::Query> norm{.eps = 0};
  const Rope<> rope{.theta = 1e4};
  auto before = copying_layer<double>(heads, norm, rope);
  auto after = copying_layer<double>(heads, rope, norm);
  const std::vector<double> norm_first = {0.7641028, 1.1900197},
                            rope_first = {0.7641028, 2.3800394};
  before.parameters()["query_norm.weight"](0, 1) = 2;
  after.parameters()["query_norm.weight"](0, 1) = 2;
  expect_near(before.query_at({1, 0}, 1), norm_first, 1e-6);
  expect_near(after.query_at({1, 0}, 1), rope_first, 1e-6);
  EXPECT_TRUE(differs(before.query_at({1, 0}, 1), rope_first, 1e-3));
  before.parameters()["query_norm.weight"](0, 1) = 1;
  after.parameters()["query_norm.weight"](0, 1) = 1;
  const std::vector<double> same = before.query_at({1, 0}, 1), too = after.query_at({1, 0}, 1);
  expect_near(same, too, 1e-12);
}

}  // namespace
}  // namespace gated_attention::test
