// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <type_traits>

#include "gated_attention/core/index.hpp"
#include "gated_attention/core/instruction_set.hpp"

// The one place that names Eigen's packet functions. They are the same in Eigen 3.4 and 5 and exist
// for every instruction set that Eigen knows; without one, a packet is a single number.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The widest packet of Eigen's for a scalar: 16 floats with AVX-512, 8 with AVX, 4 with SSE and
/// NEON.
template <class Scalar>
using Packet = typename Eigen::internal::packet_traits<Scalar>::type;

/// How many numbers a packet holds.
template <class Scalar>
inline constexpr Index lanes = Eigen::internal::unpacket_traits<Packet<Scalar>>::size;

/// A packet of 32-bit integers as large as a packet of floats. (Named through Scalar, so that it is
/// looked up only where it is used.)
template <class Scalar>
using WordPacket = typename Eigen::internal::unpacket_traits<
    Packet<std::conditional_t<std::is_floating_point_v<Scalar>, float, Scalar>>>::integer_packet;

template <class Scalar>
concept HasWordPacket = requires {
  typename WordPacket<Scalar>;
}
&&sizeof(Packet<Scalar>) == sizeof(WordPacket<Scalar>);

// GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes
// (its bug 105593) and says so wherever they are inlined; that is why every use of such an
// intrinsic goes through a function of this file.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace packet {

template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> load(const Scalar* from) {
  return Eigen::internal::ploadu<Packet<Scalar>>(from);
}

template <class Scalar>
GATED_ATTENTION_INLINE void store(Scalar* to, const Packet<Scalar>& value) {
  Eigen::internal::pstoreu(to, value);
}

/// The first `count` lanes from memory and zeros behind them; nothing is read past from[count − 1].
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> load_partial(const Scalar* from, Index count) {
  Scalar buffer[lanes<Scalar>] = {};
  for (Index i = 0; i < lanes<Scalar> && i < count; ++i) buffer[i] = from[i];
  return load<Scalar>(buffer);
}

/// Stores the first `count` lanes and nothing else.
template <class Scalar>
GATED_ATTENTION_INLINE void store_partial(Scalar* to, const Packet<Scalar>& value, Index count) {
  Scalar buffer[lanes<Scalar>];
  store<Scalar>(buffer, value);
  for (Index i = 0; i < lanes<Scalar> && i < count; ++i) to[i] = buffer[i];
}

/// load where a whole packet is left before `width`, load_partial at the tail.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> load_at(const Scalar* row, Index i, Index width) {
  return i + lanes<Scalar> <= width ? load<Scalar>(row + i)
                                    : load_partial<Scalar>(row + i, width - i);
}

/// store where a whole packet is left before `width`, store_partial at the tail.
template <class Scalar>
GATED_ATTENTION_INLINE void store_at(Scalar* row, Index i, Index width,
                                     const Packet<Scalar>& value) {
  if (i + lanes<Scalar> <= width)
    store<Scalar>(row + i, value);
  else
    store_partial<Scalar>(row + i, value, width - i);
}

template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> broadcast(Scalar value) {
  return Eigen::internal::pset1<Packet<Scalar>>(value);
}

template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> zero() {
  return broadcast<Scalar>(Scalar(0));
}

/// 0, 1, 2, …
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> ramp() {
  return Eigen::internal::plset<Packet<Scalar>>(Scalar(0));
}

template <class P>
GATED_ATTENTION_INLINE P add(const P& a, const P& b) {
  return Eigen::internal::padd(a, b);
}

template <class P>
GATED_ATTENTION_INLINE P sub(const P& a, const P& b) {
  return Eigen::internal::psub(a, b);
}

template <class P>
GATED_ATTENTION_INLINE P mul(const P& a, const P& b) {
  return Eigen::internal::pmul(a, b);
}

template <class P>
GATED_ATTENTION_INLINE P div(const P& a, const P& b) {
  return Eigen::internal::pdiv(a, b);
}

/// a·b + c, rounded once where the instruction set has that.
template <class P>
GATED_ATTENTION_INLINE P madd(const P& a, const P& b, const P& c) {
  return Eigen::internal::pmadd(a, b, c);
}

/// The larger; a NaN in `a` stays, a NaN in `b` may be lost.
template <class P>
GATED_ATTENTION_INLINE P max(const P& a, const P& b) {
  return Eigen::internal::pmax(a, b);
}

/// The smaller; a NaN in `a` stays, a NaN in `b` may be lost.
template <class P>
GATED_ATTENTION_INLINE P min(const P& a, const P& b) {
  return Eigen::internal::pmin(a, b);
}

template <class P>
GATED_ATTENTION_INLINE P abs(const P& a) {
  return Eigen::internal::pabs(a);
}

template <class P>
GATED_ATTENTION_INLINE P negate(const P& a) {
  return Eigen::internal::pnegate(a);
}

/// a < b ? yes : no, lane by lane; a comparison with NaN is false.
template <class P>
GATED_ATTENTION_INLINE P select_less(const P& a, const P& b, const P& yes, const P& no) {
  return Eigen::internal::pselect(Eigen::internal::pcmp_lt(a, b), yes, no);
}

/// |magnitude| with the signs of `sign`.
template <class P>
GATED_ATTENTION_INLINE P copy_sign(const P& magnitude, const P& sign) {
  return Eigen::internal::por(abs(magnitude), Eigen::internal::pxor(sign, abs(sign)));
}

/// The sum of the lanes, in an order that is the packet's own.
template <class P>
GATED_ATTENTION_INLINE auto reduce_add(const P& a) {
  return Eigen::internal::predux(a);
}

/// The largest lane, where none is NaN.
template <class P>
GATED_ATTENTION_INLINE auto reduce_max(const P& a) {
  return Eigen::internal::predux_max(a);
}

/// Every 32-bit lane of a packet of integers moved `Bits` towards the high end, zeros behind it.
template <int Bits, class P>
GATED_ATTENTION_INLINE P shift_left(const P& words) {
  return Eigen::internal::plogical_shift_left<Bits>(words);
}

/// c[0] + c[1]·x + c[2]·x² + … by Horner's rule.
template <class Scalar, std::size_t Terms>
GATED_ATTENTION_INLINE Packet<Scalar> polynomial(const Packet<Scalar>& x,
                                                 const Scalar (&c)[Terms]) {
  Packet<Scalar> sum = broadcast<Scalar>(c[Terms - 1]);
  GATED_ATTENTION_UNROLL
  for (std::size_t i = 1; i < Terms; ++i) sum = madd(sum, x, broadcast<Scalar>(c[Terms - 1 - i]));
  return sum;
}

/// Asks for the cache line at `address` in the second-level cache. Any address is allowed; nothing
/// is read.
GATED_ATTENTION_INLINE void prefetch_far([[maybe_unused]] const void* address) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address, 0, 2);
#endif
}

/// The same for the first-level cache.
GATED_ATTENTION_INLINE void prefetch_near([[maybe_unused]] const void* address) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address, 0, 3);
#endif
}

}  // namespace packet

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
