// SPDX-License-Identifier: MIT
#include "gated_attention/kernel/attend.hpp"
#include "unit/attend_support.hpp"

// Attention over keys and values that are stored in fewer bits.

namespace gated_attention::attend_cases {
namespace {

template <class A, class B>
struct Pair {
  using Scalar = A;
  using Stored = B;
};

/// The numbers that a row is read back as: rounded, or multiples of the row's largest / 127.
template <class Scalar, class Stored>
void store_row(double* row, Index width) {
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled) {
    double largest = 0;
    for (Index c = 0; c < width; ++c) largest = std::max(largest, std::abs(row[c]));
    const Scalar scale = static_cast<Scalar>(largest) / 127;
    for (Index c = 0; c < width; ++c)
      row[c] = static_cast<double>(scale) *
               static_cast<double>(std::nearbyint(static_cast<Scalar>(row[c]) / scale));
  } else {
    for (Index c = 0; c < width; ++c)
      row[c] = detail::widened<double>(detail::narrowed<Stored>(static_cast<Scalar>(row[c])));
  }
}

/// The case with keys and values as they are read back.
template <class Scalar, class Stored>
Case as_stored(Case c) {
  for (Index row = 0; row < c.bounds.keys * c.kv_heads; ++row) {
    store_row<Scalar, Stored>(&c.k[at(row * c.key_dim)], c.key_dim);
    store_row<Scalar, Stored>(&c.v[at(row * c.value_dim)], c.value_dim);
  }
  return c;
}

/// Cases with every mask, dims and tails, across restarts, with kept keys met by queries of their own,
/// with biases.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  unsigned seed = 1;
  const auto add = [&](Case c) { cases.push_back(c.random(seed++)); };
  for (const auto& [t, s] : {std::pair<Index, Index>{1, 1},
                             {1, 65},
                             {3, 2},
                             {7, 31},
                             {65, 65},
                             {70, 129},
                             {33, 200},
                             {129, 127}})
    for (const KeyBounds& bounds : masks(t, s)) add(Case(2, 1, 5, 3, t, bounds));
  const KeyBounds window{.keys = 150, .shift = 113, .before = 77, .after = 0};
  for (const Index d : {1, 6, 16, 33, 80})
    for (const Index dv : {1, 8, 17, 33, 48, 64, 72, 130}) add(Case(4, 2, d, dv, 37, window));
  for (const Index group : {1, 3, 4, 6, 7}) add(Case(2 * group, 2, 8, 20, 50, causal(50, 90)));
  for (const Index before : {-1, 300, 2047})
    add(Case(2, 1, 8, 16, 7, {.keys = 4100, .shift = 4093, .before = before, .after = 0}));
  for (const Index kept : {1, 64, 70}) {
    Case c(2, 1, 6, 20, 90, {.keys = 170, .shift = 80, .before = 30, .after = 0, .kept = kept});
    c.kept_q.resize(c.q.size());
    add(c);
  }
  Case biased(3, 1, 6, 20, 40, causal(40, 150));
  biased.bias.resize(at(3 * 40 * 150));
  add(biased);
  return cases;
}

template <class>
class AttendRounded : public testing::Test {};
using Rounded = testing::Types<Pair<float, bfloat16>, Pair<float, half>, Pair<double, float>,
                               Pair<double, bfloat16>, Pair<double, half>>;
TYPED_TEST_SUITE(AttendRounded, Rounded);

TYPED_TEST(AttendRounded, HasTheBitsOfTheKernelOnRoundedKeysAndValues) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  Index changed = 0;
  for (Case& c : all_cases()) {
    // What float does not hold, for a double that is stored as one.
    for (auto* numbers : {&c.k, &c.v})
      for (double& x : *numbers) x *= std::is_same_v<Scalar, double> ? 1.1 : 1;
    const Case rounded = as_stored<Scalar, Stored>(c);
    const Result<Scalar> got = run<Scalar, Stored>({&c}, {.threads = 2});
    ASSERT_TRUE(same_bits(got, run<Scalar>({&rounded}))) << c.name();
    if (!same_bits(got.out, run<Scalar>({&c}).out)) ++changed;
  }
  EXPECT_GT(changed, 100) << "rounding must tell";
}

template <class>
class AttendScaled : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(AttendScaled, Scalars);

TYPED_TEST(AttendScaled, EqualsTheFormulaOnTheNumbersThatAreStored) {
  using Scalar = TypeParam;
  for (const Case& c : all_cases()) {
    std::vector<double> out, lse;
    naive(as_stored<Scalar, std::int8_t>(c), out, lse);
    const Result<Scalar> got = run<Scalar, std::int8_t>({&c}, {.threads = 2});
    const double tolerance = std::is_same_v<Scalar, float> ? 2e-6 : 1e-13;
    double largest = 0;
    for (double x : out) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(static_cast<double>(got.out[i]), out[i], tolerance * largest)
          << c.name() << " at " << i;
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (lse[i] == -infinity)
        ASSERT_EQ(static_cast<double>(got.lse[i]), -infinity) << c.name();
      else
        ASSERT_NEAR(static_cast<double>(got.lse[i]), lse[i], 5 * tolerance) << c.name();
    }
  }
}

/// How far int8 may take each output from the formula on the exact numbers. Keys off by s/2 a channel,
/// s the row's scale, move a score by at most e = scale·|q|₁·s/2, and so a probability by a factor
/// within e^(±2e) for the largest e of the row; values are off by s/2:
///
///   |o' − o| ≤ max s/2 + (e^(2e) − 1)·Σ_key p[key]·|v[key] − o|
struct ScaledBound {
  const Case& c;
  std::vector<double> out, lse;

  explicit ScaledBound(const Case& given) : c(given) { naive(c, out, lse); }

  static double half_scale(const std::vector<double>& rows, Index row, Index width) {
    double largest = 0;
    for (Index i = 0; i < width; ++i)
      largest = std::max(largest, std::abs(rows[at(row * width + i)]));
    return largest / 127 / 2;
  }

  /// Of the outputs of head h of token t.
  std::vector<double> of(Index t, Index h) const {
    const Index kv = h / (c.query_heads / c.kv_heads), q_row = t * c.query_heads + h;
    double moved = 0, of_values = 0;
    std::vector<double> spread(at(c.value_dim));
    for (Index s = 0; s < c.bounds.keys; ++s) {
      if (!sees(c.bounds, t, s)) continue;
      const Index row = s * c.kv_heads + kv;
      double dot = 0, size = 0;
      for (Index d = 0; d < c.key_dim; ++d) {
        const double q = c.q[at(q_row * c.key_dim + d)];
        dot += q * c.k[at(row * c.key_dim + d)];
        size += std::abs(q);
      }
      moved = std::max(moved, c.scale() * size * half_scale(c.k, row, c.key_dim));
      of_values = std::max(of_values, half_scale(c.v, row, c.value_dim));
      const double p = std::exp(c.scale() * dot - lse[at(q_row)]);
      for (Index i = 0; i < c.value_dim; ++i)
        spread[at(i)] +=
            p * std::abs(c.v[at(row * c.value_dim + i)] - out[at(q_row * c.value_dim + i)]);
    }
    for (double& x : spread) x = of_values + std::expm1(2 * moved) * x;
    return spread;
  }
};

TYPED_TEST(AttendScaled, IsOffByNoMoreThanHalfScalesExplain) {
  using Scalar = TypeParam;
  double closest = 0;
  for (const Index dim : {8, 64, 128})
    for (const KeyBounds& bounds :
         {causal(40, 200), KeyBounds{.keys = 200, .shift = 160, .before = 60, .after = 0}}) {
      const Case c = Case(4, 2, dim, dim, 40, bounds).random(static_cast<unsigned>(dim));
      const Result<Scalar> got = run<Scalar, std::int8_t>({&c});
      const ScaledBound bound(c);
      for (Index t = 0; t < c.tokens; ++t)
        for (Index h = 0; h < c.query_heads; ++h) {
          const std::vector<double> allowed = bound.of(t, h);
          for (Index i = 0; i < dim; ++i) {
            const std::size_t place = at((t * c.query_heads + h) * dim + i);
            const double error = std::abs(static_cast<double>(got.out[place]) - bound.out[place]);
            ASSERT_LE(error, allowed[at(i)] + 2e-6) << c.name() << " token " << t;
            closest = std::max(closest, error / allowed[at(i)]);
          }
        }
    }
  EXPECT_GT(closest, 0.05) << "the bound must say something";
}

template <class>
class AttendStored : public testing::Test {};
using All = testing::Types<Pair<float, bfloat16>, Pair<float, half>, Pair<float, std::int8_t>,
                           Pair<double, float>, Pair<double, bfloat16>, Pair<double, half>,
                           Pair<double, std::int8_t>>;
TYPED_TEST_SUITE(AttendStored, All);

TYPED_TEST(AttendStored, AQueryAloneHasTheBitsOfTheWhole) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  for (const Index group : {1, 5})
    for (const KeyBounds& bounds : masks(100, 190)) {
      const Case whole = Case(group, 1, 20, 40, 100, bounds).random(7);
      const Result<Scalar> all = run<Scalar, Stored>({&whole});
      for (Index t = 0; t < whole.tokens; t += 1 + t % 5) {
        const Case alone = queries_of(whole, t, 1);
        ASSERT_TRUE(same_bits(run<Scalar, Stored>({&alone}), tokens_of(all, whole, t, 1)))
            << whole.name() << " token " << t;
      }
    }
}

TYPED_TEST(AttendStored, WhatScratchLanesAndScalesHeldBeforeIsNotSeen) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  std::vector<KeyBounds> all = masks(50, 167);
  for (const Index keys : {97, 160}) {  // a packet of a pair without a key, and whole packets
    const std::vector<KeyBounds> more = masks(50, keys);
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const KeyBounds& bounds : all) {
    const Case c = Case(3, 1, 7, 9, 50, bounds).random(11);
    const Result<Scalar> clean = run<Scalar, Stored>({&c}, {.scratch = 0, .unwritten = 0});
    for (const double before : {nan, 1e30, -infinity}) {
      EXPECT_TRUE(same_bits(run<Scalar, Stored>({&c}, {.scratch = before, .unwritten = 0}), clean))
          << c.name() << before;
      EXPECT_TRUE(same_bits(run<Scalar, Stored>({&c}, {.scratch = 0, .unwritten = before}), clean))
          << c.name() << before;
    }
  }
}

TYPED_TEST(AttendStored, NonFiniteKeysBehindTheMaskChangeNoBit) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  for (const KeyBounds& bounds : masks(40, 141)) {
    const Case clean = Case(4, 1, 5, 6, 40, bounds).random(12);
    const Result<Scalar> expected = run<Scalar, Stored>({&clean});
    for (const Index s : {0, 1, 4, 63, 64, 66, 100, 127, 128, 140})
      for (const double value : {nan, infinity})
        expect_contained<Scalar, Stored>(clean, expected, s, value);
  }
}

/// A case whose bias masks single keys, a whole block for some rows and for all, and a whole row; and
/// the set of keys that it masks for all.
struct Irregular {
  Case c;
  std::vector<Index> hidden;

  explicit Irregular(const KeyBounds& bounds, unsigned seed) : c(4, 2, 6, 21, 30, bounds) {
    c.bias.resize(at(4 * 30 * bounds.keys));
    c.random(seed);
    for (Index s = 0; s < bounds.keys; ++s)
      if (s % 7 == 3 || s / block_keys == 1) hidden.push_back(s);
    for (Index h = 0; h < 4; ++h)
      for (Index t = 0; t < 30; ++t) {
        for (const Index s : hidden) c.bias_at(h, t, s) = -infinity;
        for (Index s = 0; s < bounds.keys; ++s) {
          if (t == 11) c.bias_at(h, t, s) = -infinity;
          if (t % 2 == 0 && s / block_keys == 2) c.bias_at(h, t, s) = -infinity;
          if (!sees(bounds, t, s)) c.bias_at(h, t, s) = nan;  // the mask hides the bias, too
        }
      }
  }

  /// Every hidden key, and its values, not finite.
  Case spoiled() const {
    Case bad = c;
    for (const Index s : hidden) {
      const double value = s % 3 == 0 ? infinity : nan;
      std::fill_n(&bad.k[at(s * 2 * 6)], 2 * 6, value);
      std::fill_n(&bad.v[at(s * 2 * 21)], 2 * 21, value);
    }
    return bad;
  }
};

template <class Scalar, class Stored>
void check_irregular() {
  unsigned seed = 40;
  for (const Index keys : {70, 150, 230})
    for (const KeyBounds& bounds : masks(30, keys)) {
      const Irregular irregular(bounds, seed++);
      const Result<Scalar> clean = run<Scalar, Stored>({&irregular.c});
      const Case bad = irregular.spoiled();
      const Result<Scalar> got = run<Scalar, Stored>({&bad});
      ASSERT_TRUE(same_bits(got, clean)) << bad.name();
      for (const Scalar x : got.out) ASSERT_TRUE(std::isfinite(x)) << bad.name();
      for (const Scalar x : tokens_of(got, bad, 11, 1).out) ASSERT_EQ(x, Scalar(0));
      if constexpr (!KeyValueLayout<Scalar, Stored>::scaled) {
        const Case rounded = as_stored<Scalar, Stored>(irregular.c);
        ASSERT_TRUE(same_bits(clean, run<Scalar>({&rounded}))) << bad.name();
      }
    }
}

TYPED_TEST(AttendStored, WhatABiasMasksIsNotSeenWhateverItHolds) {
  check_irregular<typename TypeParam::Scalar, typename TypeParam::Stored>();
}

TYPED_TEST(AttendScaled, WhatABiasMasksIsNotSeenWhateverItHoldsInTheScalar) {
  check_irregular<TypeParam, TypeParam>();
}

TYPED_TEST(AttendStored, NaNInAValueThatIsSeenReachesItsRowAlone) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  const Case clean = Case(2, 1, 4, 9, 30, causal(30, 30)).random(16);
  const Result<Scalar> expected = run<Scalar, Stored>({&clean});
  Case spoiled = clean;
  spoiled.v[at(12 * 9 + 5)] = nan;
  const Result<Scalar> got = run<Scalar, Stored>({&spoiled});
  constexpr bool scaled = KeyValueLayout<Scalar, Stored>::scaled;
  for (Index t = 0; t < 30; ++t)
    for (Index i = 0; i < 2 * 9; ++i) {
      const std::size_t place = at(t * 18 + i);
      const bool reached =
          t >= 12 && (scaled || i % 9 == 5);  // int8: the whole row is not a number
      if (reached)
        ASSERT_TRUE(std::isnan(got.out[place])) << t << " " << i;
      else
        ASSERT_EQ(got.out[place], expected.out[place]) << t << " " << i;
    }
}

}  // namespace
}  // namespace gated_attention::attend_cases
