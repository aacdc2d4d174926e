// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gated_attention/math/packet.hpp"

// Functions on packets against the same functions in a wider scalar.

namespace accuracy {

using namespace gated_attention;

template <class Scalar>
using Wide = std::conditional_t<std::is_same_v<Scalar, float>, double, long double>;

template <class Scalar>
inline constexpr Scalar infinity = std::numeric_limits<Scalar>::infinity();
template <class Scalar>
inline constexpr Scalar nan = std::numeric_limits<Scalar>::quiet_NaN();

/// f(x) from each lane in turn, with NaN or infinity in the other lanes: all must agree to the bit.
template <class Scalar, class Function>
Scalar apply(Function f, Scalar x) {
  Scalar result = 0;
  for (Scalar neighbour : {nan<Scalar>, infinity<Scalar>, -infinity<Scalar>, Scalar(3)}) {
    for (Index lane = 0; lane < lanes<Scalar>; ++lane) {
      Scalar numbers[lanes<Scalar>];
      for (Scalar& number : numbers) number = neighbour;
      numbers[lane] = x;
      packet::store<Scalar>(numbers, f(packet::load<Scalar>(numbers)));
      using Bits = std::conditional_t<sizeof(Scalar) == 4, std::uint32_t, std::uint64_t>;
      if (lane > 0 && !std::isnan(result)) {
        EXPECT_EQ(std::bit_cast<Bits>(result), std::bit_cast<Bits>(numbers[lane])) << "x = " << x;
      }
      result = numbers[lane];
    }
  }
  return result;
}

/// |value − exact| in units of the exact value's last place, never smaller than the smallest number's.
template <class Scalar>
double units(Scalar value, Wide<Scalar> exact) {
  if (std::isnan(value) || std::isinf(value) || std::isnan(exact))
    return static_cast<Wide<Scalar>>(value) == exact ? 0 : 1e30;
  constexpr int digits = std::numeric_limits<Scalar>::digits;
  constexpr int smallest = std::numeric_limits<Scalar>::min_exponent;
  int exponent = smallest;
  if (exact != 0) std::frexp(exact, &exponent);
  exponent = std::max(exponent, smallest);
  const Wide<Scalar> difference = std::fabs(static_cast<Wide<Scalar>>(value) - exact);
  return static_cast<double>(std::ldexp(difference, digits - exponent));
}

/// Numbers of [low, high]: spread evenly, of every magnitude, and the ends.
template <class Scalar>
std::vector<Scalar> samples(double low, double high) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<Scalar> numbers = {Scalar(low), Scalar(high)};
  for (int i = 0; i < 60000; ++i) numbers.push_back(Scalar(low + (high - low) * unit(random)));
  for (int i = 0; i < 60000; ++i) {
    const int smallest = std::numeric_limits<Scalar>::min_exponent - 1;
    const double magnitude =
        std::ldexp(1 + unit(random), i % 2 == 0 ? -i % 30 + 6 : i % (-smallest) + smallest);
    const double x = i % 4 < 2 ? magnitude : -magnitude;
    if (low <= x && x <= high) numbers.push_back(Scalar(x));
  }
  while (numbers.size() % static_cast<std::size_t>(lanes<Scalar>) != 0)
    numbers.push_back(Scalar(low));
  return numbers;
}

/// The function at all of x, a whole number of packets.
template <class Scalar, class Function>
std::vector<Scalar> map(Function f, const std::vector<Scalar>& x) {
  std::vector<Scalar> y(x.size());
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(lanes<Scalar>))
    packet::store<Scalar>(y.data() + i, f(packet::load<Scalar>(x.data() + i)));
  return y;
}

/// Every sample within `limit` units in the last place.
template <class Scalar, class Function, class Exact>
void expect_units(Function f, Exact exact, double low, double high, double limit) {
  const std::vector<Scalar> x = samples<Scalar>(low, high);
  const std::vector<Scalar> y = map<Scalar>(f, x);
  double largest = 0;
  Scalar where = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = units<Scalar>(y[i], exact(static_cast<Wide<Scalar>>(x[i])));
    if (error > largest) where = x[i];
    largest = std::max(largest, error);
  }
  EXPECT_LE(largest, limit) << "at x = " << where;
}

/// Every sample within `limit`, absolute.
template <class Scalar, class Function, class Exact>
void expect_absolute(Function f, Exact exact, double low, double high, double limit) {
  const std::vector<Scalar> x = samples<Scalar>(low, high);
  const std::vector<Scalar> y = map<Scalar>(f, x);
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(static_cast<double>(y[i]),
                static_cast<double>(exact(static_cast<Wide<Scalar>>(x[i]))), limit)
        << "at x = " << x[i];
}

using Scalars = ::testing::Types<float, double>;

}  // namespace accuracy
