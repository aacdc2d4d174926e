// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

#include "gated_attention/core/key_bounds.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

namespace detail {

/// A mask as numbers: how many keys before and after its own position a query sees (−1: all), where query 0 stands among
/// the keys, and whether every query also sees the sequence's prefix.
struct MaskRule {
  Index before = -1;
  Index after = -1;
  bool top_left = false;
  bool prefixed = false;
  Index kept = 0;         ///< keys from the first on that every query sees
  bool in_cache = false;  ///< positions count only the keys that a query sees

  /// The visible keys of each of `tokens` queries over `keys` keys; bottom-right: the last query stands at the last key.
  constexpr KeyBounds bounds(Index tokens, Index keys, Index prefix = 0) const {
    return {.keys = keys,
            .shift = top_left ? 0 : keys - tokens,
            .before = before,
            .after = after,
            .prefix = prefixed ? prefix : 0,
            .kept = kept};
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

/// What a rotary position counts under StreamingWindow.
enum class KeyPositions {
  absolute,  ///< all tokens
  in_cache,  ///< the keys that the query sees: as if the window followed the kept keys without a gap
};

/// The first `kept` keys for ever, and the last `window` keys up to the own position, which counts (StreamingLLM, Xiao et
/// al. 2023). With KeyPositions::in_cache a query p meets the kept keys with a copy of its own that is rotated for the
/// position p − (keys between the two runs), so that no stored key is ever rotated again.
struct StreamingWindow {
  Required<Index> kept;
  Required<Index> window;
  KeyPositions positions = KeyPositions::absolute;

  constexpr detail::MaskRule rule() const {
    if (window < 1) detail::raise<ShapeError>("StreamingWindow: window is ", Index{window}, ", the least is 1");
    if (kept < 0) detail::raise<ShapeError>("StreamingWindow: kept is ", Index{kept}, ", the least is 0");
    return {.before = window - 1,
            .after = 0,
            .kept = kept,
            .in_cache = positions == KeyPositions::in_cache && kept > 0};
  }
};

/// Keys up to the own index, the first query at the first key whatever the numbers of queries and keys.
struct CausalTopLeft {
  constexpr detail::MaskRule rule() const { return {.before = -1, .after = 0, .top_left = true}; }
};

/// Keys up to the own position, and the first `prefix` keys of the sequence for every query (prefix-LM). The prefixes come
/// with the batch, one per sequence.
struct PrefixCausal {
  constexpr detail::MaskRule rule() const { return {.before = -1, .after = 0, .prefixed = true}; }
};

/// `left` keys before the own position, the key there, and `right` keys behind it.
struct BidirectionalWindow {
  Required<Index> left;
  Required<Index> right;

  constexpr detail::MaskRule rule() const {
    if (left < 0 || right < 0)
      detail::raise<ShapeError>("BidirectionalWindow: left is ", Index{left}, " and right is ", Index{right},
                                ", the least is 0");
    return {.before = left, .after = right};
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
