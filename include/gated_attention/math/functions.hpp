// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/math/exp.hpp"

// The functions that gates and activations are made of, on packets of float and double, each with
// its derivative. All use e = e^−|x| (e^−2|x| for tanh), which never overflows; NaN gives NaN and
// infinities give the limits. Errors are the largest measured, in units in the last place of a
// normal result, alike for float and double and with or without FMA.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// (atanh(s)/s − 1) / s²,  0 ≤ s² ≤ 1/9; relative error of atanh 1e-10 (float), 1.3e-18 (double).
template <class Scalar>
struct AtanhNumbers;

template <>
struct AtanhNumbers<float> {
  static constexpr float tail[] = {0.3333333730697632f, 0.199994757771492f, 0.14307543635368347f,
                                   0.10722775012254715f, 0.12119121849536896f};
};

template <>
struct AtanhNumbers<double> {
  static constexpr double tail[] = {0.33333333333333154, 0.20000000000077775,  0.1428571427404312,
                                    0.11111111977336838, 0.09090872233106177,  0.07693274152791524,
                                    0.0665056302989931,  0.060524432959552864, 0.041726490526974774,
                                    0.08504523635764082};
};

/// ln(1 + e) for 0 ≤ e ≤ 1, accurate for tiny e:  2·atanh(s) with s = e / (2 + e).
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> log1p_of_unit(const Packet<Scalar>& e) {
  const Packet<Scalar> two = packet::broadcast<Scalar>(Scalar(2));
  const Packet<Scalar> twice_s = packet::div(packet::add(e, e), packet::add(e, two));
  const Packet<Scalar> s = packet::mul(twice_s, packet::broadcast<Scalar>(Scalar(0.5)));
  const Packet<Scalar> square = packet::mul(s, s);
  const Packet<Scalar> tail = packet::polynomial<Scalar>(square, AtanhNumbers<Scalar>::tail);
  return packet::madd(packet::mul(twice_s, square), tail, twice_s);
}

/// e^−|x|
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> decay(const Packet<Scalar>& x) {
  return packet::exp<Scalar>(packet::negate(packet::abs(x)));
}

/// x, but no less than a number for which e^x is 0 already: −infinity times 0 is no number.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> at_least_finite(const Packet<Scalar>& x) {
  return packet::max(x, packet::broadcast<Scalar>(2 * ExpNumbers<Scalar>::exp_zero));
}

}  // namespace kernel

namespace packet {

/// σ(x) = 1 / (1 + e^−x); error 2.4. Monotone to one unit.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> sigmoid(const Packet<Scalar>& x) {
  const Packet<Scalar> one = broadcast<Scalar>(Scalar(1));
  const Packet<Scalar> e = kernel::decay<Scalar>(x);
  return div(select_less(x, zero<Scalar>(), e, one), add(one, e));
}

/// σ′(x) = σ(x)·σ(−x) = e / (1 + 2e + e²); error 2.4.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> sigmoid_derivative(const Packet<Scalar>& x) {
  const Packet<Scalar> e = kernel::decay<Scalar>(x);
  const Packet<Scalar> two = broadcast<Scalar>(Scalar(2));
  return div(e, madd(e, add(e, two), broadcast<Scalar>(Scalar(1))));
}

/// silu(x) = x·σ(x), −0 for −∞; error 3.1 where σ(x) is a normal number.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> silu(const Packet<Scalar>& x) {
  return mul(kernel::at_least_finite<Scalar>(x), sigmoid<Scalar>(x));
}

/// silu′(x) = σ(x)·(1 + x·σ(−x)). It has a zero near −1.28: the error is 2.5e-7 (float) and 5e-16
/// (double), absolute.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> silu_derivative(const Packet<Scalar>& x) {
  const Packet<Scalar> one = broadcast<Scalar>(Scalar(1));
  const Packet<Scalar> e = kernel::decay<Scalar>(x);
  const Packet<Scalar> larger = div(one, add(one, e));
  const Packet<Scalar> smaller = mul(e, larger);
  const Packet<Scalar> value = select_less(x, zero<Scalar>(), smaller, larger);
  const Packet<Scalar> opposite = select_less(x, zero<Scalar>(), larger, smaller);
  const Packet<Scalar> limit = broadcast<Scalar>(-2 * kernel::ExpNumbers<Scalar>::exp_zero);
  const Packet<Scalar> finite = min(kernel::at_least_finite<Scalar>(x), limit);
  return mul(value, madd(finite, opposite, one));
}

/// tanh(x), odd to the bit, tanh(x) = x for tiny x; error 2.6.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> tanh(const Packet<Scalar>& x) {
  const Packet<Scalar> magnitude = abs(x);
  const Packet<Scalar> m = expm1_of_negative<Scalar>(negate(add(magnitude, magnitude)));
  return copy_sign(div(m, add(m, broadcast<Scalar>(Scalar(2)))), x);
}

/// tanh′(x) = 1 − tanh²(x) = 4·σ(2x)·σ(−2x); error 2.4.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> tanh_derivative(const Packet<Scalar>& x) {
  return mul(broadcast<Scalar>(Scalar(4)), sigmoid_derivative<Scalar>(add(x, x)));
}

/// softplus(x) = ln(1 + e^x) = max(x, 0) + ln(1 + e^−|x|); error 2.7. Its derivative is σ(x).
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> softplus(const Packet<Scalar>& x) {
  return add(max(x, zero<Scalar>()), kernel::log1p_of_unit<Scalar>(kernel::decay<Scalar>(x)));
}

}  // namespace packet
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
