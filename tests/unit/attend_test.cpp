// SPDX-License-Identifier: MIT
#include "gated_attention/kernel/attend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "unit/attend_support.hpp"

namespace gated_attention::attend_cases {
namespace {

template <class Scalar>
class Attend : public ::testing::Test {};
using Scalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Attend, Scalars);

template <class Scalar>
void expect_formula(const Case& c) {
  std::vector<double> out, lse;
  naive(c, out, lse);
  const Result<Scalar> got = run<Scalar>({&c});
  const double tolerance = std::is_same_v<Scalar, float> ? 2e-6 : 1e-13;
  double largest = 0;
  for (double x : out) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_NEAR(static_cast<double>(got.out[i]), out[i], tolerance * largest)
        << c.name() << " at " << i;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (lse[i] == -infinity) {
      ASSERT_EQ(static_cast<double>(got.lse[i]), -infinity) << c.name();
    } else {
      ASSERT_NEAR(static_cast<double>(got.lse[i]), lse[i], 5 * tolerance) << c.name();
    }
  }
  ASSERT_TRUE(same_bits(got.out, got.attention)) << "without stages the record is the output";
}

TYPED_TEST(Attend, EqualsTheFormulaForEveryMaskAndLength) {
  unsigned seed = 1;
  for (const Index t : {0, 1, 2, 5, 6, 7, 63, 64, 65, 129})
    for (const Index s : {0, 1, 2, 5, 7, 63, 64, 65, 127, 129, 257})
      for (const KeyBounds& bounds : masks(t, s))
        expect_formula<TypeParam>(Case(2, 1, 5, 3, t, bounds).random(seed++));
}

TYPED_TEST(Attend, EqualsTheFormulaForEveryDimAndGroup) {
  unsigned seed = 1000;
  for (const Index d : {1, 3, 6, 7, 9, 16, 64, 72, 80, 96, 128, 192})
    for (const Index dv : {1, 3, 6, 7, 9, 33, 48, 64, 72, 80, 96, 192})
      expect_formula<TypeParam>(
          Case(4, 2, d, dv, 37, {.keys = 150, .shift = 90, .before = 77, .after = 0})
              .random(seed++));
  for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 13})
    for (const Index t : {1, 50, 130})
      expect_formula<TypeParam>(Case(2 * group, 2, 8, 20, t, causal(t, t)).random(seed++));
}

TYPED_TEST(Attend, EqualsTheFormulaAcrossRestarts) {
  unsigned seed = 2000;
  for (const Index s : {2047, 2048, 2049, 4100})
    for (const Index t : {1, 7, 70})
      for (const Index before : {-1, 2047, 300, 2100})
        expect_formula<TypeParam>(
            Case(2, 1, 8, 16, t, {.keys = s, .shift = s - t, .before = before, .after = 0})
                .random(seed++));
  expect_formula<TypeParam>(Case(1, 1, 4, 4, 2500, causal(2500, 2500)).random(seed++));
  expect_formula<TypeParam>(
      Case(1, 1, 4, 4, 2500, {.keys = 2500, .before = 40, .after = 20}).random(seed++));
}

TYPED_TEST(Attend, AQueryAloneHasTheBitsOfTheWhole) {
  for (const Index group : {1, 4, 5})
    for (const KeyBounds& bounds : masks(150, 190)) {
      const Case whole = Case(group, 1, 20, 72, 150, bounds).random(7);
      const Result<TypeParam> all = run<TypeParam>({&whole});
      for (Index t = 0; t < whole.tokens; t += 1 + t % 3) {
        const Case alone = queries_of(whole, t, 1);
        ASSERT_TRUE(same_bits(run<TypeParam>({&alone}), tokens_of(all, whole, t, 1)))
            << whole.name() << " token " << t;
      }
    }
  for (const Index before : {-1, 900, 2047}) {
    const Case whole =
        Case(2, 1, 8, 8, 2300, {.keys = 4396, .shift = 2096, .before = before, .after = 0})
            .random(8);
    const Result<TypeParam> all = run<TypeParam>({&whole});
    for (const auto& [from, count] :
         {std::pair<Index, Index>{0, 1}, {1999, 3}, {2000, 1}, {2299, 1}, {37, 100}}) {
      const Case some = queries_of(whole, from, count);
      ASSERT_TRUE(same_bits(run<TypeParam>({&some}), tokens_of(all, whole, from, count)))
          << whole.name() << " from " << from;
    }
  }
}

TYPED_TEST(Attend, ThreadsChangeNoBit) {
  const Case c = Case(8, 2, 16, 24, 333, causal(333, 333)).random(9);
  const Result<TypeParam> one = run<TypeParam>({&c});
  for (const Index threads : {2, 3, 4, 7})
    EXPECT_TRUE(same_bits(run<TypeParam>({&c}, {.threads = threads}), one)) << threads;
}

TYPED_TEST(Attend, ASequenceInABatchHasTheBitsOfItAlone) {
  std::vector<Case> cases;
  for (const Index t : {70, 0, 1, 130, 5})
    cases.push_back(Case(6, 3, 10, 12, t, causal(t, t + 60)).random(static_cast<unsigned>(t)));
  cases.push_back(Case(6, 3, 10, 12, 40, {.keys = 40, .before = 8, .after = 0}).random(10));
  std::vector<const Case*> batch;
  for (const Case& c : cases) batch.push_back(&c);
  for (const Index threads : {1, 3}) {
    const Result<TypeParam> all = run<TypeParam>(batch, {.threads = threads});
    Index first = 0;
    for (const Case& c : cases) {
      EXPECT_TRUE(same_bits(tokens_of(all, c, first, c.tokens), run<TypeParam>({&c}))) << c.name();
      first += c.tokens;
    }
  }
}

TYPED_TEST(Attend, WhatScratchAndUnwrittenLanesHeldBeforeIsNotSeen) {
  std::vector<KeyBounds> all = masks(100, 167);
  for (const KeyBounds& bounds : masks(100, 160)) all.push_back(bounds);  // whole packets of keys
  for (const KeyBounds& bounds : all) {
    const Case c = Case(3, 1, 7, 9, 100, bounds).random(11);
    const Result<TypeParam> clean = run<TypeParam>({&c}, {.scratch = 0, .unwritten = 0});
    for (const double before : {nan, 1e30, -1e30, infinity, -infinity}) {
      EXPECT_TRUE(same_bits(run<TypeParam>({&c}, {.scratch = before, .unwritten = 0}), clean))
          << c.name() << before;
      EXPECT_TRUE(same_bits(run<TypeParam>({&c}, {.scratch = 0, .unwritten = before}), clean))
          << c.name() << before;
    }
  }
}

TYPED_TEST(Attend, NonFiniteKeysBehindTheMaskChangeNoBit) {
  for (const Index group : {1, 4})
    for (const KeyBounds& bounds : masks(80, 141)) {
      const Case clean = Case(group, 1, 5, 6, 80, bounds).random(12);
      const Result<TypeParam> expected = run<TypeParam>({&clean});
      for (const Index s : {0, 1, 60, 63, 64, 66, 100, 127, 128, 139, 140})
        for (const double value : {nan, infinity, -infinity})
          expect_contained(clean, expected, s, value);
    }
}

TYPED_TEST(Attend, NonFiniteKeysOfAnotherRestartSegmentChangeNoBit) {
  const Case clean =
      Case(2, 1, 4, 4, 30, {.keys = 2060, .shift = 2030, .before = 11, .after = 0}).random(13);
  const Result<TypeParam> expected = run<TypeParam>({&clean});
  for (const Index s : {2018, 2019, 2040, 2047, 2048, 2059})
    for (const double value : {nan, infinity}) expect_contained(clean, expected, s, value);
}

TYPED_TEST(Attend, NaNInAKeySeenMakesTheRowNaNAcrossRestarts) {
  Case c = Case(1, 1, 4, 4, 3, causal(3, 4200)).random(14);
  for (const Index s : {0, 2047, 2048, 4197}) {
    Case spoiled = c;
    spoiled.k[at(s * 4 + 1)] = nan;
    for (const TypeParam x : run<TypeParam>({&spoiled}).out) EXPECT_TRUE(std::isnan(x)) << s;
  }
  std::fill(c.k.begin(), c.k.begin() + 2048 * 4, nan);  // nothing but NaN in a whole segment
  for (const TypeParam x : run<TypeParam>({&c}).out) EXPECT_TRUE(std::isnan(x));
}

// Hand cases: head dim 1, scale 1, q = 0 unless said.

Case hand(Index tokens, const KeyBounds& bounds, std::vector<double> v, Index query_heads = 1,
          Index kv_heads = 1) {
  Case c(query_heads, kv_heads, 1, 1, tokens, bounds);
  c.v = std::move(v);
  return c;
}

template <class Scalar>
void expect_values(const Case& c, const std::vector<double>& expected, double tolerance = 0) {
  const std::vector<Scalar> got = run<Scalar>({&c}).out;
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(static_cast<double>(got[i]), expected[i], tolerance) << i;
}

TYPED_TEST(Attend, FullyMaskedRowIsZero) {
  // two queries that stand before and behind all keys of a window
  expect_values<TypeParam>(hand(2, {.keys = 2, .shift = 1, .before = 1, .after = 0}, {3, 5}),
                           {4, 5});
  const Case c = hand(2, {.keys = 2, .shift = 2, .before = 1, .after = 0}, {3, 5});
  expect_values<TypeParam>(c, {5, 0});
  EXPECT_EQ(run<TypeParam>({&c}).lse[1], -std::numeric_limits<TypeParam>::infinity());
}

TYPED_TEST(Attend, NaNInAMaskedKeyStaysThere) {
  Case c = hand(2, {.keys = 2, .shift = 0, .before = -1, .after = 0}, {7, nan});
  c.k = {1, nan};
  EXPECT_EQ(run<TypeParam>({&c}).out[0], TypeParam(7));
  c.bounds = {.keys = 1, .shift = 0};
  c.k = {1};
  c.v = {7};
  expect_values<TypeParam>(c, {7, 7});  // key 1 lies in an unwritten lane, which holds NaN
}

TYPED_TEST(Attend, VeryNegativeScoresAreScores) {
  Case c = hand(1, causal(1, 2), {1, 0});
  c.q = {-1};
  c.k = {60000, 60001};
  // the score in units of log2 is rounded at 86562, to 2^-7 in float
  expect_values<TypeParam>(c, {0.7310586}, std::is_same_v<TypeParam, float> ? 2e-3 : 1e-7);
}

TYPED_TEST(Attend, CausalIsAlignedBottomRight) {
  expect_values<TypeParam>(hand(2, causal(2, 5), {0, 1, 2, 3, 4}), {1.5, 2.0});
}

TYPED_TEST(Attend, MoreQueriesThanKeysLeaveTheFirstWithNothing) {
  expect_values<TypeParam>(hand(5, causal(5, 2), {1, 3}), {0, 0, 0, 1, 2});
}

TYPED_TEST(Attend, AWindowCountsTheCurrentToken) {
  expect_values<TypeParam>(
      hand(5, {.keys = 5, .shift = 0, .before = 2, .after = 0}, {0, 1, 2, 3, 4}), {0, 0.5, 1, 2, 3},
      1e-6);
}

TYPED_TEST(Attend, AKvHeadServesConsecutiveQueryHeads) {
  expect_values<TypeParam>(hand(1, causal(1, 1), {10, 20}, 4, 2), {10, 10, 20, 20});
}

/// row ← row + logit of its channel + number; says in the record's words where it was called
template <class Scalar>
void add_logits(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
                const RowPlace<Scalar>& place) {
  for (Index h = 0; h < heads; ++h)
    for (Index c = 0; c < stage.width; ++c)
      rows[h * head_stride + c] +=
          place.gate_logits[stage.logits_offset +
                            (place.first_head + h) * stage.logits_head_stride + c] +
          stage.number;
}

template <class Scalar>
void twice(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
           const RowPlace<Scalar>&) {
  for (Index h = 0; h < heads; ++h)
    for (Index c = 0; c < detail::round_up(stage.width, lanes<Scalar>); ++c)
      rows[h * head_stride + c] *= 2;
}

TYPED_TEST(Attend, StagesRunInOrderOnTheRowsOfTheirTokenAndHeads) {
  const Case c = Case(6, 2, 4, 9, 75, {.keys = 75, .shift = -2, .after = 0}).random(15);
  const Index width = 6 * 9 + 5;  // the logits of another gate stand before
  std::vector<TypeParam> logits(at(75 * width));
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<TypeParam>(i % 1013);
  RowStage<TypeParam> add, times;
  add.run = add_logits<TypeParam>;
  add.width = times.width = 9;
  add.logits_offset = 5;
  add.logits_head_stride = 9;
  add.number = TypeParam(0.5);
  times.run = twice<TypeParam>;
  const Result<TypeParam> got = run<TypeParam>({&c}, {.threads = 2}, {times, add}, logits, width);
  const Result<TypeParam> plain = run<TypeParam>({&c});
  EXPECT_TRUE(same_bits(got.attention, plain.out));
  for (Index t = 0; t < 75; ++t)
    for (Index i = 0; i < 6 * 9; ++i) {
      const TypeParam logit = logits[at(t * width + 5 + i)];
      ASSERT_EQ(got.out[at(t * 54 + i)], 2 * plain.out[at(t * 54 + i)] + (logit + TypeParam(0.5)))
          << t << " " << i;
    }
}

TYPED_TEST(Attend, ScratchIsLinearInTokensAndSmall) {
  const auto bytes = [](Index tokens, Index threads) {
    return kernel::attend_scratch_bytes<TypeParam>({16, 4, 128, 128, tokens, 1, threads});
  };
  EXPECT_LE(bytes(8192, 2), Index{8} << 20);
  EXPECT_LE(bytes(16384, 2), 2 * bytes(8192, 2));
  EXPECT_LE(bytes(1, 1), Index{1} << 18);
}

TEST(KeyBounds, AreTheWordsOfTheirFields) {
  for (const Index t : {1, 2, 9})
    for (const Index s : {0, 1, 2, 9, 60})
      for (const KeyBounds& b : masks(t, s))
        for (Index i = 0; i < t; ++i) {
          EXPECT_LE(0, b.begin(i));
          EXPECT_LE(b.begin(i), b.end(i));
          EXPECT_LE(b.end(i), s);
          EXPECT_LE(b.kept_end(i), b.begin(i));
          for (Index key = 0; key < s; ++key) {
            EXPECT_EQ((b.begin(i) <= key && key < b.end(i)) || key < b.kept_end(i),
                      sees(b, i, key));
          }
        }
}

}  // namespace
}  // namespace gated_attention::attend_cases
