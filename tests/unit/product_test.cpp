// SPDX-License-Identifier: MIT
#include "gated_attention/kernel/product.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace gated_attention;

constexpr Index sizes[] = {1, 2, 3, 5, 6, 7, 11, 12, 13, 63, 64, 65, 127, 129, 200};

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

template <class Scalar>
Scalar nan() {
  return std::numeric_limits<Scalar>::quiet_NaN();
}

/// What lies around the numbers in memory.
struct Gaps {
  Index groups = 1;
  Index group = 0;   ///< after each group of a source row
  Index source = 0;  ///< after each source row
  Index weight = 0;  ///< after each weight row
  Index target = 0;  ///< after each target row
};

struct Extents {
  Index rows;
  Index columns;
  Index group_width;
  bool bias = true;
  Gaps gaps = {};

  Index depth() const { return gaps.groups * group_width; }
};

/// x, W, bias and everything they are packed into. What is no number of theirs is NaN, and x ends
/// with its last number. The panels hold W as Stored.
template <class Scalar, class Stored = Scalar>
struct Problem {
  static constexpr Scalar canary = Scalar(-12345.5);

  explicit Problem(const Extents& e, unsigned seed = 1) : extents(e), random(seed) {
    const Gaps& gaps = e.gaps;
    group_stride = e.group_width + gaps.group;
    row_stride = gaps.groups * group_stride + gaps.source;
    x.assign(at(std::max(Index{0}, e.rows - 1) * row_stride + (gaps.groups - 1) * group_stride +
                e.group_width),
             nan<Scalar>());
    for (Index t = 0; t < e.rows; ++t)
      for (Index k = 0; k < e.depth(); ++k) x[x_at(t, k)] = number();
    weight_stride = e.depth() + gaps.weight;
    weight.assign(at((e.columns - 1) * weight_stride + e.depth()), nan<Scalar>());
    for (Index n = 0; n < e.columns; ++n)
      for (Index k = 0; k < e.depth(); ++k) weight[at(n * weight_stride + k)] = number();
    if (e.bias)
      for (Index n = 0; n < e.columns; ++n) bias.push_back(number());
    pack();
  }

  void pack() {
    panels.assign(at(kernel::panel_elements(extents.columns, extents.depth())),
                  detail::narrowed<Stored>(nan<Scalar>()));
    pack_in_pieces(extents.columns / 3 + 1);
    kernel::clear_padding<Scalar>(panels.data(), extents.columns, extents.depth());
  }

  /// W rounded to another type, and packed anew.
  template <class Other>
  void round_weights() {
    for (Scalar& w : weight) w = detail::widened<Scalar>(detail::narrowed<Other>(w));
    pack();
  }

  /// W arrives as several matrices side by side, as query, key, value and gates do.
  void pack_in_pieces(Index piece) {
    for (Index first = 0; first < extents.columns; first += piece)
      kernel::pack_columns<Scalar>(
          panels.data(), extents.depth(), first,
          {weight.data() + first * weight_stride, std::min(piece, extents.columns - first),
           extents.depth(), weight_stride});
  }

  Scalar number() { return std::uniform_real_distribution<Scalar>(-1, 1)(random); }

  std::size_t x_at(Index t, Index k) const {
    return at(t * row_stride + k / extents.group_width * group_stride + k % extents.group_width);
  }

  /// y of rows [first_row, first_row + rows), by one call; checks that nothing but y is written.
  std::vector<Scalar> multiply(Index threads, Index first_row, Index rows) const {
    const Index columns = extents.columns, stride = columns + extents.gaps.target;
    std::vector<Scalar> memory(at((rows + 2) * stride), canary);
    const Index bytes = kernel::product_scratch_bytes<Scalar>(rows, extents.depth(), threads);
    const detail::AlignedBytes scratch_memory(bytes + detail::alignment);
    std::fill_n(reinterpret_cast<Scalar*>(scratch_memory.data()),
                scratch_memory.size() / static_cast<Index>(sizeof(Scalar)), nan<Scalar>());
    detail::Arena arena(scratch_memory.data());
    const auto scratch =
        kernel::take_product_scratch<Scalar>(arena, rows, extents.depth(), threads);
    EXPECT_EQ(arena.used(), bytes);
    kernel::multiply<Scalar, Stored>(
        {x.data() + first_row * row_stride, rows, row_stride, extents.gaps.groups,
         extents.group_width, group_stride},
        {panels.data(), columns, extents.depth()},
        {memory.data() + stride, stride, extents.bias ? bias.data() : nullptr}, scratch, threads);
    std::vector<Scalar> y;
    Index touched = 0;
    for (Index t = -1; t <= rows; ++t)
      for (Index n = 0; n < stride; ++n) {
        const Scalar value = memory[at((t + 1) * stride + n)];
        if (t >= 0 && t < rows && n < columns)
          y.push_back(value);
        else if (!(value == canary))
          ++touched;
      }
    EXPECT_EQ(touched, 0) << "numbers around the result were written";
    const auto* behind = reinterpret_cast<const Scalar*>(scratch_memory.data() + bytes);
    for (Index i = 0; i < detail::alignment / static_cast<Index>(sizeof(Scalar)); ++i)
      EXPECT_TRUE(std::isnan(behind[i])) << "scratch was overrun";
    return y;
  }

  std::vector<Scalar> multiply(Index threads) const { return multiply(threads, 0, extents.rows); }

  Extents extents;
  std::mt19937 random;
  Index group_stride = 0, row_stride = 0, weight_stride = 0;
  std::vector<Scalar> x, weight, bias;
  std::vector<Stored> panels;
};

/// The largest error in units of ε·√depth·Σ|x·W|, by a plain sum in long double.
template <class Scalar>
double error_of(const Problem<Scalar>& problem, const std::vector<Scalar>& y) {
  const Extents& e = problem.extents;
  double worst = 0;
  for (Index t = 0; t < e.rows; ++t)
    for (Index n = 0; n < e.columns; ++n) {
      long double sum = e.bias ? problem.bias[at(n)] : Scalar(0), size = std::abs(sum);
      for (Index k = 0; k < e.depth(); ++k) {
        const long double term = static_cast<long double>(problem.x[problem.x_at(t, k)]) *
                                 problem.weight[at(n * problem.weight_stride + k)];
        sum += term;
        size += std::abs(term);
      }
      const auto error = static_cast<double>(std::abs(y[at(t * e.columns + n)] - sum) /
                                             (size * std::numeric_limits<Scalar>::epsilon() *
                                              std::sqrt(static_cast<long double>(e.depth()))));
      if (!(error <= worst)) worst = error;  // NaN stays
    }
  return worst;
}

template <class Scalar>
class Product : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Product, Scalars);

TYPED_TEST(Product, IsTheSumOverDepthPlusBiasForEverySize) {
  unsigned index = 0;
  for (const Index rows : sizes)
    for (const Index columns : sizes)
      for (const Index width : sizes) {
        const unsigned mixed = ++index * 2654435761u >> 8;
        if (mixed % 8 != 0) continue;
        const Gaps gaps = {mixed / 8 % 3 + 1, mixed / 32 % 4, mixed / 128 % 3, mixed / 512 % 4,
                           mixed / 2048 % 3};
        const Extents extents = {rows, columns, width, mixed / 8192 % 2 == 0, gaps};
        const Problem<TypeParam> problem(extents, index);
        ASSERT_LE(error_of(problem, problem.multiply(mixed / 16384 % 4 + 1)), 1.0)
            << rows << " rows, " << columns << " columns, " << gaps.groups << " x " << width
            << " deep";
      }
}

TYPED_TEST(Product, HoldsForEveryNumberOfRowsToTwiceTheGroups) {
  for (Index rows = 1; rows <= 40; ++rows) {
    const Problem<TypeParam> problem({rows, 70, 150, true, {}});
    ASSERT_LE(error_of(problem, problem.multiply(1)), 1.0) << rows;
  }
}

TYPED_TEST(Product, HoldsForSeveralBlocksOfRowsAndFewPanels) {
  for (const Index rows : {384, 385, 390, 769, 800}) {
    const Problem<TypeParam> problem({rows, 70, 300, true, {}});
    for (const Index threads : {1, 3}) ASSERT_LE(error_of(problem, problem.multiply(threads)), 1.0);
  }
}

TYPED_TEST(Product, IsOneChainOfMultiplyAddsOverAscendingDepth) {
#if defined(__FMA__) && !defined(EIGEN_VECTORIZE_FMA)
  GTEST_SKIP() << "the compiler decides what is fused";
#endif
  const Problem<TypeParam> problem({17, 70, 301, true, {}});
  const auto y = problem.multiply(1);
  for (Index t = 0; t < 17; ++t)
    for (Index n = 0; n < 70; ++n) {
      TypeParam sum = 0;
      for (Index k = 0; k < 301; ++k) {
        const TypeParam a = problem.x[problem.x_at(t, k)], b = problem.weight[at(n * 301 + k)];
#if defined(EIGEN_VECTORIZE_FMA)
        sum = std::fma(a, b, sum);
#else
        sum += a * b;
#endif
      }
      ASSERT_EQ(y[at(t * 70 + n)], sum + problem.bias[at(n)]) << t << ", " << n;
    }
}

/// Shapes long enough for several threads: many blocks; few panels, whose rows are shared out; runs
/// of panels.
constexpr Extents long_shapes[] = {{770, 200, 149, true, {2, 3, 5, 0, 1}},
                                   {400, 70, 301, true, {}},
                                   {9, 64 * 70 + 3, 257, true, {}},
                                   {1, 64 * 130 + 1, 301, true, {}}};

TYPED_TEST(Product, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const Extents& shape : long_shapes) {
    ASSERT_FALSE(kernel::product_is_short(shape.rows, shape.columns, shape.depth()));
    const Problem<TypeParam> problem(shape);
    const auto y = problem.multiply(1);
    ASSERT_LE(error_of(problem, y), 1.0);
    for (Index threads = 2; threads <= 4; ++threads)
      for (int repeat = 0; repeat < 3; ++repeat) ASSERT_EQ(problem.multiply(threads), y) << threads;
  }
}

TYPED_TEST(Product, HasTheSameBitsForARowAloneAndInAnyBlock) {
  for (const Extents& shape : {long_shapes[0], Extents{100, 130, 301, true, {}}}) {
    const Problem<TypeParam> problem(shape);
    const auto y = problem.multiply(1);
    for (Index rows = 1, first = 0; rows <= shape.rows; rows = rows < 45 ? rows + 1 : rows * 2) {
      first = (first * 31 + 7) % (shape.rows - rows + 1);
      const auto part = problem.multiply(2, first, rows);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), y.begin() + first * shape.columns))
          << rows << " rows from " << first;
    }
  }
}

TYPED_TEST(Product, RowsDoNotSeeTheirNeighbours) {
  const Extents shape = {101, 130, 301, true, {}};
  Problem<TypeParam> problem(shape);
  const auto y = problem.multiply(1);
  for (Index t = 0; t < shape.rows; ++t)
    if (t % 3 != 1)
      for (Index k = 0; k < shape.depth(); ++k)
        problem.x[problem.x_at(t, k)] =
            t % 3 == 0 ? nan<TypeParam>() : std::numeric_limits<TypeParam>::infinity();
  const auto changed = problem.multiply(1);
  for (Index t = 1; t < shape.rows; t += 3)
    for (Index n = 0; n < shape.columns; ++n)
      ASSERT_EQ(changed[at(t * shape.columns + n)], y[at(t * shape.columns + n)]) << t;
}

TYPED_TEST(Product, OfNoRowsWritesNothing) {
  const Problem<TypeParam> problem({0, 70, 5, true, {}});
  EXPECT_TRUE(problem.multiply(2).empty());
}

TYPED_TEST(Product, UsesAnyScratchThatIsLargeEnough) {
  const Problem<TypeParam> problem({384, 70, 33, true, {}});
  EXPECT_GE(kernel::product_scratch_bytes<TypeParam>(400, 33, 2),
            kernel::product_scratch_bytes<TypeParam>(384, 33, 2));
  EXPECT_EQ(kernel::product_scratch_bytes<TypeParam>(400, 33, 2),
            kernel::product_scratch_bytes<TypeParam>(100000, 33, 2));
}

TYPED_TEST(Product, PanelsHoldSixtyFourColumnsEach) {
  const Problem<TypeParam> problem({1, 130, 7, false, {}});
  ASSERT_EQ(problem.panels.size(), at(3 * 7 * 64));
  for (Index n = 0; n < 192; ++n)
    for (Index k = 0; k < 7; ++k)
      ASSERT_EQ(problem.panels[at((n / 64 * 7 + k) * 64 + n % 64)],
                n < 130 ? problem.weight[at(n * 7 + k)] : TypeParam(0));
}

template <class A, class B>
struct Pair {
  using Scalar = A;
  using Stored = B;
};
template <class>
class StoredProduct : public testing::Test {};
using Pairs = testing::Types<Pair<float, bfloat16>, Pair<float, half>, Pair<double, float>,
                             Pair<double, bfloat16>, Pair<double, half>>;
TYPED_TEST_SUITE(StoredProduct, Pairs);

/// The product with W in fewer bits has the bits of the product with W rounded before: reading rounds
/// nothing.
template <class Scalar, class Stored>
void expect_bits_of_rounded_weights(const Extents& extents, unsigned seed, Index threads = 1) {
  const Problem<Scalar, Stored> stored(extents, seed);
  Problem<Scalar> rounded(extents, seed);
  const auto exact = rounded.multiply(threads);
  rounded.template round_weights<Stored>();
  const auto y = stored.multiply(threads);
  ASSERT_EQ(y, rounded.multiply(threads))
      << extents.rows << " rows, " << extents.columns << " columns, " << extents.depth() << " deep";
  ASSERT_NE(y, exact) << "W was not rounded";
}

TYPED_TEST(StoredProduct, HasTheBitsOfRoundedWeightsForEveryTail) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  for (Index rows = 1; rows <= 13; ++rows)
    for (Index columns = 1; columns <= 130; columns += columns < 66 ? 1 : 4) {
      const Gaps gaps = {columns % 2 + 1, rows % 3, 1, columns % 3, 2};
      expect_bits_of_rounded_weights<Scalar, Stored>({rows, columns, 9, columns % 2 == 0, gaps},
                                                     static_cast<unsigned>(rows * 200 + columns));
    }
}

TYPED_TEST(StoredProduct, HasTheBitsOfRoundedWeightsInManyBlocksAndOnThreads) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  for (const Extents& shape : long_shapes)
    for (const Index threads : {1, 3})
      expect_bits_of_rounded_weights<Scalar, Stored>(shape, 5, threads);
}

TYPED_TEST(StoredProduct, PanelsHoldEachColumnInItsPlaceAndZerosBehindTheLast) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  const Problem<Scalar, Stored> problem({1, 130, 7, false, {}});
  ASSERT_EQ(problem.panels.size(), at(3 * 7 * 64));
  for (Index n = 0; n < 192; ++n)
    for (Index k = 0; k < 7; ++k) {
      const Stored found =
          problem.panels[at((n / 64 * 7 + k) * 64 + stored_place<Scalar, Stored>(n % 64))];
      const Scalar exact = n < 130 ? problem.weight[at(n * 7 + k)] : Scalar(0);
      ASSERT_EQ(found, detail::narrowed<Stored>(exact)) << n << ", " << k;
    }
}

}  // namespace
