// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "gated_attention/math/packet.hpp"

// 2^x and e^x on packets of float and double. Rounding to integers and powers of two go through the
// bits of a sum with a large number, which costs an addition and a shift where Eigen's general
// functions cost ten instructions.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The format of a scalar and the coefficients that fit its precision (largest relative error of
/// the polynomial alone: 3e-9 for float, 4e-18 for double).
template <class Scalar>
struct ExpNumbers;

template <>
struct ExpNumbers<float> {
  static constexpr float rounder = 0x1.8p23f;  ///< x + rounder has no fraction
  static constexpr float bias = 127;           ///< 2^−bias is taken as 0
  static constexpr float scaler = rounder + bias;
  static constexpr int scale_shift = 23;

  /// (2^f − 1) / f,  |f| ≤ 1/2
  static constexpr float exp2_tail[] = {0.6931471824645996f,    0.24022647738456726f,
                                        0.05550359562039375f,   0.009618500247597694f,
                                        0.0013390971580520272f, 0.00015328954032156616f};
  /// (e^r − 1 − r) / r²,  |r| ≤ ln(2)/2
  static constexpr float exp_tail[] = {0.4999999403953552f, 0.1666652113199234f,
                                       0.041668251156806946f, 0.008368675597012043f,
                                       0.0013821949250996113f};

  static constexpr float log2_e = 1.44269504f;
  static constexpr float minus_ln2_high = -0.693359375f;  ///< exact times any exponent
  static constexpr float minus_ln2_low = 2.12194440e-4f;
  static constexpr float exp_zero = -104;    ///< e^x rounds to 0
  static constexpr float exp_infinity = 89;  ///< e^x rounds to infinity
};

template <>
struct ExpNumbers<double> {
  static constexpr double rounder = 0x1.8p52;
  static constexpr double bias = 1023;
  static constexpr double scaler =
      0x1.8p20 + bias;  ///< the sum's upper word ends in the biased exponent
  static constexpr int scale_shift = 20;

  static constexpr double exp2_tail[] = {
      0.6931471805599453,     0.2402265069591011,     0.05550410866482175,
      0.009618129107600602,   0.0013333558146536382,  0.00015403530450200877,
      1.5252733645615103e-05, 1.3215438292456495e-06, 1.0178154627760306e-07,
      7.073321496502197e-09,  4.4397381377517816e-10};
  static constexpr double exp_tail[] = {
      0.5000000000000011,    0.16666666666666438,    0.04166666666652694,    0.008333333333479279,
      0.0013888888944372279, 0.00019841269537796246, 2.4801492392602794e-05, 2.7557559455167736e-06,
      2.763048620745817e-07, 2.5008380630242273e-08};

  static constexpr double log2_e = 1.4426950408889634;
  static constexpr double minus_ln2_high = -0x1.62e42feep-1;
  static constexpr double minus_ln2_low = -0x1.a39ef35793c76p-33;
  static constexpr double exp_zero = -746;
  static constexpr double exp_infinity = 710;
};

/// 2^n of n + scaler: the integer n stands in the last bits (float) or in the last bits of the
/// upper word (double), and the shift takes it to the exponent's place.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> shift_to_exponent(const Packet<Scalar>& scaled) {
  constexpr int shift = ExpNumbers<Scalar>::scale_shift;
  if constexpr (HasWordPacket<Scalar>) {
    const auto words = std::bit_cast<WordPacket<Scalar>>(scaled);
    return std::bit_cast<Packet<Scalar>>(packet::shift_left<shift>(words));
  } else {
    constexpr bool is_float = std::is_same_v<Scalar, float>;
    using Word = std::conditional_t<is_float, std::uint32_t, std::uint64_t>;
    Scalar lane[lanes<Scalar>];
    packet::store<Scalar>(lane, scaled);
    for (Scalar& number : lane) {
      const Word bits = std::bit_cast<Word>(number);
      const Word exponent = is_float ? bits << shift : bits >> 32 << (32 + shift);
      number = std::bit_cast<Scalar>(exponent);
    }
    return packet::load<Scalar>(lane);
  }
}

/// 2^n for an integer −bias ≤ n ≤ bias; 0 for n = −bias.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> power_of_two(const Packet<Scalar>& n) {
  return shift_to_exponent<Scalar>(
      packet::add(n, packet::broadcast<Scalar>(ExpNumbers<Scalar>::scaler)));
}

/// The nearest integer, ties to even, for |x| < 2^22 (float) or 2^51 (double).
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> round_to_integer(const Packet<Scalar>& x) {
  const Packet<Scalar> rounder = packet::broadcast<Scalar>(ExpNumbers<Scalar>::rounder);
  return packet::sub(packet::add(x, rounder), rounder);
}

/// e^x = 2^exponent · (1 + tail),  |tail| < 0.42
template <class Scalar>
struct ReducedExp {
  Packet<Scalar> exponent;
  Packet<Scalar> tail;
};

/// For x within [exp_zero, exp_infinity] or NaN.
template <class Scalar>
GATED_ATTENTION_INLINE ReducedExp<Scalar> reduce_exp(const Packet<Scalar>& x) {
  using Numbers = ExpNumbers<Scalar>;
  const Packet<Scalar> n =
      round_to_integer<Scalar>(packet::mul(x, packet::broadcast<Scalar>(Numbers::log2_e)));
  Packet<Scalar> r = packet::madd(n, packet::broadcast<Scalar>(Numbers::minus_ln2_high), x);
  r = packet::madd(n, packet::broadcast<Scalar>(Numbers::minus_ln2_low), r);
  const Packet<Scalar> tail = packet::polynomial<Scalar>(r, Numbers::exp_tail);
  return {n, packet::madd(packet::mul(r, r), tail, r)};
}

}  // namespace kernel

namespace packet {

/// 2^x for the softmax: 13 instructions for float. Error 0.8 units in the last place with FMA, 1.1
/// without.
///
/// exp2(0) = 1 and every normal power of two is exact; x ≤ 0 gives at most 1. Results below the
/// normal numbers flush to 0: exactly 0 for −∞ and for x < −126.5 (double: −1022.5). For x > 127.5
/// (1023.5) the relative error grows to 6e-6 (7e-12) and soon after 128 (1024) comes infinity. NaN
/// gives NaN.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> exp2(const Packet<Scalar>& x) {
  using Numbers = kernel::ExpNumbers<Scalar>;
  const Packet<Scalar> largest = broadcast<Scalar>(Numbers::bias);
  // The operands' order keeps a NaN; the upper limit is on the exponent alone, so that larger x
  // overflow in the product.
  const Packet<Scalar> bounded = max(x, broadcast<Scalar>(-Numbers::bias));
  Packet<Scalar> n, scale;
  if constexpr (std::is_same_v<Scalar, float>) {
    const Packet<Scalar> scaler = broadcast<Scalar>(Numbers::scaler);
    const Packet<Scalar> scaled = min(add(bounded, scaler), add(largest, scaler));
    n = sub(scaled, scaler);
    scale = kernel::shift_to_exponent<Scalar>(scaled);
  } else {
    n = min(kernel::round_to_integer<Scalar>(bounded), largest);
    scale = kernel::power_of_two<Scalar>(n);
  }
  const Packet<Scalar> f = sub(bounded, n);
  const Packet<Scalar> tail = polynomial<Scalar>(f, Numbers::exp2_tail);
  return mul(madd(tail, f, broadcast<Scalar>(Scalar(1))), scale);
}

/// e^x with gradual underflow: 0 for −∞, infinity past the largest number, NaN for NaN, exp(0) = 1.
/// Error 1.1 units in the last place.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> exp(const Packet<Scalar>& x) {
  using Numbers = kernel::ExpNumbers<Scalar>;
  const Packet<Scalar> bounded =
      min(max(x, broadcast<Scalar>(Numbers::exp_zero)), broadcast<Scalar>(Numbers::exp_infinity));
  const kernel::ReducedExp<Scalar> reduced = kernel::reduce_exp<Scalar>(bounded);
  // Two factors, since 2^exponent alone may be no normal number where the result is one.
  const Packet<Scalar> half =
      kernel::round_to_integer<Scalar>(mul(reduced.exponent, broadcast<Scalar>(Scalar(0.5))));
  const Packet<Scalar> rest = sub(reduced.exponent, half);
  const Packet<Scalar> mantissa = add(broadcast<Scalar>(Scalar(1)), reduced.tail);
  return mul(mul(mantissa, kernel::power_of_two<Scalar>(half)), kernel::power_of_two<Scalar>(rest));
}

/// e^x − 1 without cancellation, for x ≤ 0 (NaN for NaN). Error 1.2 units in the last place.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> expm1_of_negative(const Packet<Scalar>& x) {
  const Packet<Scalar> bounded = max(x, broadcast<Scalar>(Scalar(-64)));
  const kernel::ReducedExp<Scalar> reduced = kernel::reduce_exp<Scalar>(bounded);
  const Packet<Scalar> scale = kernel::power_of_two<Scalar>(reduced.exponent);
  return madd(scale, reduced.tail, sub(scale, broadcast<Scalar>(Scalar(1))));
}

}  // namespace packet
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
