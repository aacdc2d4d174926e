// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gated_attention/io/checkpoint.hpp"
#include "gated_attention/model/gated_qwen3.hpp"
#include "gated_attention/model/qwen3_next.hpp"
#include "unit/layer_support.hpp"

// Checkpoints opened as a user opens them, against what the published model answered: every layer on
// the hidden states that reached it.

namespace gated_attention {
namespace {

/// Every recorded layer, opened by open(checkpoint, layer), gives its recorded output.
template <class Open>
void expect_recorded_outputs(const std::string& name, const std::vector<Index>& numbers,
                             double tolerance, const Open& open) {
  const Checkpoint checkpoint(GATED_ATTENTION_TEST_DATA "/checkpoints/" + name);
  const auto expected = ExpectedOutputs::beside(checkpoint);
  ASSERT_TRUE(expected.has_value());
  ASSERT_EQ(expected->layers(), numbers);
  for (const Index number : numbers) {
    const auto opened = open(checkpoint, number);
    using Scalar = typename decltype(opened.layer)::Scalar;
    const Index tokens = expected->input(number).shape[0], width = opened.layer.shape().model_dim;
    const std::vector<Scalar> x = read_values<Scalar>(expected->input(number), {tokens, width});
    std::vector<Scalar> y(x.size(), std::numeric_limits<Scalar>::quiet_NaN());
    const auto weights = pack(opened.layer, opened.parameters);
    Workspace workspace(opened.layer, {.tokens = tokens, .threads = 1});
    opened.layer.forward({.x = MatrixView<const Scalar>(x.data(), tokens, width)}, weights,
                         workspace, MatrixView<Scalar>(y.data(), tokens, width));
    const auto recorded = read_values<double>(expected->output(number), {tokens, width});
    EXPECT_LE(layers::relative_error(y, recorded), tolerance) << name << ", layer " << number;
  }
}

// A float library may be off by 4 times what a float32 run of the published code is off by.

TEST(Checkpoints, OfficialBaselineGivesItsRecordedOutputs) {
  expect_recorded_outputs("official_baseline", {0, 1, 2}, 1e-12,
                          open_gated_qwen3<GatedQwen3Baseline<double>>);
  expect_recorded_outputs("official_baseline", {0, 1, 2}, 4 * 3.5e-7,
                          open_gated_qwen3<GatedQwen3Baseline<float>>);
}

TEST(Checkpoints, OfficialHeadwiseGivesItsRecordedOutputs) {
  expect_recorded_outputs("official_headwise", {0, 1, 2}, 1e-12,
                          open_gated_qwen3<GatedQwen3Headwise<double>>);
  expect_recorded_outputs("official_headwise", {0, 1, 2}, 4 * 4.0e-7,
                          open_gated_qwen3<GatedQwen3Headwise<float>>);
}

TEST(Checkpoints, OfficialElementwiseGivesItsRecordedOutputs) {
  expect_recorded_outputs("official_elementwise", {0, 1, 2}, 1e-12,
                          open_gated_qwen3<GatedQwen3Elementwise<double, Bias>>);
  expect_recorded_outputs("official_elementwise", {0, 1, 2}, 4 * 3.5e-7,
                          open_gated_qwen3<GatedQwen3Elementwise<float, Bias>>);
}

TEST(Checkpoints, Qwen3NextGivesItsRecordedOutputs) {
  expect_recorded_outputs("qwen3_next", {3}, 1e-12, open_qwen3_next<double>);
  expect_recorded_outputs("qwen3_next", {3}, 4 * 6.5e-7, open_qwen3_next<float>);
  expect_recorded_outputs("qwen3_next_bf16", {3}, 1e-12, open_qwen3_next<double>);
  expect_recorded_outputs("qwen3_next_bf16", {3}, 4 * 2.9e-7, open_qwen3_next<float>);
}

}  // namespace
}  // namespace gated_attention
