// SPDX-License-Identifier: MIT
// Stages on scores: a cap after the mask, caps that mean nothing, a sink met alone and in a batch.
#include "bug/copying_layer.hpp"

namespace gated_attention::test {
namespace {

constexpr AttendShape one{.query_heads = 1, .kv_heads = 1, .head_dim = 1};

// onnx/onnx#7865; Dao-AILab/flash-attention#1025; emmtrix/emx-onnx-cgen#731: a capped −∞ is −cap, and e^−1 leaks
template <class Scalar, class... Stages>
void expect_nothing_leaks(const AttendBatch<Scalar>& batch, const Stages&... stages) {
  const Attend<Scalar, Stages...> attend(one, stages...);
  const std::vector<Scalar> out = run_attend(attend, batch);
  EXPECT_EQ(out, std::vector<Scalar>{0});
  EXPECT_TRUE(differs(out, {0.2689414}, 1e-3));
}

template <class Scalar>
void check_capped_mask() {
  const Scalar zeros[2] = {}, values[2] = {0, 1}, bias[2] = {0, -infinity<Scalar>};
  const bool seen[2] = {true, false};
  const ScoreView<const Scalar> biases(bias, 1, 1, 2);
  const ScoreView<const bool> masks(seen, 1, 1, 2);
  const Softcap cap{.cap = 1};
  AttendBatch<Scalar> batch{.q = {zeros, 1, 1, 1}, .k = {zeros, 2, 1, 1}, .v = {values, 2, 1, 1}};
  batch.offset = 0;
  expect_nothing_leaks(batch, cap, Causal{});
  expect_nothing_leaks(batch, Causal{}, cap);
  batch.offset = std::nullopt;
  batch.score_bias = {&biases, 1};
  expect_nothing_leaks(batch, ScoreBias{}, cap, Bidirectional{});
  expect_nothing_leaks(batch, cap, ScoreBias{}, Bidirectional{});
  batch.score_bias = {};
  batch.boolean_mask = {&masks, 1};
  expect_nothing_leaks(batch, BooleanMask{}, cap, Bidirectional{});
  expect_nothing_leaks(batch, cap, BooleanMask{}, Bidirectional{});
}

TEST(ScoreBug, ACapLeaksNoMaskedKey) {
  check_capped_mask<float>();
  check_capped_mask<double>();
}

// sgl-project/sgl-kernel-xpu#491; NVIDIA/Megatron-LM#6590
TEST(ScoreBug, ACapChangesTheResultAndIsANumberThatCaps) {
  const std::vector<double> q = {3}, k = {1, 4}, v = {0, 1};
  const AttendBatch<double> batch{
      .q = {q.data(), 1, 1, 1}, .k = {k.data(), 2, 1, 1}, .v = {v.data(), 2, 1, 1}};
  const std::vector<double> plain = run_attend(Attend<double, Causal>(one), batch);
  const std::vector<double> capped =
      run_attend(Attend<double, Causal, Softcap>(one, Softcap{.cap = 5}), batch);
  const double gap = 5 * std::tanh(12 / 5.0) - 5 * std::tanh(3 / 5.0);
  expect_near(capped, {1 / (1 + std::exp(-gap))}, 1e-14);
  expect_near(plain, {1 / (1 + std::exp(-9.0))}, 1e-14);
  EXPECT_TRUE(differs(capped, plain, 1e-3));
  for (const double cap : {0.0, -5.0, infinity<double>, nan<double>})
    EXPECT_THROW((Attend<double, Softcap>(one, Softcap{.cap = cap})), ShapeError) << cap;
}

// ml-explore/mlx#3452: one query with a sink gave another result than the same query in a batch
template <class Scalar>
void check_sink() {
  const Attend<Scalar, SlidingWindow, LearnedSink> attend(one, SlidingWindow{.window = 1});
  const std::vector<Scalar> zeros(34), sink = {0};
  std::vector<Scalar> values(34, Scalar(7));
  values.back() = 2;
  const auto batch = [&](Index first) {
    const Index tokens = 34 - first;
    return AttendBatch<Scalar>{.q = {zeros.data(), tokens, 1, 1},
                               .k = {zeros.data(), tokens, 1, 1},
                               .v = {values.data() + first, tokens, 1, 1},
                               .sinks = sink};
  };
  const std::vector<Scalar> alone = run_attend(attend, batch(33)),
                            all = run_attend(attend, batch(0));
  EXPECT_EQ(alone, std::vector<Scalar>{1});
  EXPECT_TRUE(same_bits(alone, std::vector<Scalar>{all.back()}));
  EXPECT_TRUE(differs(alone, {2}, 0.5));
}

TEST(ScoreBug, ASinkHasTheSameBitsForAQueryAloneAndInABatch) {
  check_sink<float>();
  check_sink<double>();
}

}  // namespace
}  // namespace gated_attention::test
