// SPDX-License-Identifier: MIT
#include "gated_attention/policy/activation.hpp"

#include "unit/accuracy.hpp"

namespace {

using namespace gated_attention;
using accuracy::apply;
using accuracy::expect_absolute;
using accuracy::expect_units;
using accuracy::infinity;
using accuracy::nan;

struct Cubic {
  template <class Scalar>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::mul(z, packet::mul(z, z));
  }
  template <class Scalar>
  static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(3)), packet::mul(z, z));
  }
  static double reference(double z) { return z * z * z; }
};

struct OnFloatOnly {
  template <class Scalar>
  requires std::is_same_v<Scalar, float>
  static Packet<Scalar> value(const Packet<Scalar>& z) { return z; }
  template <class Scalar>
  requires std::is_same_v<Scalar, float>
  static Packet<Scalar> derivative(const Packet<Scalar>& z) { return z; }
};

struct WithoutDerivative {
  template <class Scalar>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    return z;
  }
};

static_assert(Activation<Sigmoid> && Activation<Silu> && Activation<NonSparseSigmoid> &&
              Activation<Identity> && Activation<Tanh> && Activation<Softplus> &&
              Activation<TwiceSigmoid>);
static_assert(Activation<Cubic> && !BuiltInActivation<Cubic> && ReferenceActivation<Cubic>);
static_assert(Activation<OnFloatOnly> && !ReferenceActivation<OnFloatOnly>);
static_assert(!Activation<WithoutDerivative> && !Activation<int> && !Activation<float*>);
static_assert(Sigmoid::name == "sigmoid" && NonSparseSigmoid::name == "non_sparse_sigmoid");

template <class A, class Scalar>
constexpr auto value_of = [](const Packet<Scalar>& z) { return packet::activate<A, Scalar>(z); };
template <class A, class Scalar>
constexpr auto derivative_of =
    [](const Packet<Scalar>& z) { return packet::activate_derivative<A, Scalar>(z); };

template <class A, class Scalar>
Scalar value(Scalar z) {
  return apply<Scalar>(value_of<A, Scalar>, z);
}
template <class A, class Scalar>
Scalar derivative(Scalar z) {
  return apply<Scalar>(derivative_of<A, Scalar>, z);
}

template <class Real>
Real sigma(Real z) {
  return z < 0 ? std::exp(z) / (1 + std::exp(z)) : 1 / (1 + std::exp(-z));
}
template <class Real>
Real sigma_prime(Real z) {
  const Real e = std::exp(-std::fabs(z));
  return e / ((1 + e) * (1 + e));
}

/// Up to where e^−|z| is a normal number.
template <class Scalar>
constexpr double far = std::is_same_v<Scalar, float> ? 87 : 708;

template <class Scalar>
class ActivationOf : public ::testing::Test {};
TYPED_TEST_SUITE(ActivationOf, accuracy::Scalars);

TYPED_TEST(ActivationOf, SigmoidIsWithinItsStatedError) {
  const double z = far<TypeParam>;
  expect_units<TypeParam>(
      value_of<Sigmoid, TypeParam>, [](auto x) { return sigma(x); }, -z, 1e4, 2.4);
  expect_units<TypeParam>(
      derivative_of<Sigmoid, TypeParam>, [](auto x) { return sigma_prime(x); }, -z, z, 2.4);
  expect_units<TypeParam>(
      value_of<TwiceSigmoid, TypeParam>, [](auto x) { return 2 * sigma(x); }, -z, 1e4, 2.4);
  expect_units<TypeParam>(
      derivative_of<TwiceSigmoid, TypeParam>, [](auto x) { return 2 * sigma_prime(x); }, -z, z,
      2.4);
  expect_units<TypeParam>(
      value_of<NonSparseSigmoid, TypeParam>, [](auto x) { return (1 + sigma(x)) / 2; }, -1e4, 1e4,
      1.3);
  expect_units<TypeParam>(
      derivative_of<NonSparseSigmoid, TypeParam>, [](auto x) { return sigma_prime(x) / 2; }, -z + 1,
      z - 1, 2.4);
}

TYPED_TEST(ActivationOf, SiluIsWithinItsStatedError) {
  const double z = far<TypeParam>;
  expect_units<TypeParam>(
      value_of<Silu, TypeParam>, [](auto x) { return x * sigma(x); }, -z, 1e30, 3.1);
  expect_absolute<TypeParam>(
      derivative_of<Silu, TypeParam>, [](auto x) { return sigma(x) * (1 + x * sigma(-x)); }, -z, z,
      std::is_same_v<TypeParam, float> ? 2.5e-7 : 5e-16);
}

TYPED_TEST(ActivationOf, TanhIsWithinItsStatedErrorAlsoNearZero) {
  expect_units<TypeParam>(
      value_of<Tanh, TypeParam>, [](auto x) { return std::tanh(x); }, -1e4, 1e4, 2.6);
  expect_units<TypeParam>(
      derivative_of<Tanh, TypeParam>, [](auto x) { return 4 * sigma_prime(2 * x); },
      -far<TypeParam> / 2, far<TypeParam> / 2, 2.4);
}

TYPED_TEST(ActivationOf, SoftplusIsWithinItsStatedErrorDownToTheSmallestNumber) {
  expect_units<TypeParam>(
      value_of<Softplus, TypeParam>,
      [](auto x) { return std::max(x, decltype(x)(0)) + std::log1p(std::exp(-std::fabs(x))); },
      -800, 1e4, 2.7);
  expect_units<TypeParam>(
      derivative_of<Softplus, TypeParam>, [](auto x) { return sigma(x); }, -far<TypeParam>, 1e4,
      2.4);
}

TYPED_TEST(ActivationOf, InfinitiesGiveTheLimits) {
  const TypeParam top = infinity<TypeParam>, bottom = -top;
  EXPECT_EQ((value<Sigmoid>(top)), 1);
  EXPECT_EQ((value<Sigmoid>(bottom)), 0);
  EXPECT_EQ((derivative<Sigmoid>(top)), 0);
  EXPECT_EQ((derivative<Sigmoid>(bottom)), 0);
  EXPECT_EQ((value<Silu>(top)), top);
  EXPECT_EQ((value<Silu>(bottom)), 0);
  EXPECT_EQ((derivative<Silu>(top)), 1);
  EXPECT_EQ((derivative<Silu>(bottom)), 0);
  EXPECT_EQ((value<NonSparseSigmoid>(top)), 1);
  EXPECT_EQ((value<NonSparseSigmoid>(bottom)), TypeParam(0.5));
  EXPECT_EQ((value<Identity>(bottom)), bottom);
  EXPECT_EQ((derivative<Identity>(bottom)), 1);
  EXPECT_EQ((value<Tanh>(top)), 1);
  EXPECT_EQ((value<Tanh>(bottom)), -1);
  EXPECT_EQ((derivative<Tanh>(bottom)), 0);
  EXPECT_EQ((value<Softplus>(top)), top);
  EXPECT_EQ((value<Softplus>(bottom)), 0);
  EXPECT_EQ((value<TwiceSigmoid>(top)), 2);
  EXPECT_EQ((value<TwiceSigmoid>(bottom)), 0);
}

TYPED_TEST(ActivationOf, ZeroIsExact) {
  const TypeParam half = TypeParam(0.5);
  EXPECT_EQ((value<Sigmoid, TypeParam>(0)), half);
  EXPECT_EQ((derivative<Sigmoid, TypeParam>(0)), TypeParam(0.25));
  EXPECT_EQ((value<Silu, TypeParam>(0)), 0);
  EXPECT_EQ((derivative<Silu, TypeParam>(0)), half);
  EXPECT_EQ((value<NonSparseSigmoid, TypeParam>(0)), TypeParam(0.75));
  EXPECT_EQ((value<TwiceSigmoid, TypeParam>(0)), 1);
  EXPECT_EQ((value<Tanh, TypeParam>(0)), 0);
  EXPECT_TRUE(std::signbit(value<Tanh, TypeParam>(TypeParam(-0.0))));
  EXPECT_EQ((derivative<Tanh, TypeParam>(0)), 1);
  EXPECT_LE(accuracy::units<TypeParam>(value<Softplus, TypeParam>(0),
                                       std::log(accuracy::Wide<TypeParam>(2))),
            1);
}

template <class A, class Scalar>
void expect_no_nan_but_from_nan() {
  EXPECT_TRUE(std::isnan(value<A>(nan<Scalar>))) << A::name;
  EXPECT_TRUE(std::isnan(value<A>(-nan<Scalar>))) << A::name;
  if constexpr (!std::is_same_v<A, Identity>) {
    EXPECT_TRUE(std::isnan(derivative<A>(nan<Scalar>))) << A::name;
  }
  constexpr Scalar largest = std::numeric_limits<Scalar>::max();
  for (Scalar magnitude :
       {std::numeric_limits<Scalar>::denorm_min(), std::numeric_limits<Scalar>::min(), Scalar(1),
        Scalar(87), Scalar(88), Scalar(89), Scalar(104), Scalar(128), Scalar(200), Scalar(708),
        Scalar(746), Scalar(1e4), Scalar(1e30), largest}) {
    for (Scalar z : {magnitude, -magnitude}) {
      EXPECT_TRUE(std::isfinite(value<A>(z))) << A::name << " of " << z;
      EXPECT_TRUE(std::isfinite(derivative<A>(z))) << A::name << "' of " << z;
    }
  }
}

TYPED_TEST(ActivationOf, NanComesFromNanOnly) {
  expect_no_nan_but_from_nan<Sigmoid, TypeParam>();
  expect_no_nan_but_from_nan<Silu, TypeParam>();
  expect_no_nan_but_from_nan<NonSparseSigmoid, TypeParam>();
  expect_no_nan_but_from_nan<Identity, TypeParam>();
  expect_no_nan_but_from_nan<Tanh, TypeParam>();
  expect_no_nan_but_from_nan<Softplus, TypeParam>();
  expect_no_nan_but_from_nan<TwiceSigmoid, TypeParam>();
}

/// Never below what came before by more than `units` of the last place.
template <class A, class Scalar>
void expect_monotone(Scalar units) {
  std::vector<Scalar> z = accuracy::samples<Scalar>(-120, 120);
  std::sort(z.begin(), z.end());
  const std::vector<Scalar> s = accuracy::map<Scalar>(value_of<A, Scalar>, z);
  Scalar largest = s[0];
  for (std::size_t i = 1; i < s.size(); ++i) {
    const Scalar slack = units * std::numeric_limits<Scalar>::epsilon() * std::fabs(largest);
    ASSERT_GE(s[i], largest - slack) << A::name << " at " << z[i];
    largest = std::max(largest, s[i]);
  }
}

TYPED_TEST(ActivationOf, IsMonotoneWhereTheFunctionIs) {
  expect_monotone<Sigmoid, TypeParam>(1);
  expect_monotone<NonSparseSigmoid, TypeParam>(1);
  expect_monotone<TwiceSigmoid, TypeParam>(1);
  expect_monotone<Tanh, TypeParam>(1);
  expect_monotone<Softplus, TypeParam>(2);
}

TYPED_TEST(ActivationOf, TanhIsOddToTheBit) {
  for (TypeParam z : accuracy::samples<TypeParam>(0, 30)) {
    TypeParam positive[lanes<TypeParam>], negative[lanes<TypeParam>];
    const auto p = packet::broadcast<TypeParam>(z);
    packet::store<TypeParam>(positive, packet::tanh<TypeParam>(p));
    packet::store<TypeParam>(negative, packet::tanh<TypeParam>(packet::negate(p)));
    ASSERT_EQ(positive[0], -negative[0]) << z;
  }
}

TYPED_TEST(ActivationOf, AUsersTypeIsCalledThroughTheSameEntry) {
  EXPECT_EQ((value<Cubic, TypeParam>(-2)), -8);
  EXPECT_EQ((derivative<Cubic, TypeParam>(-2)), 12);
}

}  // namespace
