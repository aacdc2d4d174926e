// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/math/exp.hpp"
#include "gated_attention/math/panel.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Keys of one softmax step, which begins at an absolute multiple of it. Part of the order of sums:
/// depends on nothing.
inline constexpr Index softmax_keys = 128;

/// Keys after which maximum, sum and output start afresh, at absolute multiples; the parts are
/// merged in ascending order. Part of the order of sums.
inline constexpr Index restart_keys = 2048;

namespace kernel {

template <class Scalar>
inline constexpr Scalar minus_infinity = -std::numeric_limits<Scalar>::infinity();

/// What a segment of keys leaves of some rows: the row's softmax(s)·V over the segment is output /
/// sum.
///
///   maximum[r] = max s[r,:]    sum[r] = Σ 2^(s[r,:] − maximum[r])    output[r,:] = Σ 2^(s[r,:] −
///   maximum[r])·v[:]
///
/// s is in units of log2. A row that saw nothing has maximum −inf and sum exactly 0, and its output
/// is unwritten memory; every other row's sum is at least 1, or NaN.
template <class Scalar>
struct SoftmaxPart {
  Scalar* maximum = nullptr;  ///< [rows], a packet more
  Scalar* sum = nullptr;      ///< [rows]
  Scalar* output = nullptr;   ///< [rows, output_stride]

  void take(detail::Arena& arena, Index rows, Index output_stride) {
    maximum = arena.take<Scalar>(rows + lanes<Scalar>);
    sum = arena.take<Scalar>(rows);
    output = arena.take<Scalar>(rows * output_stride);
  }
};

/// maximum, or 0 where it is −inf: a row that has seen nothing gives 2^(−inf − 0) = 0 and never
/// −inf − (−inf).
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> finite_reference(const Packet<Scalar>& maximum) {
  return packet::select_less(maximum,
                             packet::broadcast<Scalar>(std::numeric_limits<Scalar>::lowest()),
                             packet::zero<Scalar>(), maximum);
}

/// maximum ← max(maximum, max(lane_maxima[r])), factor = 2^(old maximum − new maximum)      rows
/// [first, last)
///
/// lane_maxima: [rows, lanes]. maximum, factor and step_maximum may be written a packet past
/// `last`: the maxima there keep their value.
template <class Scalar>
void raise_maxima(const Scalar* lane_maxima, Index first, Index last, Scalar* step_maximum,
                  Scalar* maximum, Scalar* factor) {
  for (Index r = first; r < last; ++r)
    step_maximum[r] = packet::reduce_max(packet::load<Scalar>(lane_maxima + r * lanes<Scalar>));
  packet::store<Scalar>(step_maximum + last, packet::broadcast<Scalar>(minus_infinity<Scalar>));
  for (Index r = first; r < last; r += lanes<Scalar>) {
    const Packet<Scalar> before = packet::load<Scalar>(maximum + r);
    const Packet<Scalar> after = packet::max(before, packet::load<Scalar>(step_maximum + r));
    packet::store<Scalar>(
        factor + r, packet::exp2<Scalar>(packet::sub(before, finite_reference<Scalar>(after))));
    packet::store<Scalar>(maximum + r, after);
  }
}

/// s ← 2^(s − maximum) over `packets` packets of one row, lane_sum ← factor·lane_sum + Σ packets
template <class Scalar>
GATED_ATTENTION_INLINE void exponentiate(Scalar* scores, Index packets, Scalar maximum,
                                         Scalar factor, Scalar* lane_sum) {
  const Packet<Scalar> reference = finite_reference<Scalar>(packet::broadcast<Scalar>(maximum));
  Packet<Scalar> sum =
      packet::mul(packet::load<Scalar>(lane_sum), packet::broadcast<Scalar>(factor));
  for (Index j = 0; j < packets; ++j) {
    Scalar* at = scores + j * lanes<Scalar>;
    const Packet<Scalar> weight =
        packet::exp2<Scalar>(packet::sub(packet::load<Scalar>(at), reference));
    packet::store<Scalar>(at, weight);
    sum = packet::add(sum, weight);
  }
  packet::store<Scalar>(lane_sum, sum);
}

/// One row of a part: maximum, sum, and output [channels].
template <class Scalar>
struct SoftmaxRow {
  Scalar& maximum;
  Scalar& sum;
  Scalar* output;
};

/// total ← total ∪ part, as if one softmax had seen total's keys, then part's:
///
///   m = max(m₁, m₂)    sum = 2^(m₁−m)·sum₁ + 2^(m₂−m)·sum₂    output likewise
///
/// A side that saw nothing leaves the other's bits as they are, and its output is not read.
template <class Scalar>
void merge_row(const SoftmaxRow<Scalar>& total, const SoftmaxRow<const Scalar>& part,
               Index channels) {
  if (part.sum == Scalar(0)) return;
  const bool fresh = total.sum == Scalar(0);
  const Scalar before = total.maximum;
  const Scalar maximum = before > part.maximum ? before : part.maximum;
  const Packet<Scalar> reference = finite_reference<Scalar>(packet::broadcast<Scalar>(maximum));
  const auto factor_of = [&](Scalar own) {
    return packet::exp2<Scalar>(packet::sub(packet::broadcast<Scalar>(own), reference));
  };
  const Packet<Scalar> keep = factor_of(before), join = factor_of(part.maximum);
  const auto joined = [&](const Packet<Scalar>& old, const Packet<Scalar>& next) {
    return packet::madd(old, keep, packet::mul(next, join));
  };
  for (Index c = 0; c < channels; c += lanes<Scalar>) {
    const Packet<Scalar> next = packet::load_at<Scalar>(part.output, c, channels);
    packet::store_at<Scalar>(
        total.output, c, channels,
        fresh ? next : joined(packet::load_at<Scalar>(total.output, c, channels), next));
  }
  Scalar both[static_cast<std::size_t>(lanes<Scalar>)];
  packet::store<Scalar>(
      both, joined(packet::broadcast<Scalar>(total.sum), packet::broadcast<Scalar>(part.sum)));
  total.sum = fresh ? part.sum : both[0];
  total.maximum = fresh ? part.maximum : maximum;
}

/// merge_row on the first `rows` rows.
template <class Scalar>
void merge(const SoftmaxPart<Scalar>& total, const SoftmaxPart<Scalar>& part, Index rows,
           Index output_stride) {
  for (Index r = 0; r < rows; ++r)
    merge_row<Scalar>({total.maximum[r], total.sum[r], total.output + r * output_stride},
                      {part.maximum[r], part.sum[r], part.output + r * output_stride},
                      output_stride);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
