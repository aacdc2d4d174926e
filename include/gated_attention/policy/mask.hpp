// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

#include "gated_attention/core/key_bounds.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

namespace detail {

/// A mask as numbers: how many keys before and after its own position a query sees (−1: all).
struct MaskRule {
  Index before = -1;
  Index after = -1;

  /// The visible keys of each of `tokens` queries over `keys` keys, the last query at the last key.
  constexpr KeyBounds bounds(Index tokens, Index keys) const {
    return {.keys = keys, .shift = keys - tokens, .before = before, .after = after, .prefix = 0};
  }
};

}  // namespace detail

// Which keys a query sees. A mask bounds loops: what it hides is neither computed nor read. With T queries and S keys,
// query t stands at key t + S − T, so the last query sees the last key (bottom-right alignment).

/// Keys up to the own position.
struct Causal {
  constexpr detail::MaskRule rule() const { return {.before = -1, .after = 0}; }
};

/// The last `window` keys up to the own position, which counts; at least 1.
struct SlidingWindow {
  Required<Index> window;

  constexpr detail::MaskRule rule() const {
    if (window < 1) detail::raise<ShapeError>("SlidingWindow: window is ", Index{window}, ", the least is 1");
    return {.before = window - 1, .after = 0};
  }
};

/// Every key.
struct Bidirectional {
  constexpr detail::MaskRule rule() const { return {}; }
};

namespace detail {

template <class T>
concept Mask = requires(const T& mask) {
  { mask.rule() } -> std::same_as<MaskRule>;
};

}  // namespace detail
}  // namespace gated_attention
