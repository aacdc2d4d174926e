// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "gated_attention/math/packet.hpp"

// y[h,c] = x[h,c] · w[h,c] / sqrt(mean x² + eps)      the mean over a head's row, or over all rows
// together
//
// Sums go per lane in ascending order of heads and channels and over the lanes at the end, in the
// scalar itself. Where the plain sum of squares overflows, or is no normal number, the rows are
// scaled by a power of two first, which is exact.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The rows of `heads` heads: channel c of head h at data[h·stride + c].
template <class Scalar>
struct NormRows {
  Scalar* data = nullptr;
  Index heads = 0;
  Index stride = 0;
  Index width = 0;
};

/// Σ (scale·x)²
template <class Scalar>
Scalar sum_of_squares(const NormRows<Scalar>& rows, Scalar scale) {
  const Packet<Scalar> factor = packet::broadcast<Scalar>(scale);
  Packet<Scalar> sum = packet::zero<Scalar>();
  for (Index h = 0; h < rows.heads; ++h) {
    const Scalar* row = rows.data + h * rows.stride;
    for (Index c = 0; c < rows.width; c += lanes<Scalar>) {
      const Packet<Scalar> x = packet::mul(packet::load_at<Scalar>(row, c, rows.width), factor);
      sum = packet::madd(x, x, sum);
    }
  }
  return packet::reduce_add(sum);
}

/// max |x|, where no x is NaN.
template <class Scalar>
Scalar largest_magnitude(const NormRows<Scalar>& rows) {
  Packet<Scalar> largest = packet::zero<Scalar>();
  for (Index h = 0; h < rows.heads; ++h) {
    const Scalar* row = rows.data + h * rows.stride;
    for (Index c = 0; c < rows.width; c += lanes<Scalar>)
      largest = packet::max(largest, packet::abs(packet::load_at<Scalar>(row, c, rows.width)));
  }
  return packet::reduce_max(largest);
}

/// x / sqrt(mean x² + eps) = (x · scale) · factor
template <class Scalar>
struct NormFactors {
  Scalar scale;
  Scalar factor;
};

/// The power of two that brings the largest of the rows near 1, and the factor that goes with it.
template <class Scalar>
NormFactors<Scalar> scaled_norm_factors(const NormRows<Scalar>& rows, Scalar eps, Scalar mean) {
  if (std::isnan(mean)) return {Scalar(1), mean};
  const Scalar largest = largest_magnitude(rows);
  if (largest == Scalar(0)) return {Scalar(1), Scalar(0)};
  constexpr int most = std::numeric_limits<Scalar>::max_exponent - 2;
  const Scalar scale = std::ldexp(Scalar(1), std::clamp(-std::ilogb(largest), -most, most));
  const Scalar count = static_cast<Scalar>(rows.heads * rows.width);
  return {scale, Scalar(1) / std::sqrt(sum_of_squares(rows, scale) / count + eps * scale * scale)};
}

template <class Scalar>
NormFactors<Scalar> norm_factors(const NormRows<Scalar>& rows, Scalar eps) {
  const Scalar count = static_cast<Scalar>(rows.heads * rows.width);
  const Scalar mean = sum_of_squares(rows, Scalar(1)) / count;
  if (std::isnormal(mean + eps)) return {Scalar(1), Scalar(1) / std::sqrt(mean + eps)};
  return scaled_norm_factors(rows, eps, mean);
}

/// x ← x · scale · factor · weight; a null weight is 1. weight: [heads, width]
template <class Scalar>
void apply_norm(const NormRows<Scalar>& rows, const NormFactors<Scalar>& factors,
                const Scalar* weight) {
  const Packet<Scalar> scale = packet::broadcast<Scalar>(factors.scale);
  const Packet<Scalar> factor = packet::broadcast<Scalar>(factors.factor);
  for (Index h = 0; h < rows.heads; ++h) {
    Scalar* row = rows.data + h * rows.stride;
    for (Index c = 0; c < rows.width; c += lanes<Scalar>) {
      const Packet<Scalar> x = packet::load_at<Scalar>(row, c, rows.width);
      Packet<Scalar> y = packet::mul(packet::mul(x, scale), factor);
      if (weight != nullptr)
        y = packet::mul(y, packet::load_at<Scalar>(weight + h * rows.width, c, rows.width));
      packet::store_at<Scalar>(row, c, rows.width, y);
    }
  }
}

/// Each head's row by itself, in place. weight: [width], the effective multiplier (w or 1 + w) of
/// every head, or null for none.
///
/// A row of zeros gives zeros, also for eps = 0. A NaN makes its whole row NaN; an infinity gives
/// NaN, and zeros for the other channels. Nothing is read or written past the width of a row.
template <class Scalar>
void rms_norm_heads(Scalar* rows, Index heads, Index head_stride, Index width, const Scalar* weight,
                    Scalar eps) {
  for (Index h = 0; h < heads; ++h) {
    const NormRows<Scalar> row{rows + h * head_stride, 1, head_stride, width};
    apply_norm(row, norm_factors(row, eps), weight);
  }
}

/// All heads' rows as one vector of heads·width channels, in place; otherwise as rms_norm_heads.
/// weight: [heads, width] or null.
template <class Scalar>
void rms_norm_row(Scalar* rows, Index heads, Index head_stride, Index width, const Scalar* weight,
                  Scalar eps) {
  const NormRows<Scalar> all{rows, heads, head_stride, width};
  apply_norm(all, norm_factors(all, eps), weight);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
