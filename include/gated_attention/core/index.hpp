// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>

#include "gated_attention/core/error.hpp"

namespace gated_attention {

/// Every extent and offset: signed, 64 bits where pointers have 64.
using Index = std::ptrdiff_t;

namespace detail {

constexpr Index divide_up(Index value, Index step) { return (value + step - 1) / step; }

constexpr Index round_up(Index value, Index step) { return divide_up(value, step) * step; }

/// a·b of two extents (both ≥ 0), or a ShapeError that names `what` and both numbers.
constexpr Index checked_product(Index a, Index b, const char* what) {
  if (a != 0 && b > std::numeric_limits<Index>::max() / a)
    raise<ShapeError>(what, ": ", a, " x ", b, " is more than an index can count");
  return a * b;
}

}  // namespace detail
}  // namespace gated_attention
