// SPDX-License-Identifier: MIT
#include "gated_attention/layer/attend.hpp"
#include "unit/score_support.hpp"

// Each stage on scores by itself, the order of two, views, misuse.

namespace gated_attention::scores {
namespace {

template <class Scalar, class Stage>
void check_alone(const Stage& stage) {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  check<Scalar>(stage, Bidirectional{});
  check<Scalar>(SlidingWindow{.window = 30}, stage, LearnedSink{});
}

template <class Scalar>
void check_each_alone() {
  static constexpr double slopes[] = {0.5, 0.01, 0, -0.1};
  check_alone<Scalar>(SoftmaxScale{.scale = -0.3});
  check_alone<Scalar>(Softcap{.cap = 1.5});
  check_alone<Scalar>(Alibi{});
  check_alone<Scalar>(Alibi{.slopes = slopes});
  check_alone<Scalar>(ScoreBias{});
  check_alone<Scalar>(BooleanMask{});
  check_alone<Scalar>(Score<Fading>{{.rate = 0.1, .reach = 33}});
  check<Scalar>(LearnedSink{}, Causal{});
}

TEST(Scores, EachStageAloneIsTheReferenceInFloat) {
  check_each_alone<float>();
}
TEST(Scores, EachStageAloneIsTheReferenceInDouble) {
  check_each_alone<double>();
}

TEST(Scores, TheOrderOfSoftcapAndBiasIsTheWrittenOne) {
  const Problem<double> problem;
  const AttendBatch<double> batch = problem.batch<ScoreBias>();
  const Softcap cap{.cap = 1};
  const Attend<double, Softcap, ScoreBias> cap_first(problem.shape(), cap);
  const Attend<double, ScoreBias, Softcap> bias_first(problem.shape(), cap);
  const std::vector<double> one = run(cap_first, batch).out, other = run(bias_first, batch).out;
  EXPECT_GT(relative_error(one, other), 0.05);
}

TEST(Scores, SoftmaxScaleActsAtTheBeginningWhereverItIsWritten) {
  const Problem<float> problem;
  const AttendBatch<float> batch = problem.batch<>();
  const Softcap cap{.cap = 1};
  const SoftmaxScale scale{.scale = 0.9};
  const Given<float> first =
      run(Attend<float, SoftmaxScale, Softcap>(problem.shape(), scale, cap), batch);
  const Given<float> last =
      run(Attend<float, Softcap, SoftmaxScale>(problem.shape(), scale, cap), batch);
  EXPECT_EQ(first.out, last.out);
}

TEST(Scores, SlopesOfAlibiAreThoseOfThePaper) {
  EXPECT_EQ(reference::alibi_slopes(4), (std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625}));
  EXPECT_EQ(reference::alibi_slopes(8)[0], 0.5);
  const std::vector<double> six = reference::alibi_slopes(6);
  EXPECT_EQ(six, (std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}));
  for (const Index heads : {1, 2, 3, 5, 6, 8, 12, 16, 20})
    EXPECT_EQ(kernel::alibi_slopes(heads), reference::alibi_slopes(heads)) << heads;
}

/// The user's packet form of a score against its form in double, lane by lane.
template <class Scalar>
void check_own_function() {
  const Fading fading{.rate = 0.125, .reach = 10};
  for (const Index position : {0, 3, 17, 1000})
    for (Index first = 0; first < 20; first += lanes<Scalar>) {
      Scalar scores[lanes<Scalar>];
      ScorePlace<Scalar> place{.first_key = first, .position = static_cast<Scalar>(position)};
      place.keys = packet::add(packet::broadcast<Scalar>(static_cast<Scalar>(first)),
                               packet::ramp<Scalar>());
      packet::store<Scalar>(scores, fading(place, packet::broadcast<Scalar>(Scalar(1.5))));
      for (Index lane = 0; lane < lanes<Scalar>; ++lane)
        EXPECT_EQ(static_cast<double>(scores[lane]),
                  fading.reference(0, position, first + lane, 1.5));
    }
}

TEST(Scores, AFunctionOfOnesOwnHasTheSameValueInPacketsAndInDouble) {
  check_own_function<float>();
  check_own_function<double>();
}

/// Counts the packets of scores that reach it.
struct Counting {
  Index* packets = nullptr;

  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>&, const Packet<Scalar>& score) const {
    ++*packets;
    return score;
  }
};

/// 512 keys of which the stage in question hides the last `hidden`, for each of 12 queries: the packets that a later stage sees.
template <class Scalar, class Stage>
Index packets_beside(Index hidden) {
  constexpr Index tokens = 12, keys = 512;
  Index packets = 0;
  const Score<Counting> counting{{&packets}};
  const Attend<Scalar, Bidirectional, Stage, Score<Counting>> layer({1, 1, 4}, counting);
  std::vector<Scalar> rows(at(keys * 4), Scalar(0.5)), bias(at(keys));
  const std::unique_ptr<bool[]> mask(new bool[at(keys)]);
  for (Index s = 0; s < keys; ++s) {
    const bool is_hidden = s >= keys - hidden;
    bias[at(s)] = is_hidden ? -std::numeric_limits<Scalar>::infinity() : Scalar(0);
    mask[at(s)] = !is_hidden;
  }
  const ScoreView<const Scalar> bias_view(bias.data(), 1, 1, keys);
  const ScoreView<const bool> mask_view(mask.get(), 1, 1, keys);
  AttendBatch<Scalar> batch{.q = {rows.data(), tokens, 1, 4},
                            .k = {rows.data(), keys, 1, 4},
                            .v = {rows.data(), keys, 1, 4}};
  if (std::is_same_v<Stage, ScoreBias>) batch.score_bias = {&bias_view, 1};
  if (std::is_same_v<Stage, BooleanMask>) batch.boolean_mask = {&mask_view, 1};
  run(layer, batch);
  return packets;
}

template <class Scalar>
void check_skipped_blocks() {
  const Index all = 12 * 512 / lanes<Scalar>;
  EXPECT_EQ((packets_beside<Scalar, ScoreBias>(0)), all);
  EXPECT_EQ((packets_beside<Scalar, ScoreBias>(256)), all / 2);
  EXPECT_EQ((packets_beside<Scalar, BooleanMask>(256)), all / 2);
  EXPECT_EQ((packets_beside<Scalar, BooleanMask>(512)), 0);
}

TEST(Scores, BlocksThatAStageHidesWholeAreNotComputed) {
  check_skipped_blocks<float>();
  check_skipped_blocks<double>();
}

TEST(Scores, AViewOfOneRowIsTheRowRepeated) {
  Problem<float> problem;
  const AttendBatch<float> plain = problem.batch<ScoreBias, BooleanMask>();
  const Attend<float, ScoreBias, BooleanMask> layer(problem.shape());
  // Every view written out in full, with gaps of NaN between its rows.
  std::vector<std::vector<float>> biases(3);
  std::vector<ScoreView<const float>> views;
  for (std::size_t i = 0; i < 3; ++i) {
    const Index tokens = problem.lengths[i], keys = problem.key_lengths[i], stride = keys + 5;
    biases[i].assign(at(4 * tokens * stride + 1), std::numeric_limits<float>::quiet_NaN());
    for (Index h = 0; h < 4; ++h)
      for (Index t = 0; t < tokens; ++t)
        for (Index s = 0; s < keys; ++s)
          biases[i][at((h * tokens + t) * stride + s)] = problem.bias_views[i].row(h, t)[s];
    views.push_back({biases[i].data(), 4, tokens, keys, tokens * stride, stride});
  }
  AttendBatch<float> full = plain;
  full.score_bias = views;
  EXPECT_EQ(run(layer, plain).out, run(layer, full).out);
}

TEST(Scores, ASequenceAloneHasTheBitsThatItHasInABatch) {
  const Problem<float> problem;
  const Attend<float, Softcap, ScoreBias, BooleanMask, Alibi, LearnedSink> layer(
      problem.shape(), Softcap{.cap = 3}, Alibi{});
  const AttendBatch<float> batch = problem.batch<ScoreBias, BooleanMask, LearnedSink>();
  const Given<float> all = run(layer, batch);
  AttendBatch<float> alone = batch;
  const Index rows = 7, keys = 150;
  alone.q = {problem.q.data() + rows * 4 * 6, 9, 4, 6};
  alone.k = {problem.k.data() + (keys + 4) * 2 * 6, 6, 2, 6};
  alone.v = {problem.v.data() + (keys + 4) * 2 * 5, 6, 2, 5};
  alone.lengths = alone.key_lengths = {};
  alone.score_bias = batch.score_bias.subspan(2);
  alone.boolean_mask = batch.boolean_mask.subspan(2);
  const Given<float> last = run(layer, alone);
  EXPECT_TRUE(same_bits(last.out.data(), all.out.data() + rows * 4 * 5, 9 * 4 * 5));
}

TEST(Scores, NumbersThatMakeNoSenseAreRefused) {
  const AttendShape shape{2, 1, 4};
  const auto cap = [&](double value) {
    return message_of([&] { Attend<float, Softcap>(shape, Softcap{.cap = value}); });
  };
  EXPECT_EQ(cap(0), "Attend: Softcap's cap is 0, it must be finite and greater than 0");
  EXPECT_EQ(cap(-5), "Attend: Softcap's cap is -5, it must be finite and greater than 0");
  EXPECT_EQ(cap(infinity), "Attend: Softcap's cap is inf, it must be finite and greater than 0");
  EXPECT_EQ(cap(std::nan("")),
            "Attend: Softcap's cap is nan, it must be finite and greater than 0");
  EXPECT_EQ(
      message_of([&] { Attend<float, SoftmaxScale>(shape, SoftmaxScale{.scale = infinity}); }),
      "Attend: SoftmaxScale's scale is inf, it must be finite");
  const double slopes[] = {1, 2, 3};
  EXPECT_EQ(message_of([&] { Attend<float, Alibi>(shape, Alibi{.slopes = slopes}); }),
            "Alibi: there are 3 slopes, the layer has 2 query heads");
  EXPECT_EQ(message_of([&] {
              Attend<float, BidirectionalWindow>(shape,
                                                 BidirectionalWindow{.left = -1, .right = 2});
            }),
            "BidirectionalWindow: left is -1 and right is 2, the least is 0");
}

TEST(Scores, WhatDoesNotFitTheStagesIsRefusedAndNothingIsWritten) {
  const Problem<float> problem;
  const Attend<float, ScoreBias, BooleanMask, PrefixCausal, LearnedSink> layer(problem.shape());
  const AttendBatch<float> good =
      problem.batch<ScoreBias, BooleanMask, PrefixCausal, LearnedSink>();
  const Attend<float> plain(problem.shape());
  const auto refused = [](const auto& some, const AttendBatch<float>& batch) {
    std::vector<float> out(at(16 * 4 * 5), 7);
    AttendWorkspace workspace(some, {.tokens = 16, .keys = 160, .sequences = 3, .threads = 1});
    const std::string message = message_of([&] { some(batch, workspace, {out.data(), 16, 4, 5}); });
    EXPECT_EQ(out, std::vector<float>(out.size(), 7)) << message;
    return message;
  };
  AttendBatch<float> bad = good;
  bad.score_bias = good.score_bias.first(2);
  EXPECT_EQ(refused(layer, bad),
            "Attend: score_bias has 2 views, the ScoreBias stage takes 3, one per sequence");
  bad = good;
  bad.boolean_mask = {};
  EXPECT_EQ(refused(layer, bad),
            "Attend: boolean_mask has 0 views, the BooleanMask stage takes 3, one per sequence");
  bad = good;
  bad.prefixes = good.prefixes.first(1);
  EXPECT_EQ(refused(layer, bad),
            "Attend: there are 1 prefixes, the mask takes 3, one per sequence");
  const std::vector<Index> negative = {1, -2, 0};
  bad.prefixes = negative;
  EXPECT_EQ(refused(layer, bad), "Attend: a prefix is -2, the least is 0");
  bad = good;
  bad.sinks = good.sinks.first(3);
  EXPECT_EQ(refused(layer, bad), "Attend: there are 3 sinks, not 4, one per query head");
  bad = {.q = good.q,
         .k = good.k,
         .v = good.v,
         .lengths = good.lengths,
         .key_lengths = good.key_lengths};
  bad.sinks = good.sinks;
  EXPECT_EQ(refused(plain, bad), "Attend: there are 4 sinks, not 0: there is no LearnedSink");
  bad.sinks = {};
  bad.prefixes = good.prefixes;
  EXPECT_EQ(refused(plain, bad),
            "Attend: there are 3 prefixes, the mask takes 0: it is not PrefixCausal");
  bad.prefixes = {};
  bad.score_bias = good.score_bias;
  EXPECT_EQ(refused(plain, bad),
            "Attend: score_bias has 3 views, the missing ScoreBias stage takes 0");
}

TEST(Scores, AViewOfOtherExtentsIsRefusedWithBothNumbers) {
  const Problem<float> problem;
  const Attend<float, ScoreBias> layer(problem.shape());
  const auto refused = [&](Index heads, Index tokens, Index keys) {
    std::vector<ScoreView<const float>> views = problem.bias_views;
    views[2] = {problem.biases[0].data(), heads, tokens, keys};
    AttendBatch<float> batch = problem.batch<>();
    batch.score_bias = views;
    return message_of([&] { run(layer, batch); });
  };
  EXPECT_EQ(refused(2, 9, 6), "Attend: score_bias of sequence 2 has 2 heads, not 4");
  EXPECT_EQ(refused(4, 8, 6), "Attend: score_bias of sequence 2 has 8 tokens, not 9");
  EXPECT_EQ(refused(4, 9, 1), "Attend: score_bias of sequence 2 has 1 keys, not 6");
  EXPECT_EQ(refused(4, 9, 6), "nothing was refused");
}

}  // namespace
}  // namespace gated_attention::scores
