// SPDX-License-Identifier: MIT
#include "gated_attention/math/exp.hpp"

#include "unit/accuracy.hpp"

namespace {

using namespace gated_attention;
using accuracy::apply;
using accuracy::infinity;
using accuracy::nan;

template <class Scalar>
Scalar exp2(Scalar x) {
  return apply<Scalar>([](const Packet<Scalar>& p) { return packet::exp2<Scalar>(p); }, x);
}

template <class Scalar>
Scalar exp(Scalar x) {
  return apply<Scalar>([](const Packet<Scalar>& p) { return packet::exp<Scalar>(p); }, x);
}

template <class Scalar>
Scalar expm1(Scalar x) {
  return apply<Scalar>([](const Packet<Scalar>& p) { return packet::expm1_of_negative<Scalar>(p); },
                       x);
}

/// x = bias is past the largest exponent.
template <class Scalar>
constexpr Scalar bias = Scalar(std::numeric_limits<Scalar>::max_exponent - 1);

template <class Scalar>
class Exp2 : public ::testing::Test {};
TYPED_TEST_SUITE(Exp2, accuracy::Scalars);

TYPED_TEST(Exp2, ZeroIsExactlyOne) {
  EXPECT_EQ(exp2<TypeParam>(0), 1);
  EXPECT_EQ(exp2<TypeParam>(TypeParam(-0.0)), 1);
  EXPECT_EQ(exp2<TypeParam>(std::numeric_limits<TypeParam>::denorm_min()), 1);
}

TYPED_TEST(Exp2, NormalPowersOfTwoAreExact) {
  for (TypeParam n = 1 - bias<TypeParam>; n <= bias<TypeParam>; ++n)
    ASSERT_EQ(exp2<TypeParam>(n), std::exp2(n)) << n;
}

TYPED_TEST(Exp2, MinusInfinityAndAllBelowTheNormalNumbersIsExactlyZero) {
  const TypeParam half_past = TypeParam(0.5) - bias<TypeParam>;
  for (TypeParam x : {-infinity<TypeParam>, -std::numeric_limits<TypeParam>::max(),
                      TypeParam(-1e30), TypeParam(-1e6), TypeParam(-2000), -bias<TypeParam>,
                      std::nextafter(half_past, -infinity<TypeParam>)}) {
    EXPECT_EQ(exp2<TypeParam>(x), 0) << x;
    EXPECT_FALSE(std::signbit(exp2<TypeParam>(x))) << x;
  }
  EXPECT_GT(exp2<TypeParam>(1 - bias<TypeParam>), 0);
}

TYPED_TEST(Exp2, OverflowsToInfinityPastTheLargestExponentOnly) {
  for (TypeParam x : {infinity<TypeParam>, std::numeric_limits<TypeParam>::max(), TypeParam(1e30),
                      TypeParam(1e6), bias<TypeParam> + 3, bias<TypeParam> + TypeParam(1.001)})
    EXPECT_EQ(exp2<TypeParam>(x), infinity<TypeParam>) << x;
  const TypeParam last = bias<TypeParam> + TypeParam(0.99);
  EXPECT_NEAR(exp2<TypeParam>(last) / std::exp2(last), 1, 1e-5);
}

TYPED_TEST(Exp2, NanGivesNan) {
  EXPECT_TRUE(std::isnan(exp2<TypeParam>(nan<TypeParam>)));
  EXPECT_TRUE(std::isnan(exp2<TypeParam>(-nan<TypeParam>)));
  EXPECT_TRUE(std::isnan(exp2<TypeParam>(std::numeric_limits<TypeParam>::signaling_NaN())));
}

TYPED_TEST(Exp2, IsWithinElevenTenthsOfTheLastPlace) {
  const double top = static_cast<double>(bias<TypeParam>);
  accuracy::expect_units<TypeParam>([](const auto& x) { return packet::exp2<TypeParam>(x); },
                                    [](auto x) { return std::exp2(x); }, 1 - top, top + 0.49, 1.1);
}

TYPED_TEST(Exp2, NeverExceedsOneForNegativeArguments) {
  TypeParam x = 0;
  for (int i = 0; i < 1000; ++i) {
    x = std::nextafter(x - TypeParam(i) * TypeParam(1e-6), -infinity<TypeParam>);
    ASSERT_LE(exp2<TypeParam>(x), 1) << x;
  }
}

template <class Scalar>
class Exp : public ::testing::Test {};
TYPED_TEST_SUITE(Exp, accuracy::Scalars);

TYPED_TEST(Exp, HasTheLimitsOfTheExponential) {
  EXPECT_EQ(exp<TypeParam>(0), 1);
  EXPECT_EQ(exp<TypeParam>(TypeParam(-0.0)), 1);
  for (TypeParam x : {-infinity<TypeParam>, -std::numeric_limits<TypeParam>::max(),
                      TypeParam(-1e30), TypeParam(-746)})
    EXPECT_EQ(exp<TypeParam>(x), 0) << x;
  for (TypeParam x : {infinity<TypeParam>, std::numeric_limits<TypeParam>::max(), TypeParam(1e30),
                      TypeParam(710)})
    EXPECT_EQ(exp<TypeParam>(x), infinity<TypeParam>) << x;
  EXPECT_TRUE(std::isnan(exp<TypeParam>(nan<TypeParam>)));
}

TYPED_TEST(Exp, IsFiniteUpToTheLargestNumber) {
  const TypeParam largest = std::numeric_limits<TypeParam>::max();
  const TypeParam edge = std::log(largest);
  EXPECT_LT(exp<TypeParam>(std::nextafter(edge, TypeParam(0))), infinity<TypeParam>);
  EXPECT_GT(exp<TypeParam>(std::nextafter(edge, TypeParam(0))), largest * TypeParam(0.99));
  EXPECT_EQ(exp<TypeParam>(edge * TypeParam(1.0001)), infinity<TypeParam>);
}

TYPED_TEST(Exp, IsWithinElevenTenthsOfTheLastPlaceDownToTheSmallestNumber) {
  const bool is_float = std::is_same_v<TypeParam, float>;
  accuracy::expect_units<TypeParam>([](const auto& x) { return packet::exp<TypeParam>(x); },
                                    [](auto x) { return std::exp(x); }, is_float ? -110 : -750,
                                    is_float ? 88.7 : 709.7, 1.1);
}

TYPED_TEST(Exp, MinusOneLosesNothingNearZero) {
  accuracy::expect_units<TypeParam>(
      [](const auto& x) { return packet::expm1_of_negative<TypeParam>(x); },
      [](auto x) { return std::expm1(x); }, -800, 0, 1.2);
  EXPECT_EQ(expm1<TypeParam>(0), 0);
  EXPECT_EQ(expm1<TypeParam>(-infinity<TypeParam>), -1);
  EXPECT_TRUE(std::isnan(expm1<TypeParam>(nan<TypeParam>)));
  const TypeParam tiny = std::numeric_limits<TypeParam>::denorm_min();
  EXPECT_EQ(expm1<TypeParam>(-tiny), -tiny);
}

}  // namespace
