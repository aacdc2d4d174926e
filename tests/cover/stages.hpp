// SPDX-License-Identifier: MIT
#pragma once

#include "cover/gates.hpp"
#include "unit/own_stages.hpp"

// Every activation, norm and scale at every position, each in a layer of its own, and gates with an
// activation of the user's.

namespace gated_attention::cover {

using own::CubicEighth;

using Positions = std::tuple<at::Query, at::Key, at::Value, at::Sdpa, at::Output>;
using Norms =
    std::tuple<RmsNorm<weight::Plain, over::Head>, RmsNorm<weight::OffsetFromOne, over::Head>,
               RmsNorm<weight::Weightless, over::Head>, RmsNorm<weight::Plain, over::Row>,
               RmsNorm<weight::OffsetFromOne, over::Row>, RmsNorm<weight::Weightless, over::Row>>;

/// visit.template operator()<P, Choice>() for every pair.
template <class... P, class... Choices, class Visit>
void for_each_at(const std::tuple<P...>*, const std::tuple<Choices...>*, const Visit& visit) {
  const auto at_one = [&]<class Position>() {
    (visit.template operator()<Position, Choices>(), ...);
  };
  (at_one.template operator()<P>(), ...);
}

template <class T>
inline constexpr const T* list = nullptr;

template <class Scalar, class P, class Norm>
void check_norm() {
  check_layer(compose<Scalar>(small_shape, Normalize<P, Norm>{.eps = 1e-3}), {});
}

template <class Scalar, class P>
void check_scale() {
  check_layer(compose<Scalar>(small_shape, Scale<P>{.factor = -1.75}), {});
}

template <class Scalar>
void check_activations() {
  std::vector<Case> cases;
  const auto add = [&]<class P, class A>() {
    using Stage = Activate<P, A>;
    cases.push_back({type_text<Stage>(), &check_small_layer<Scalar, Stage>});
  };
  for_each_at(list<Positions>, list<Activations>, add);
  for_each_at(list<Positions>, list<std::tuple<CubicEighth>>, add);
  run_all(cases, 5 * (7 + 1));
}

template <class Scalar>
void check_norms() {
  std::vector<Case> cases;
  for_each_at(list<Positions>, list<Norms>, [&]<class P, class Norm>() {
    cases.push_back({type_text<Normalize<P, Norm>>(), &check_norm<Scalar, P, Norm>});
  });
  run_all(cases, 5 * 6);
}

template <class Scalar>
void check_scales() {
  std::vector<Case> cases;
  for_each_at(list<Positions>, list<std::tuple<CubicEighth>>, [&]<class P, class>() {
    cases.push_back({type_text<Scale<P>>(), &check_scale<Scalar, P>});
  });
  run_all(cases, 5);
}

/// A user's activation in gates: at each position, and along each other axis.
template <class Scalar>
void check_own_gates() {
  std::vector<Case> cases;
  const auto add = [&]<class G>() {
    cases.push_back({type_text<G>(), &check_small_layer<Scalar, G>});
  };
  for_each_at(list<Positions>, list<std::tuple<CubicEighth>>,
              [&]<class P, class A>() { add.template operator()<Gate<P, A>>(); });
  add.template operator()<Gate<at::Sdpa, CubicEighth, Headwise>>();
  add.template operator()<Gate<at::Sdpa, CubicEighth, SharedHeads>>();
  add.template operator()<Gate<at::Sdpa, CubicEighth, HeadMean>>();
  add.template operator()<Gate<at::Sdpa, CubicEighth, Add>>();
  add.template operator()<Gate<at::Sdpa, CubicEighth, Constant>>();
  add.template operator()<Gate<at::Sdpa, CubicEighth, HeadBias>>();
  run_all(cases, 5 + 6);
}

}  // namespace gated_attention::cover
