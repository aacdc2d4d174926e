// SPDX-License-Identifier: MIT
#include "gated_attention/kernel/attend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace gated_attention {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

KeyBounds causal(Index tokens, Index keys) {
  return {.keys = keys, .shift = keys - tokens, .after = 0};
}

/// One sequence: its numbers as rows, k [S, Hkv, D], v [S, Hkv, Dv], q [T, Hq, D].
struct Case {
  Index query_heads = 1, kv_heads = 1, key_dim = 1, value_dim = 1, tokens = 0;
  KeyBounds bounds;
  std::vector<double> q, k, v;

  Case(Index hq, Index hkv, Index d, Index dv, Index t, const KeyBounds& b)
      : query_heads(hq), kv_heads(hkv), key_dim(d), value_dim(dv), tokens(t), bounds(b) {
    q.resize(at(t * hq * d));
    k.resize(at(b.keys * hkv * d));
    v.resize(at(b.keys * hkv * dv));
  }

  /// Numbers that float holds exactly, so that float and double see the same inputs.
  Case& random(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (auto* to : {&q, &k, &v})
      for (double& x : *to) x = static_cast<double>(normal(generator));
    return *this;
  }

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(key_dim)); }
  std::string name() const {
    return std::to_string(query_heads) + "/" + std::to_string(kv_heads) + "/" +
           std::to_string(key_dim) + "/" + std::to_string(value_dim) +
           " T=" + std::to_string(tokens) + " S=" + std::to_string(bounds.keys) +
           " shift=" + std::to_string(bounds.shift) + " before=" + std::to_string(bounds.before) +
           " after=" + std::to_string(bounds.after) + " prefix=" + std::to_string(bounds.prefix);
  }
};

/// Does query t see key s? From the words of KeyBounds, without its functions.
bool sees(const KeyBounds& b, Index t, Index s) {
  const Index distance = s - (t + b.shift);
  const bool behind = b.before < 0 || -distance <= b.before;
  return behind && (b.after < 0 || distance <= b.after || s < b.prefix);
}

/// softmax(scale·q·kᵀ)·v in double, and the log-sum-exp.
void naive(const Case& c, std::vector<double>& out, std::vector<double>& lse) {
  out.assign(at(c.tokens * c.query_heads * c.value_dim), 0);
  lse.assign(at(c.tokens * c.query_heads), -infinity);
  std::vector<double> score(at(c.bounds.keys));
  for (Index t = 0; t < c.tokens; ++t)
    for (Index h = 0; h < c.query_heads; ++h) {
      const Index kv = h / (c.query_heads / c.kv_heads);
      double maximum = -infinity, sum = 0;
      for (Index s = 0; s < c.bounds.keys; ++s) {
        if (!sees(c.bounds, t, s)) continue;
        double x = 0;
        for (Index d = 0; d < c.key_dim; ++d)
          x += c.q[at((t * c.query_heads + h) * c.key_dim + d)] *
               c.k[at((s * c.kv_heads + kv) * c.key_dim + d)];
        score[at(s)] = x * c.scale();
        maximum = std::max(maximum, score[at(s)]);
      }
      double* row = &out[at((t * c.query_heads + h) * c.value_dim)];
      for (Index s = 0; s < c.bounds.keys; ++s) {
        if (!sees(c.bounds, t, s)) continue;
        const double p = std::exp(score[at(s)] - maximum);
        sum += p;
        for (Index d = 0; d < c.value_dim; ++d)
          row[d] += p * c.v[at((s * c.kv_heads + kv) * c.value_dim + d)];
      }
      if (sum == 0) continue;
      for (Index d = 0; d < c.value_dim; ++d) row[d] /= sum;
      lse[at(t * c.query_heads + h)] = maximum + std::log(sum);
    }
}

/// How a call is made; none of it may change a bit of the result.
struct How {
  Index threads = 1;
  double scratch = nan;    ///< what the scratch holds before
  double unwritten = nan;  ///< what lanes without a key hold
};

template <class Scalar>
struct Result {
  std::vector<Scalar> out, attention, lse;
};

/// Packs the sequences' keys and values and runs them as one batch; the q rows have gaps of NaN,
/// the output rows gaps that must stay.
template <class Scalar>
Result<Scalar> run(const std::vector<const Case*>& batch, const How& how = {},
                   const std::vector<RowStage<Scalar>>& stages = {},
                   const std::vector<Scalar>& logits = {}, Index logits_stride = 0) {
  const Case& first = *batch[0];
  constexpr Index gap = 3;
  const Index q_width = first.key_dim + gap, out_width = first.value_dim + gap,
              hq = first.query_heads;
  const KeyValueLayout<Scalar> layout{first.key_dim, first.value_dim};
  Index tokens = 0;
  std::vector<Scalar> q;
  std::vector<detail::AlignedBytes> memory;
  std::vector<kernel::AttendSequence> sequences;
  for (const Case* c : batch) {
    for (Index row = 0; row < c->tokens * hq; ++row)
      for (Index d = 0; d < q_width; ++d)
        q.push_back(static_cast<Scalar>(d < c->key_dim ? c->q[at(row * c->key_dim + d)] : nan));
    const Index blocks = detail::divide_up(c->bounds.keys, block_keys), block = layout.bytes();
    const Index count = std::max(c->kv_heads * blocks * block, Index{1});
    memory.emplace_back(count);
    auto* const numbers = reinterpret_cast<Scalar*>(memory.back().data());
    std::fill_n(numbers, count / static_cast<Index>(sizeof(Scalar)), static_cast<Scalar>(how.unwritten));
    const KeyValueSequence kv{
        .base = memory.back().data(), .block_stride = block, .head_stride = blocks * block};
    const std::vector<Scalar> k(c->k.begin(), c->k.end()), v(c->v.begin(), c->v.end());
    for (Index h = 0; h < c->kv_heads; ++h)
      for (Index s = 0; s < c->bounds.keys; s += block_keys) {
        const Index n = std::min(block_keys, c->bounds.keys - s);
        kernel::write_keys(kv.block<Scalar>(h, s / block_keys), layout, 0, n,
                           &k[at((s * c->kv_heads + h) * c->key_dim)], c->kv_heads * c->key_dim);
        kernel::write_values(kv.block<Scalar>(h, s / block_keys), layout, 0, n,
                             &v[at((s * c->kv_heads + h) * c->value_dim)],
                             c->kv_heads * c->value_dim);
      }
    sequences.push_back(
        {.first_token = tokens, .tokens = c->tokens, .bounds = c->bounds, .blocks = kv});
    tokens += c->tokens;
  }

  const Scalar kept = Scalar(-77);
  std::vector<Scalar> out(at(tokens * hq * out_width + 1), kept), attention = out;
  Result<Scalar> result;
  result.lse.assign(at(tokens * hq + 1), kept);
  kernel::AttendArguments<Scalar> call;
  call.query_heads = hq;
  call.kv_heads = first.kv_heads;
  call.key_dim = first.key_dim;
  call.value_dim = first.value_dim;
  q.push_back(Scalar(0));
  call.q = {q.data(), tokens, hq, first.key_dim, hq * q_width, q_width};
  call.score_scale = static_cast<Scalar>(first.scale() * 1.4426950408889634);
  call.sequences = sequences.data();
  call.sequence_count = static_cast<Index>(sequences.size());
  call.stages = stages.data();
  call.stage_count = static_cast<Index>(stages.size());
  call.gate_logits = logits.empty() ? nullptr : logits.data();
  call.gate_token_stride = logits_stride;
  call.out = {out.data(), tokens, hq, first.value_dim, hq * out_width, out_width};
  call.attention = {attention.data(), tokens, hq, first.value_dim, hq * out_width, out_width};
  call.log_sum_exp = {result.lse.data(), tokens, hq};

  const kernel::AttendLimits limits{hq,     first.kv_heads,      first.key_dim, first.value_dim,
                                    tokens, call.sequence_count, how.threads};
  const Index bytes = kernel::attend_scratch_bytes<Scalar>(limits);
  detail::AlignedBytes scratch_memory(bytes);
  auto* numbers = reinterpret_cast<Scalar*>(scratch_memory.data());
  std::fill(numbers, numbers + bytes / static_cast<Index>(sizeof(Scalar)),
            static_cast<Scalar>(how.scratch));
  detail::Arena arena(scratch_memory.data());
  const kernel::AttendScratch<Scalar> scratch(arena, limits);
  kernel::attend<Scalar>(call, scratch, how.threads);

  for (Index row = 0; row <= tokens * hq; ++row)
    for (Index d = 0; d < out_width && at(row * out_width + d) < out.size(); ++d) {
      const std::size_t i = at(row * out_width + d);
      if (row < tokens * hq && d < first.value_dim) {
        result.out.push_back(out[i]);
        result.attention.push_back(attention[i]);
      } else {
        EXPECT_EQ(out[i], kept) << "written past a row of the output";
        EXPECT_EQ(attention[i], kept);
      }
    }
  EXPECT_EQ(result.lse.back(), kept);
  result.lse.pop_back();
  return result;
}

template <class Scalar>
bool same_bits(const std::vector<Scalar>& a, const std::vector<Scalar>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Scalar)) == 0);
}

template <class Scalar>
bool same_bits(const Result<Scalar>& a, const Result<Scalar>& b) {
  return same_bits(a.out, b.out) && same_bits(a.attention, b.attention) && same_bits(a.lse, b.lse);
}

template <class Scalar>
std::vector<Scalar> part(const std::vector<Scalar>& all, Index from, Index count) {
  return {all.begin() + from, all.begin() + from + count};
}

/// Rows of the tokens [from, from + count).
template <class Scalar>
Result<Scalar> tokens_of(const Result<Scalar>& all, const Case& c, Index from, Index count) {
  const Index hq = c.query_heads, row = hq * c.value_dim;
  return {part(all.out, from * row, count * row), part(all.attention, from * row, count * row),
          part(all.lse, from * hq, count * hq)};
}

/// The same keys and values, the queries [from, from + count) alone.
Case queries_of(const Case& c, Index from, Index count) {
  Case some = c;
  some.tokens = count;
  some.bounds.shift += from;
  const Index row = c.query_heads * c.key_dim;
  some.q = part(c.q, from * row, count * row);
  return some;
}

/// Every mask of numbers over T queries and S keys.
std::vector<KeyBounds> masks(Index t, Index s) {
  return {causal(t, s),
          {.keys = s},
          {.keys = s, .shift = 0, .after = 0},
          {.keys = s, .shift = s - t - 3, .after = 0},
          {.keys = s, .shift = s - t + 2, .after = 0},
          {.keys = s, .shift = s - t, .before = 0, .after = 0},
          {.keys = s, .shift = s - t, .before = 6, .after = 0},
          {.keys = s, .shift = s - t, .before = 99, .after = 0},
          {.keys = s, .shift = s - t, .before = 5, .after = 3},
          {.keys = s, .shift = s - t + 40, .before = 5, .after = 70},
          {.keys = s, .shift = s - t, .before = 30},
          {.keys = s, .shift = s - t, .after = 0, .prefix = s / 2}};
}

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

/// Puts `value` into key s and its value row and expects that no row that does not see s changes,
/// and that every row that does becomes NaN where the value is.
template <class Scalar>
void expect_contained(const Case& clean, const Result<Scalar>& expected, Index s, double value) {
  Case spoiled = clean;
  const Index heads = clean.kv_heads;
  std::fill_n(&spoiled.k[at(s * heads * clean.key_dim)], heads * clean.key_dim, value);
  std::fill_n(&spoiled.v[at(s * heads * clean.value_dim)], heads * clean.value_dim, value);
  const Result<Scalar> got = run<Scalar>({&spoiled});
  for (Index t = 0; t < clean.tokens; ++t) {
    const Result<Scalar> row = tokens_of(got, clean, t, 1);
    if (!sees(clean.bounds, t, s)) {
      ASSERT_TRUE(same_bits(row, tokens_of(expected, clean, t, 1)))
          << clean.name() << ": key " << s << " = " << value << " reached token " << t;
    } else if (std::isnan(value)) {
      for (const Scalar x : row.out) ASSERT_TRUE(std::isnan(x)) << clean.name() << " token " << t;
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
          for (Index key = 0; key < s; ++key)
            EXPECT_EQ(b.begin(i) <= key && key < b.end(i), sees(b, i, key));
        }
}

}  // namespace
}  // namespace gated_attention
