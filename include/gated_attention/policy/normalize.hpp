// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "gated_attention/policy/position.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

/// What an RMSNorm multiplies by.
namespace weight {
struct Plain {};          ///< w
struct OffsetFromOne {};  ///< 1 + w
struct Weightless {};     ///< nothing
}  // namespace weight

/// What an RMSNorm takes the mean over.
namespace over {
struct Head {};  ///< the channels of one head; one weight [width] for all heads
struct Row {};   ///< all heads of the token together; weight [heads · width]
}  // namespace over

namespace detail {

template <class T>
inline constexpr bool is_norm_weight = std::is_same_v<T, weight::Plain> || std::is_same_v<T, weight::OffsetFromOne> ||
                                       std::is_same_v<T, weight::Weightless>;
template <class T>
inline constexpr bool is_norm_extent = std::is_same_v<T, over::Head> || std::is_same_v<T, over::Row>;

}  // namespace detail

/// y = x / √(mean(x²) + eps) ⊙ m      m = w, 1 + w or 1
template <class Weight = weight::Plain, class Over = over::Head>
struct RmsNorm {
  using weight_convention = Weight;
  using extent = Over;
  static constexpr bool over_row = std::is_same_v<Over, over::Row>;
  static constexpr bool weightless = std::is_same_v<Weight, weight::Weightless>;

  static constexpr bool the_weight_is_a_convention = detail::is_norm_weight<Weight>;
  static_assert(the_weight_is_a_convention,
                "gated_attention: the first choice of an RmsNorm is weight::Plain, weight::OffsetFromOne or "
                "weight::Weightless");
  static constexpr bool the_extent_is_head_or_row = detail::is_norm_extent<Over>;
  static_assert(the_extent_is_head_or_row,
                "gated_attention: the second choice of an RmsNorm is over::Head or over::Row");
};

namespace detail {

template <class T>
inline constexpr bool is_rms_norm = false;
template <class Weight, class Over>
inline constexpr bool is_rms_norm<RmsNorm<Weight, Over>> = true;

/// The norm a stage was given; the plain one, after a mistake was told.
template <class Norm>
using NormOf = std::conditional_t<is_rms_norm<Norm>, Norm, RmsNorm<>>;

template <class Norm>
struct CheckedNorm {
  static constexpr bool the_norm_is_an_rms_norm = is_rms_norm<Norm>;
  static_assert(the_norm_is_an_rms_norm,
                "gated_attention: a norm is RmsNorm with its choices: Normalize<at::Sdpa, RmsNorm<weight::Plain>> or "
                "QkNorm<RmsNorm<weight::OffsetFromOne>>");
};

}  // namespace detail

/// RMSNorm at a position. Sums in the compute scalar, guarded against overflow.
template <class P, class Norm = RmsNorm<>>
struct Normalize {
  static constexpr bool the_position_comes_first = detail::RowPosition<P>;

  using position = std::conditional_t<the_position_comes_first, P, at::Sdpa>;
  using norm = detail::NormOf<Norm>;

  static_assert(the_position_comes_first,
                "gated_attention: a norm names its position first: Normalize<at::Query, RmsNorm<...>>, at::Key, "
                "at::Value, at::Sdpa or at::Output");
  static_assert(sizeof(detail::CheckedNorm<std::conditional_t<the_position_comes_first, Norm, RmsNorm<>>>) > 0);

  Required<double> eps;  ///< added to the mean square

  static constexpr detail::StageTensors tensors(const Shape& shape) {
    constexpr Position place = detail::PositionOf<position>::value;
    const Index heads = norm::over_row ? detail::heads_at(place, shape) : 1;
    return {norm::weightless ? 0 : 1, heads * detail::width_at(place, shape), 0};
  }
};

/// The pair of norms on queries and keys, each with its own weight: Normalize<at::Query, Norm>, Normalize<at::Key, Norm>.
template <class Norm = RmsNorm<>>
struct QkNorm {
  using norm = detail::NormOf<Norm>;
  static_assert(sizeof(detail::CheckedNorm<Norm>) > 0);

  Required<double> eps;
};

}  // namespace gated_attention
