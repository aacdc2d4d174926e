// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "gated_attention/policy/activation.hpp"
#include "gated_attention/policy/position.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

/// y ← activation(y), without parameters: the paper's "SDPA SiLU" is Activate<at::Sdpa, Silu>.
template <class P, class A>
struct Activate {
  static constexpr bool the_position_comes_first = detail::RowPosition<P>;
  static constexpr bool the_choice_is_an_activation = !the_position_comes_first || Activation<A>;

  using position = std::conditional_t<the_position_comes_first, P, at::Sdpa>;
  using activation = std::conditional_t<Activation<A>, A, Identity>;

  static_assert(the_position_comes_first,
                "gated_attention: an activation names its position first: Activate<at::Sdpa, Silu>");
  static_assert(the_choice_is_an_activation,
                "gated_attention: Activate takes an activation: Sigmoid, Silu, ..., or a type with value and "
                "derivative on packets");

  static constexpr detail::StageTensors tensors(const Shape&) { return {}; }
};

/// y ← factor · y
template <class P>
struct Scale {
  static constexpr bool the_position_comes_first = detail::RowPosition<P>;

  using position = std::conditional_t<the_position_comes_first, P, at::Sdpa>;

  Required<double> factor;

  static_assert(the_position_comes_first,
                "gated_attention: a scale names its position: Scale<at::Query>{.factor = 2.0}");

  static constexpr detail::StageTensors tensors(const Shape&) { return {}; }
};

/// Adds a learned bias to the named projections: q, k, v = x·Wᵀ + b, y = o·Wᵀ + b. Any subset of at::Query, at::Key,
/// at::Value, at::Output.
template <class... Positions>
struct ProjectionBias {
  static constexpr bool every_position_is_a_projection =
      sizeof...(Positions) > 0 &&
      (... && (std::is_same_v<Positions, at::Query> || std::is_same_v<Positions, at::Key> ||
               std::is_same_v<Positions, at::Value> || std::is_same_v<Positions, at::Output>));
  static_assert(every_position_is_a_projection,
                "gated_attention: ProjectionBias names projections: any of at::Query, at::Key, at::Value, at::Output");

  template <class P>
  static constexpr bool has = (... || std::is_same_v<P, Positions>);
};

}  // namespace gated_attention
