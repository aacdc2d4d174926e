// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/core/index.hpp"

namespace gated_attention {

/// Which keys the query of row t sees: [begin(t), end(t)), a part of [first, keys). Every mask that
/// bounds loops is such a pair of numbers; both never decrease as t grows. A query that sees
/// nothing has begin == end. With kept keys it also sees [0, kept_end(t)), a run of its own before the other.
struct KeyBounds {
  Index keys = 0;     ///< S: one past the last key
  Index shift = 0;    ///< absolute index of query 0 among the keys; bottom-right alignment: S − T
  Index before = -1;  ///< keys seen before the query's own position; −1: all
  Index after = -1;   ///< keys seen after the query's own position; −1: all
  Index prefix = 0;   ///< every query's end is at least this key (prefix-LM)
  Index first = 0;    ///< the first key there is: keys before it are another call's
  Index kept = 0;     ///< keys from 0 on that every later query sees

  /// max(first, t + shift − before), at most keys
  constexpr Index begin(Index t) const {
    return before < 0 ? first : std::clamp(t + shift - before, first, keys);
  }

  /// min(keys, t + shift + after + 1), raised to the prefix and to begin(t)
  constexpr Index end(Index t) const {
    const Index own = after < 0 ? keys : std::clamp(t + shift + after + 1, first, keys);
    return std::max({own, std::min(prefix, keys), begin(t)});
  }

  /// min(kept, begin(t))
  constexpr Index kept_end(Index t) const { return std::min(kept, begin(t)); }

  /// How many keys lie between those two runs, also of keys that are another call's: b − min(kept, b) for a window from
  /// b = max(0, t + shift − before) on.
  constexpr Index evicted(Index t) const {
    const Index window = before < 0 ? 0 : std::max(t + shift - before, Index{0});
    return window - std::min(kept, window);
  }
};

}  // namespace gated_attention
