// SPDX-License-Identifier: MIT
#include "gated_attention/core/storage.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gated_attention/math/stored_packet.hpp"

namespace gated_attention {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// How many bits of exponent and of fraction.
template <class Stored>
struct Format;
template <>
struct Format<bfloat16> {
  static constexpr int exponent = 8, fraction = 7;
};
template <>
struct Format<half> {
  static constexpr int exponent = 5, fraction = 10;
};

template <class Stored>
Stored pattern(std::uint32_t bits) {
  Stored stored;
  stored.bits = static_cast<std::uint16_t>(bits);
  return stored;
}

/// The number of a pattern by the words of IEEE 754: (−1)^s·(1 + m)·2^(e − bias), without the 1 at e = 0.
template <class Stored>
double value_of(std::uint32_t bits) {
  constexpr int fraction = Format<Stored>::fraction;
  constexpr int top = (1 << Format<Stored>::exponent) - 1, bias = top / 2;
  const int exponent = static_cast<int>(bits >> fraction) & top;
  const int m = static_cast<int>(bits & ((1U << fraction) - 1U));
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  if (exponent == top) return m == 0 ? sign * infinity : nan;
  if (exponent == 0) return sign * std::ldexp(m, 1 - bias - fraction);
  return sign * std::ldexp(m + (1 << fraction), exponent - bias - fraction);
}

template <class Stored>
constexpr std::uint32_t infinite_pattern() {
  return ((1U << Format<Stored>::exponent) - 1U) << Format<Stored>::fraction;
}

/// The pattern of the nearest of all numbers that there are, of two equally near the even one;
/// infinity stands where the next number would.
template <class Stored>
std::uint32_t nearest(double value) {
  static const std::vector<double> magnitudes = [] {
    std::vector<double> all;
    for (std::uint32_t bits = 0; bits < infinite_pattern<Stored>(); ++bits)
      all.push_back(value_of<Stored>(bits));
    all.push_back(2 *
                  value_of<Stored>(infinite_pattern<Stored>() - (1U << Format<Stored>::fraction)));
    return all;
  }();
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::abs(value);
  const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), magnitude);
  if (above == magnitudes.end()) return sign | infinite_pattern<Stored>();
  const auto high = static_cast<std::uint32_t>(above - magnitudes.begin());
  const double up = *above - magnitude, down = magnitude - *(above - 1);
  if (up == down) return sign | (high % 2 == 0 ? high : high - 1U);
  return sign | (up < down ? high : high - 1U);
}

template <class Stored, class Scalar>
void expect_nearest(Scalar value) {
  const std::uint32_t given = detail::narrowed<Stored>(value).bits;
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(value_of<Stored>(given))) << std::hex << given;
    ASSERT_EQ((given & 0x8000U) != 0, std::signbit(value));
  } else {
    ASSERT_EQ(given, nearest<Stored>(static_cast<double>(value)))
        << std::hexfloat << static_cast<double>(value);
  }
}

/// Fractions of a float at and beside every place where rounding to a type of fewer bits turns: each
/// bit as the half, behind few bits, many and all there are of the two types.
std::vector<std::uint32_t> turning_fractions() {
  std::vector<std::uint32_t> all = {0, 1, 0x7fffffU};
  for (int bit = 0; bit < 23; ++bit)
    for (const std::uint32_t kept : {0U, 1U, 2U, 3U, 0x555555U, 0xfffffeU, 0xffffffU})
      for (const int beside : {-1, 0, 1})
        all.push_back(((kept << (bit + 1)) + (1U << bit) + static_cast<std::uint32_t>(beside)) &
                      0x7fffffU);
  for (const int dropped : {13, 16})
    for (std::uint32_t kept = 0; kept < 0x800000U >> dropped; ++kept)
      for (const int beside : {-1, 0, 1})
        all.push_back((kept << dropped) + (1U << (dropped - 1)) +
                      static_cast<std::uint32_t>(beside));
  return all;
}

/// Every sign and exponent with those fractions.
template <class Function>
void for_each_turning_float(const Function& function) {
  const std::vector<std::uint32_t> fractions = turning_fractions();
  for (std::uint32_t sign_and_exponent = 0; sign_and_exponent < 512; ++sign_and_exponent)
    for (const std::uint32_t fraction : fractions)
      function(std::bit_cast<float>((sign_and_exponent << 23) | fraction));
}

template <class Stored>
class Storage : public testing::Test {};
using Types = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(Storage, Types);

TYPED_TEST(Storage, EveryPatternIsTheNumberThatItsBitsSayInFloatAndDouble) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const TypeParam stored = pattern<TypeParam>(bits);
    const double value = value_of<TypeParam>(bits);
    const float in_float = static_cast<float>(stored);
    const double in_double = detail::widened<double>(stored);
    ASSERT_EQ(std::signbit(in_float), (bits & 0x8000U) != 0) << std::hex << bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(in_float) && std::isnan(in_double)) << std::hex << bits;
    } else {
      ASSERT_EQ(static_cast<double>(in_float), value) << std::hex << bits;
      ASSERT_EQ(in_double, value) << std::hex << bits;
    }
  }
}

TYPED_TEST(Storage, EveryPatternComesBackFromFloatAndDouble) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const TypeParam stored = pattern<TypeParam>(bits);
    const bool is_nan = std::isnan(value_of<TypeParam>(bits));
    for (const TypeParam back : {TypeParam(static_cast<float>(stored)),
                                 detail::narrowed<TypeParam>(detail::widened<double>(stored))}) {
      if (is_nan) {
        ASSERT_TRUE(std::isnan(value_of<TypeParam>(back.bits))) << std::hex << bits;
      } else {
        ASSERT_EQ(back.bits, bits) << std::hex << bits;
      }
    }
  }
}

TYPED_TEST(Storage, AFloatIsStoredAsTheNearestNumberOrTheEvenOneOfTwo) {
  for_each_turning_float([](float value) { expect_nearest<TypeParam>(value); });
}

TYPED_TEST(Storage, ADoubleIsRoundedOnce) {
  Index rounded_twice = 0;
  const auto expect = [&](double magnitude) {
    for (const double value : {magnitude, -magnitude}) {
      expect_nearest<TypeParam>(value);
      if (TypeParam(static_cast<float>(value)).bits != nearest<TypeParam>(value)) ++rounded_twice;
    }
  };
  // Halfway between neighbours, the next double, and what float would round to halfway.
  for (std::uint32_t bits = 0; bits < infinite_pattern<TypeParam>(); ++bits) {
    const double low = value_of<TypeParam>(bits);
    const double high = bits + 1 < infinite_pattern<TypeParam>()
                            ? value_of<TypeParam>(bits + 1)
                            : 2 * low - value_of<TypeParam>(bits - 1);
    const double middle = (low + high) / 2;
    for (const double value : {low, middle})
      for (const double beside : {0.0, std::ldexp(high - low, -40), std::ldexp(high - low, -25)}) {
        expect(value + beside);
        expect(value - beside);
      }
    expect(std::nextafter(middle, 0));
    expect(std::nextafter(middle, infinity));
  }
  EXPECT_GT(rounded_twice, 1000) << "the cases must tell rounding once from twice";
}

TYPED_TEST(Storage, ADoubleBeyondTheRangeOfFloatIsInfinityOrZeroOfItsSign) {
  const double least = std::numeric_limits<double>::denorm_min();
  const double float_least = static_cast<double>(std::numeric_limits<float>::denorm_min());
  for (const double value :
       {0.0, least, 1e-300, 1e-50, 0.25 * float_least, 0.5 * float_least, 0.75 * float_least, 3e38,
        3.4e38, 3.41e38, 1e39, 1e300, std::numeric_limits<double>::max(), infinity, nan}) {
    expect_nearest<TypeParam>(value);
    expect_nearest<TypeParam>(-value);
  }
}

TEST(Storage, ConversionsAreConstants) {
  static_assert(half(1.0F).bits == 0x3c00 && half(-2.0F).bits == 0xc000);
  static_assert(half(65504.0F).bits == 0x7bff && half(65519.0F).bits == 0x7bff);
  static_assert(half(65520.0F).bits == 0x7c00 && half(1e9F).bits == 0x7c00);
  static_assert(half(0x1p-24F).bits == 1 && half(0x1p-25F).bits == 0 && half(0x1.8p-24F).bits == 2);
  static_assert(bfloat16(1.0F).bits == 0x3f80 && bfloat16(-0.0F).bits == 0x8000);
  static_assert(bfloat16(0x1.01p0F).bits == 0x3f80 && bfloat16(0x1.03p0F).bits == 0x3f82);
  static_assert(static_cast<float>(half(0.1F)) == 0x1.998p-4F);
  static_assert(static_cast<float>(bfloat16(0.1F)) == 0x1.9ap-4F);
}

#if defined(__FLT16_MANT_DIG__)
TEST(Storage, AHalfIsTheCompilersOwn) {
  __extension__ using Native = _Float16;
  for_each_turning_float([](float value) {
    if (std::isnan(value)) return;
    ASSERT_EQ(half(value).bits, std::bit_cast<std::uint16_t>(static_cast<Native>(value))) << value;
  });
  for (std::uint32_t bits = 0; bits < infinite_pattern<half>(); ++bits)
    ASSERT_EQ(static_cast<float>(pattern<half>(bits)),
              static_cast<float>(std::bit_cast<Native>(static_cast<std::uint16_t>(bits))));
}
#endif

// Packets.

template <class A, class B>
struct Pair {
  using Scalar = A;
  using Stored = B;
};
template <class>
class StoredPackets : public testing::Test {};
using Pairs = testing::Types<Pair<float, bfloat16>, Pair<float, half>, Pair<float, std::int8_t>,
                             Pair<float, float>, Pair<double, bfloat16>, Pair<double, half>,
                             Pair<double, std::int8_t>, Pair<double, float>, Pair<double, double>>;
TYPED_TEST_SUITE(StoredPackets, Pairs);

/// All patterns of types of few bits; numbers of all magnitudes of the others.
template <class Stored>
std::vector<Stored> numbers() {
  std::vector<Stored> all;
  if constexpr (std::is_same_v<Stored, std::int8_t>) {
    for (int n = -128; n < 128; ++n) all.push_back(static_cast<std::int8_t>(n));
  } else if constexpr (std::is_floating_point_v<Stored>) {
    for (int i = 0; i < 1000; ++i)
      all.push_back(static_cast<Stored>(std::ldexp(i % 7 - 3.3, i % 250 - 125)));
    for (const double x : {0.0, -0.0, infinity, -infinity, nan})
      all.push_back(static_cast<Stored>(x));
  } else {
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) all.push_back(pattern<Stored>(bits));
  }
  return all;
}

TYPED_TEST(StoredPackets, HoldTheNumbersOfTheirRowInOrder) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  constexpr Index row_packets = 4, width = row_packets * lanes<Scalar>;
  const std::vector<Stored> all = numbers<Stored>();
  const Index count = static_cast<Index>(all.size());
  for (const Index start : {0, 1}) {  // a row may start anywhere in memory
    for (Index first = 0; first < count; first += width) {
      std::vector<Stored> memory(static_cast<std::size_t>(start + width));
      Stored* const row = memory.data() + start;
      const auto number = [&](Index i) {
        return all[static_cast<std::size_t>((first + i) % count)];
      };
      for (Index i = 0; i < width; ++i) row[stored_place<Scalar, Stored>(i)] = number(i);
      for (Index j = 0; j < row_packets; ++j) {
        Scalar given[static_cast<std::size_t>(lanes<Scalar>)];
        packet::store<Scalar>(given, packet::load_stored<Scalar>(row, j));
        for (Index lane = 0; lane < lanes<Scalar>; ++lane) {
          const Scalar wanted = detail::widened<Scalar>(number(j * lanes<Scalar> + lane));
          const Scalar got = given[lane];
          if (std::isnan(wanted)) {
            ASSERT_TRUE(std::isnan(got)) << "packet " << j << ", lane " << lane;
          } else {
            ASSERT_EQ(got, wanted) << "packet " << j << ", lane " << lane;
            ASSERT_EQ(std::signbit(got), std::signbit(wanted));
          }
        }
      }
    }
  }
}

TYPED_TEST(StoredPackets, PlacesAreAPermutationOfEachRun) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  constexpr Index run = stored_lanes<Scalar, Stored>;
  static_assert(64 % run == 0, "a row of 64 is whole runs");
  std::vector<Index> taken(4 * static_cast<std::size_t>(run), 0);
  for (Index i = 0; i < 4 * run; ++i) {
    const Index place = stored_place<Scalar, Stored>(i);
    ASSERT_EQ(place / run, i / run) << "outside its run";
    ++taken[static_cast<std::size_t>(place)];
  }
  EXPECT_EQ(taken, std::vector<Index>(taken.size(), 1));
}

}  // namespace
}  // namespace gated_attention
