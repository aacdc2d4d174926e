// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "gated_attention/policy/activation.hpp"
#include "gated_attention/policy/position.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

/// y ← activation(y), without parameters: the paper's "SDPA SiLU" is Activate<at::Sdpa, Silu>.
template <class P, class Activation>
struct Activate {
  static constexpr bool the_position_comes_first = detail::RowPosition<P>;
  static_assert(the_position_comes_first,
                "gated_attention: an activation names its position first: Activate<at::Sdpa, Silu>");

  using position = P;
  using activation = Activation;

  static constexpr detail::StageTensors tensors(const Shape&) { return {}; }
};

/// y ← factor · y
template <class P>
struct Scale {
  static constexpr bool the_position_comes_first = detail::RowPosition<P>;
  static_assert(the_position_comes_first,
                "gated_attention: a scale names its position: Scale<at::Query>{.factor = 2.0}");

  using position = P;

  Required<double> factor;

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
