// SPDX-License-Identifier: MIT
#include "gated_attention/layer/attend.hpp"
#include "unit/score_support.hpp"

// Attention over parts of the keys, merged.

namespace gated_attention::scores {
namespace {

/// Where a partial call leaves its rows.
template <class Scalar>
struct Part {
  std::vector<Scalar> maximum, sum, output;
  PartialAttention<Scalar> view;

  Part(Index tokens, Index heads, Index width)
      : maximum(at(tokens * heads), std::numeric_limits<Scalar>::quiet_NaN()),
        sum(maximum),
        output(at(tokens * heads * width), std::numeric_limits<Scalar>::quiet_NaN()),
        view{{maximum.data(), tokens, heads},
             {sum.data(), tokens, heads},
             {output.data(), tokens, heads, width}} {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
};

/// One sequence of many keys.
template <class Scalar>
struct Long {
  static constexpr Index tokens = 5, keys = 2 * restart_keys + 300, heads = 2, dim = 4, width = 3;
  std::vector<Scalar> q, k, v, logits, sinks, bias;
  ScoreView<const Scalar> bias_view;

  Long() {
    std::mt19937_64 engine(5);
    q = Problem<Scalar>::numbers(tokens * heads * dim, engine);
    k = Problem<Scalar>::numbers(keys * dim, engine);
    v = Problem<Scalar>::numbers(keys * width, engine);
    logits = Problem<Scalar>::numbers(tokens * heads, engine);
    sinks = Problem<Scalar>::numbers(heads, engine);
    bias = Problem<Scalar>::numbers(keys, engine);
    for (Index s = 100; s < 2000; ++s) bias[at(s)] = -std::numeric_limits<Scalar>::infinity();
    bias_view = {bias.data(), 1, 1, keys};
  }

  AttendBatch<Scalar> batch(Index first, Index last) const {
    return {.q = {q.data(), tokens, heads, dim},
            .k = {k.data() + first * dim, last - first, 1, dim},
            .v = {v.data() + first * width, last - first, 1, width},
            .gate_logits = {logits.data(), tokens, heads, 1},
            .offset = keys - tokens - 1,
            .first_key = first,
            .sinks = sinks};
  }
};

/// One call against the parts between the cuts, merged; `same`: to the bit, as where the later parts
/// each lie within one run of restart_keys keys.
template <class Scalar, class Layer>
void compare(const Layer& layer, const Long<Scalar>& data, std::vector<Index> cuts, bool same,
             bool biased) {
  using L = Long<Scalar>;
  AttendWorkspace workspace(layer, {.tokens = L::tokens, .keys = L::keys, .threads = 1});
  const auto batch = [&](Index first, Index last, const ScoreView<const Scalar>& bias) {
    AttendBatch<Scalar> some = data.batch(first, last);
    if (biased) some.score_bias = {&bias, 1};
    return some;
  };
  std::vector<Scalar> whole(at(L::tokens * L::heads * L::width)), merged = whole;
  std::vector<Scalar> whole_lse(at(L::tokens * L::heads)), merged_lse = whole_lse;
  const auto heads = [](std::vector<Scalar>& to) {
    return HeadsView<Scalar>(to.data(), L::tokens, L::heads, L::width);
  };
  const auto rows = [](std::vector<Scalar>& to) {
    return MatrixView<Scalar>(to.data(), L::tokens, L::heads);
  };
  const AttendBatch<Scalar> all = batch(0, L::keys, data.bias_view);
  layer(all, workspace, heads(whole), {.log_sum_exp = rows(whole_lse)});
  Part<Scalar> total(L::tokens, L::heads, L::width);
  cuts.push_back(L::keys);
  Index first = 0;
  for (const Index cut : cuts) {
    // The views of scores count from key 0, and end with the part.
    const ScoreView<const Scalar> bias(data.bias.data(), 1, 1, cut);
    Part<Scalar> part(L::tokens, L::heads, L::width);
    layer.partial(batch(first, cut, bias), workspace, first == 0 ? total.view : part.view);
    if (first > 0) merge(total.view, part.view);
    first = cut;
  }
  for (std::size_t row = 0; row < total.sum.size(); ++row) {
    const double lse = std::log(2.0) * static_cast<double>(total.maximum[row]) +
                       std::log(static_cast<double>(total.sum[row]));
    EXPECT_NEAR(lse, static_cast<double>(whole_lse[row]), 10 * tolerance<Scalar>());
  }
  AttendBatch<Scalar> epilogue;
  epilogue.gate_logits = all.gate_logits;
  epilogue.sinks = all.sinks;
  layer.finish(total.view, epilogue, workspace, heads(merged), {.log_sum_exp = rows(merged_lse)});
  if (same) {
    EXPECT_EQ(whole, merged);
    EXPECT_EQ(whole_lse, merged_lse);
  }
  EXPECT_LE(relative_error(merged, {whole.begin(), whole.end()}), tolerance<Scalar>());
  EXPECT_LE(relative_error(merged_lse, {whole_lse.begin(), whole_lse.end()}), tolerance<Scalar>());
}

template <class Scalar>
void check_parts() {
  const Long<Scalar> data;
  const AttendShape shape{2, 1, 4, 3};
  const Attend<Scalar, Causal, Gate<at::Sdpa, Headwise>, LearnedSink> plain(shape);
  const Attend<Scalar, SlidingWindow, Gate<at::Sdpa, Headwise>, LearnedSink, Alibi, ScoreBias>
      staged(shape, SlidingWindow{.window = 3000}, Alibi{});
  const std::vector<std::vector<Index>> at_restarts = {
      {}, {2 * restart_keys}, {restart_keys, 2 * restart_keys}};
  for (const auto& cuts : at_restarts) {
    compare(plain, data, cuts, true, false);
    compare(staged, data, cuts, true, true);
  }
  const std::vector<std::vector<Index>> elsewhere = {{1},
                                                     {64},
                                                     {restart_keys - 1},
                                                     {100, 164, 3000},
                                                     {Long<Scalar>::keys - 1},
                                                     {37, 2 * restart_keys + 1}};
  for (const auto& cuts : elsewhere) {
    compare(plain, data, cuts, false, false);
    compare(staged, data, cuts, false, true);
  }
}

TEST(Partial, PartsMergedAtRestartsHaveTheBitsOfOneCallInFloat) {
  check_parts<float>();
}
TEST(Partial, PartsMergedAtRestartsHaveTheBitsOfOneCallInDouble) {
  check_parts<double>();
}

TEST(Partial, ARowThatSeesNothingOfAPartLeavesNothing) {
  const Long<double> data;
  const Attend<double, SlidingWindow> layer({2, 1, 4, 3}, SlidingWindow{.window = 10});
  AttendWorkspace workspace(layer, {.tokens = 5, .keys = 100, .threads = 1});
  Part<double> part(5, 2, 3), other(5, 2, 3);
  AttendBatch<double> batch = data.batch(0, 100);
  batch.gate_logits = {};
  batch.sinks = {};
  layer.partial(batch, workspace, part.view);
  for (std::size_t row = 0; row < 10; ++row) {
    EXPECT_EQ(part.maximum[row], -infinity);
    EXPECT_EQ(part.sum[row], 0);
    for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(part.output[3 * row + c], 0);
  }
  // Merged with itself it is still nothing, and finished it is zero.
  layer.partial(batch, workspace, other.view);
  merge(part.view, other.view);
  std::vector<double> out(30, 7);
  layer.finish(part.view, AttendBatch<double>{}, workspace, {out.data(), 5, 2, 3});
  EXPECT_EQ(out, std::vector<double>(30, 0));
}

TEST(Partial, MisuseIsRefusedWithBothNumbers) {
  Part<float> five(5, 2, 3), four(4, 2, 3), wide(5, 2, 4), heads(5, 1, 3);
  EXPECT_EQ(message_of([&] { merge(five.view, four.view); }),
            "merge: the part has 4 tokens, the total 5");
  EXPECT_EQ(message_of([&] { merge(five.view, wide.view); }),
            "merge: the part has 4 channels, the total 3");
  EXPECT_EQ(message_of([&] { merge(five.view, heads.view); }),
            "merge: the part has 1 heads, the total 2");
  const Long<float> data;
  const Attend<float> layer({2, 1, 4, 3});
  AttendWorkspace workspace(layer, {.tokens = 5, .keys = 100, .threads = 1});
  AttendBatch<float> batch = data.batch(0, 100);
  batch.gate_logits = {};
  batch.sinks = {};
  EXPECT_EQ(message_of([&] { layer.partial(batch, workspace, four.view); }),
            "Attend: partial.output has 4 tokens, not 5");
  EXPECT_EQ(message_of([&] { layer.partial(batch, workspace, wide.view); }),
            "Attend: partial.output has 4 channels, not 3");
  batch.first_key = -1;
  EXPECT_EQ(message_of([&] { layer.partial(batch, workspace, five.view); }),
            "Attend: first_key is -1, the least is 0");
  batch = data.batch(0, 101);
  batch.gate_logits = {};
  batch.sinks = {};
  EXPECT_EQ(message_of([&] { layer.partial(batch, workspace, five.view); }),
            "Attend: the batch has 5 tokens, 101 keys and 1 sequences, the workspace was made for "
            "5, 100 and 1");
}

}  // namespace
}  // namespace gated_attention::scores
