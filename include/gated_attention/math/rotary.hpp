// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "gated_attention/core/optional.hpp"
#include "gated_attention/math/packet.hpp"

// Rotary position embedding. Pair i of a head's channels turns by position · frequency[i]:
//
//   (x1, x2) ← (x1·cos − x2·sin, x2·cos + x1·sin)      frequency[i] = theta^(−2i / rotary_dim)
//
// pairing::Half: channels (i, i + rotary_dim/2) after the first; pairing::Interleaved: (2i, 2i +
// 1). Frequencies, angles, cosines and sines are computed in double and rounded once.

namespace gated_attention {

/// YaRN: slow pairs turn slower by `factor`, fast ones as they are, with a ramp between; cosines
/// and sines are multiplied by attention_factor(yarn). The defaults are those of the paper's code
/// (Peng et al., 2023).
struct Yarn {
  double factor;                 ///< how many times longer the context becomes
  double original_max_position;  ///< the context length before
  double beta_fast = 32;         ///< turns within that length, from which on a pair is left alone
  double beta_slow = 1;          ///< turns up to which a pair is slowed by the whole factor
  bool truncate = true;          ///< round the ramp's ends outwards to whole pairs
  Optional<double> attention_factor = {};  ///< wins over what follows
  Optional<double> mscale = {};
  Optional<double> mscale_all_dim = {};
};

namespace detail {

/// What cosines and sines are multiplied by: the given value; else g(mscale) / g(mscale_all_dim)
/// where both are given and not 0; else g(1), with g(m) = 0.1·m·ln(factor) + 1, and 1 for a factor
/// of at most 1.
inline double attention_factor(const Yarn& yarn) {
  if (yarn.attention_factor) return *yarn.attention_factor;
  const auto growth = [&](double m) {
    return yarn.factor <= 1 ? 1.0 : 0.1 * m * std::log(yarn.factor) + 1;
  };
  const double mscale = yarn.mscale.value_or(0);
  const double mscale_all_dim = yarn.mscale_all_dim.value_or(0);
  if (mscale != 0 && mscale_all_dim != 0) return growth(mscale) / growth(mscale_all_dim);
  return growth(1);
}

/// Where the pairs that turn `turns` times within the original length lie, as a pair index that
/// need not be whole.
inline double yarn_pair(const Yarn& yarn, double theta, Index rotary_dim, double turns) {
  return static_cast<double>(rotary_dim) *
         std::log(yarn.original_max_position / (2 * std::numbers::pi * turns)) /
         (2 * std::log(theta));
}

inline void slow_down(const Yarn& yarn, double theta, Index rotary_dim, Index pairs,
                      double* frequencies) {
  double low = yarn_pair(yarn, theta, rotary_dim, yarn.beta_fast);
  double high = yarn_pair(yarn, theta, rotary_dim, yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  const double last = static_cast<double>(rotary_dim - 1);
  low = std::clamp(low, 0.0, last);
  high = std::clamp(high, 0.0, last);
  if (low == high) high += 0.001;
  for (Index i = 0; i < pairs; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - ramp) + ramp / yarn.factor;
  }
}

/// frequencies[i] for the pairs i < rotated_pairs; yarn may be null.
///
/// Proportional rotation: rotary_dim is the whole head and rotated_pairs fewer than rotary_dim/2;
/// the exponents go over rotary_dim and the later pairs do not turn. ShapeError for an odd
/// rotary_dim, more pairs than it has, or a number that is not positive.
inline void inverse_frequencies(double theta, Index rotary_dim, Index rotated_pairs,
                                const Yarn* yarn, double* frequencies) {
  if (rotary_dim <= 0 || rotary_dim % 2 != 0)
    raise<ShapeError>("inverse_frequencies: rotary_dim is ", rotary_dim,
                      ", it must be even and positive");
  if (rotated_pairs < 0 || rotated_pairs > rotary_dim / 2)
    raise<ShapeError>("inverse_frequencies: rotated_pairs is ", rotated_pairs, ", rotary_dim ",
                      rotary_dim, " has ", rotary_dim / 2, " pairs");
  if (!(theta > 0))
    raise<ShapeError>("Rope: theta is ", theta, ", it must be positive");
  for (Index i = 0; i < rotated_pairs; ++i)
    frequencies[i] = std::pow(theta, -static_cast<double>(2 * i) / static_cast<double>(rotary_dim));
  if (yarn == nullptr) return;
  if (!(yarn->factor > 0) || !(yarn->original_max_position > 0))
    raise<ShapeError>("inverse_frequencies: YaRN's factor is ", yarn->factor,
                      " and its original_max_position ", yarn->original_max_position,
                      ", both must be positive");
  slow_down(*yarn, theta, rotary_dim, rotated_pairs, frequencies);
}

/// cosines[i] = factor·cos(position·frequencies[i]), sines[i] likewise. |position| ≤ 2^53 is exact.
template <class Scalar>
void rotation(Index position, const double* frequencies, Index pairs, double factor,
              Scalar* cosines, Scalar* sines) {
  for (Index i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    cosines[i] = static_cast<Scalar>(factor * std::cos(angle));
    sines[i] = static_cast<Scalar>(factor * std::sin(angle));
  }
}

}  // namespace detail

inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// (x1, x2) ← (x1·cos − x2·sin, x2·cos + x1·sin), lane by lane.
template <class Scalar>
GATED_ATTENTION_INLINE void rotate(Packet<Scalar>& x1, Packet<Scalar>& x2,
                                   const Packet<Scalar>& cosine, const Packet<Scalar>& sine) {
  const Packet<Scalar> first = packet::madd(x1, cosine, packet::negate(packet::mul(x2, sine)));
  x2 = packet::madd(x2, cosine, packet::mul(x1, sine));
  x1 = first;
}

/// One head's row in place: channel first_dim + i with first_dim + pairs + i, for i <
/// rotated_pairs; `pairs` is rotary_dim/2. Reads and writes those channels only. A turn back is the
/// same with −sines.
template <class Scalar>
void rotate_half(Scalar* row, Index first_dim, Index pairs, Index rotated_pairs,
                 const Scalar* cosines, const Scalar* sines) {
  Scalar* first = row + first_dim;
  Scalar* second = first + pairs;
  for (Index i = 0; i < rotated_pairs; i += lanes<Scalar>) {
    Packet<Scalar> x1 = packet::load_at<Scalar>(first, i, rotated_pairs);
    Packet<Scalar> x2 = packet::load_at<Scalar>(second, i, rotated_pairs);
    rotate<Scalar>(x1, x2, packet::load_at<Scalar>(cosines, i, rotated_pairs),
                   packet::load_at<Scalar>(sines, i, rotated_pairs));
    packet::store_at<Scalar>(first, i, rotated_pairs, x1);
    packet::store_at<Scalar>(second, i, rotated_pairs, x2);
  }
}

/// One head's row in place: channel first_dim + 2i with first_dim + 2i + 1, for i < rotated_pairs.
/// Reads and writes those channels only; how many pairs do not turn makes no difference here.
template <class Scalar>
void rotate_interleaved(Scalar* row, Index first_dim, Index /*pairs*/, Index rotated_pairs,
                        const Scalar* cosines, const Scalar* sines) {
  constexpr Index step = lanes<Scalar>;
  for (Index i = 0; i < rotated_pairs; i += step) {
    Scalar even[lanes<Scalar>] = {}, odd[lanes<Scalar>] = {};
    Scalar* pair = row + first_dim + 2 * i;
    const Index count = std::min(step, rotated_pairs - i);
    for (Index j = 0; j < count; ++j) {
      even[j] = pair[2 * j];
      odd[j] = pair[2 * j + 1];
    }
    Packet<Scalar> x1 = packet::load<Scalar>(even), x2 = packet::load<Scalar>(odd);
    rotate<Scalar>(x1, x2, packet::load_at<Scalar>(cosines, i, rotated_pairs),
                   packet::load_at<Scalar>(sines, i, rotated_pairs));
    packet::store<Scalar>(even, x1);
    packet::store<Scalar>(odd, x2);
    for (Index j = 0; j < count; ++j) {
      pair[2 * j] = even[j];
      pair[2 * j + 1] = odd[j];
    }
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
