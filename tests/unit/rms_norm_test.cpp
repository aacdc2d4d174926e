// SPDX-License-Identifier: MIT
#include "gated_attention/math/rms_norm.hpp"

#include "unit/accuracy.hpp"

namespace {

using namespace gated_attention;
using accuracy::infinity;
using accuracy::nan;

template <class Scalar>
using Row = std::vector<Scalar>;

template <class Scalar>
Index size(const Row<Scalar>& row) {
  return static_cast<Index>(row.size());
}

/// One head's row through the norm.
template <class Scalar>
Row<Scalar> normalised(Row<Scalar> x, double eps, const Row<Scalar>& weight = {}) {
  kernel::rms_norm_heads<Scalar>(x.data(), 1, size(x), size(x),
                                 weight.empty() ? nullptr : weight.data(), Scalar(eps));
  return x;
}

template <class Scalar>
Row<Scalar> repeated(Index count, double value) {
  return Row<Scalar>(static_cast<std::size_t>(count), Scalar(value));
}

template <class Scalar>
void expect_near(const Row<Scalar>& y, const std::vector<double>& expected,
                 double tolerance = 2e-6) {
  ASSERT_EQ(y.size(), expected.size());
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_NEAR(static_cast<double>(y[i]), expected[i], tolerance * std::fabs(expected[i])) << i;
}

template <class Scalar>
class RmsNormOf : public ::testing::Test {};
TYPED_TEST_SUITE(RmsNormOf, accuracy::Scalars);

TYPED_TEST(RmsNormOf, HandCheckedRows) {
  using S = TypeParam;
  expect_near(normalised<S>({3, 4}, 0, {1, 1}), {0.8485281, 1.1313708}, 1e-7);
  expect_near(normalised<S>({3, 4}, 0, {0, 0}), {0, 0});
  expect_near(normalised<S>({3, 4}, 0, {2, -0.5}), {1.6970563, -0.5656854}, 1e-7);
  expect_near(normalised<S>({S(1e-3), S(1e-3)}, 1e-6), {0.7071068, 0.7071068});
  expect_near(normalised<S>({S(1e-3), S(1e-3)}, 1e-5), {0.3015113, 0.3015113});
  expect_near(normalised<S>({1, 0}, 0, {1, 2}), {1.4142136, 0}, 1e-7);
}

TYPED_TEST(RmsNormOf, WeightOfOnesChangesNoBit) {
  const Row<TypeParam> x = {TypeParam(0.1), TypeParam(-7), TypeParam(3.3)};
  EXPECT_EQ((normalised<TypeParam>(x, 1e-6, {1, 1, 1})), (normalised<TypeParam>(x, 1e-6)));
}

TYPED_TEST(RmsNormOf, LargeRowsDoNotOverflow) {
  const double huge = std::is_same_v<TypeParam, float> ? 1e25 : 1e200;
  expect_near(normalised<TypeParam>(repeated<TypeParam>(4, huge), 1e-6), {1, 1, 1, 1}, 1e-6);
  expect_near(normalised<TypeParam>(repeated<TypeParam>(4, huge), 100), {1, 1, 1, 1}, 1e-6);
  const double largest = static_cast<double>(std::numeric_limits<TypeParam>::max());
  expect_near(normalised<TypeParam>(repeated<TypeParam>(3, largest), 1e-6), {1, 1, 1}, 1e-6);
  expect_near(normalised<TypeParam>({TypeParam(largest), 0, TypeParam(-largest), 0}, 1e-6),
              {std::sqrt(2.0), 0, -std::sqrt(2.0), 0}, 1e-6);
}

TYPED_TEST(RmsNormOf, TinyRowsAreNotLost) {
  expect_near(normalised<TypeParam>(repeated<TypeParam>(4, 1e-4), 1e-6),
              {0.0995037, 0.0995037, 0.0995037, 0.0995037});
  // Squares below the smallest number.
  const double tiny = std::is_same_v<TypeParam, float> ? 1e-30 : 1e-300;
  expect_near(normalised<TypeParam>(repeated<TypeParam>(4, tiny), 0), {1, 1, 1, 1}, 1e-6);
  const double smallest = static_cast<double>(std::numeric_limits<TypeParam>::denorm_min());
  expect_near(normalised<TypeParam>(repeated<TypeParam>(2, smallest), 0), {1, 1}, 1e-6);
  expect_near(normalised<TypeParam>(repeated<TypeParam>(2, tiny), 1e-6), {tiny * 1e3, tiny * 1e3},
              1e-6);
}

TYPED_TEST(RmsNormOf, ZerosGiveZerosAlsoWithoutEps) {
  EXPECT_EQ((normalised<TypeParam>({0, 0, 0}, 1e-6)), (Row<TypeParam>{0, 0, 0}));
  EXPECT_EQ((normalised<TypeParam>({0, 0, 0}, 0)), (Row<TypeParam>{0, 0, 0}));
}

TYPED_TEST(RmsNormOf, OneLargeChannelAmongManyIsExact) {
  Row<TypeParam> x = repeated<TypeParam>(10000, 0);
  x[0] = 100;
  const Row<TypeParam> y = normalised<TypeParam>(x, 1e-6);
  EXPECT_NEAR(static_cast<double>(y[0]), 99.99995, 1e-5);
  EXPECT_EQ(y[9999], 0);
}

TYPED_TEST(RmsNormOf, NanFillsItsRowAndInfinityIsNoNumber) {
  for (TypeParam y : normalised<TypeParam>({1, nan<TypeParam>, 2, 0}, 1e-6))
    EXPECT_TRUE(std::isnan(y));
  for (TypeParam y : normalised<TypeParam>({0, nan<TypeParam>, 0, 0}, 0)) {
    EXPECT_TRUE(std::isnan(y));
  }
  const Row<TypeParam> y = normalised<TypeParam>({1, infinity<TypeParam>, 2, 0}, 1e-6);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[0], 0);
  const Row<TypeParam> both = normalised<TypeParam>({nan<TypeParam>, infinity<TypeParam>}, 0);
  EXPECT_TRUE(std::isnan(both[0]) && std::isnan(both[1]));
}

/// Rows of `width` channels in memory that is NaN elsewhere.
template <class Scalar>
struct Heads {
  Heads(Index heads_, Index width_, Index gap)
      : heads(heads_), width(width_), stride(width_ + gap) {
    data.assign(static_cast<std::size_t>(heads * stride), nan<Scalar>);
    std::mt19937 random(static_cast<unsigned>(width));
    std::normal_distribution<double> normal;
    for (Index h = 0; h < heads; ++h)
      for (Index c = 0; c < width; ++c) at(h, c) = Scalar(normal(random));
  }

  Scalar& at(Index h, Index c) { return data[static_cast<std::size_t>(h * stride + c)]; }

  void expect_nan_behind() {
    for (Index h = 0; h < heads; ++h)
      for (Index c = width; c < stride; ++c) ASSERT_TRUE(std::isnan(at(h, c))) << h << " " << c;
  }

  Index heads, width, stride;
  std::vector<Scalar> data;
};

template <class Scalar>
accuracy::Wide<Scalar> mean_square(Heads<Scalar>& x, Index first, Index last) {
  accuracy::Wide<Scalar> sum = 0;
  for (Index h = first; h < last; ++h) {
    for (Index c = 0; c < x.width; ++c) {
      const accuracy::Wide<Scalar> value = x.at(h, c);
      sum += value * value;
    }
  }
  return sum / static_cast<accuracy::Wide<Scalar>>((last - first) * x.width);
}

template <class Scalar>
void check_width(Index width, Index gap, bool over_row) {
  using Wide = accuracy::Wide<Scalar>;
  constexpr Index heads = 3;
  Heads<Scalar> x(heads, width, gap);
  Heads<Scalar> before = x;
  Row<Scalar> weight(static_cast<std::size_t>(over_row ? heads * width : width));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = Scalar(1) + Scalar(i % 7) / 8;
  const Scalar eps = Scalar(1e-6);
  if (over_row)
    kernel::rms_norm_row<Scalar>(x.data.data(), heads, x.stride, width, weight.data(), eps);
  else
    kernel::rms_norm_heads<Scalar>(x.data.data(), heads, x.stride, width, weight.data(), eps);
  for (Index h = 0; h < heads; ++h) {
    const Wide mean = over_row ? mean_square(before, 0, heads) : mean_square(before, h, h + 1);
    for (Index c = 0; c < width; ++c) {
      const std::size_t i = static_cast<std::size_t>(over_row ? h * width + c : c);
      const Wide y = Wide(before.at(h, c)) / std::sqrt(mean + Wide(eps)) * Wide(weight[i]);
      ASSERT_LE(accuracy::units<Scalar>(x.at(h, c), y), 8) << width << " " << c;
    }
  }
  x.expect_nan_behind();
}

TYPED_TEST(RmsNormOf, EveryWidthWithNanBehindEveryRow) {
  for (Index width = 1; width <= 70; ++width)
    for (Index gap : {Index{0}, Index{1}, lanes<TypeParam>})
      for (bool over_row : {false, true}) check_width<TypeParam>(width, gap, over_row);
}

TYPED_TEST(RmsNormOf, ARowBesideOthersHasTheBitsItHasAlone) {
  Heads<TypeParam> x(5, 37, 11);
  Heads<TypeParam> alone = x;
  kernel::rms_norm_heads<TypeParam>(x.data.data(), 5, x.stride, 37, nullptr, TypeParam(1e-6));
  kernel::rms_norm_heads<TypeParam>(&alone.at(3, 0), 1, x.stride, 37, nullptr, TypeParam(1e-6));
  for (Index c = 0; c < 37; ++c) EXPECT_EQ(x.at(3, c), alone.at(3, c));
}

TYPED_TEST(RmsNormOf, TheGuardedWayAgreesWithThePlainOne) {
  const int exponent = std::is_same_v<TypeParam, float> ? 100 : 900;
  Heads<TypeParam> x(1, 33, 0);
  Row<TypeParam> large = x.data, small = x.data;
  for (TypeParam& v : large) v = std::ldexp(v, exponent);
  for (TypeParam& v : small) v = std::ldexp(v, -exponent);
  const Row<TypeParam> y = normalised<TypeParam>(x.data, 0);
  const Row<TypeParam> of_large = normalised<TypeParam>(large, 0);
  const Row<TypeParam> of_small = normalised<TypeParam>(small, 0);
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(of_large[i] / y[i], 1, 2 * std::numeric_limits<TypeParam>::epsilon());
    EXPECT_NEAR(of_small[i] / y[i], 1, 2 * std::numeric_limits<TypeParam>::epsilon());
  }
}

}  // namespace
