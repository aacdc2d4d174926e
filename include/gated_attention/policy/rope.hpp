// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "gated_attention/math/rotary.hpp"
#include "gated_attention/policy/position.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

/// Which channels turn together.
namespace pairing {
struct Half {};         ///< (i, i + rotary_dim/2), rotate-half
struct Interleaved {};  ///< (2i, 2i + 1)
}  // namespace pairing

/// Rotary position embedding of queries and keys; absent means none.
///
/// angle(position, i) = position · θ^(−2i/rotary_dim)        i = 0 … rotary_dim/2 − 1
/// (a, b) ← (a·cos − b·sin, b·cos + a·sin)
///
/// Angles are computed in double. `rotary_dim` channels from `first_dim` turn (0: to the end of the head); pairs from
/// `rotated_pairs` on keep angle 0 (0: all turn). `yarn` blends the frequencies and multiplies cos and sin.
template <class Pairing = pairing::Half>
struct Rope {
  static constexpr bool the_pairing_is_half_or_interleaved =
      std::is_same_v<Pairing, pairing::Half> || std::is_same_v<Pairing, pairing::Interleaved>;
  static_assert(the_pairing_is_half_or_interleaved,
                "gated_attention: Rope pairs channels by pairing::Half or pairing::Interleaved");

  using pairing_order = Pairing;

  Required<double> theta;
  Index rotary_dim = 0;
  Index first_dim = 0;
  Index rotated_pairs = 0;
  Optional<Yarn> yarn = {};

  static constexpr detail::StageTensors tensors(const Shape&) { return {}; }
};

}  // namespace gated_attention
