// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "gated_attention/policy/gate.hpp"
#include "gated_attention/policy/mask.hpp"
#include "gated_attention/policy/normalize.hpp"
#include "gated_attention/policy/rope.hpp"
#include "gated_attention/policy/score.hpp"
#include "gated_attention/policy/stages.hpp"

namespace gated_attention {

/// Stages with their numbers, in written order. (Not a std::tuple, which asks whether a stage can be made from nothing
/// and thereby fires the message of a missing number on correct code.)
template <class... Stages>
struct StageList;

template <>
struct StageList<> {
  static constexpr int size = 0;

  template <class Function>
  constexpr void for_each(const Function&) const {}
};

template <class First, class... Rest>
struct StageList<First, Rest...> {
  static constexpr int size = 1 + static_cast<int>(sizeof...(Rest));

  First first;
  StageList<Rest...> rest;

  /// function(stage) for each stage in written order.
  template <class Function>
  constexpr void for_each(const Function& function) const {
    function(first);
    rest.for_each(function);
  }
};

namespace detail {

constexpr StageList<> make_stage_list() { return {}; }

template <class First, class... Rest>
constexpr StageList<First, Rest...> make_stage_list(const First& first, const Rest&... rest) {
  return {first, make_stage_list(rest...)};
}

template <class... B>
constexpr StageList<B...> join(const StageList<>&, const StageList<B...>& b) {
  return b;
}

template <class First, class... Rest, class... B>
constexpr StageList<First, Rest..., B...> join(const StageList<First, Rest...>& a, const StageList<B...>& b) {
  return {a.first, join(a.rest, b)};
}

template <class A, class B>
struct Joined;
template <class... A, class... B>
struct Joined<StageList<A...>, StageList<B...>> {
  using Type = StageList<A..., B...>;
};

/// The type of a list with every QkNorm written out as its two norms; every other stage as it is. (Types, and no deduced
/// return type: clang++ would tell a stage's one mistake again and again.)
template <class Stage>
struct WrittenOut {
  using Type = StageList<Stage>;
};
template <class Norm>
struct WrittenOut<QkNorm<Norm>> {
  using Type = StageList<Normalize<at::Query, typename QkNorm<Norm>::norm>, Normalize<at::Key, typename QkNorm<Norm>::norm>>;
};
template <>
struct WrittenOut<StageList<>> {
  using Type = StageList<>;
};
template <class First, class... Rest>
struct WrittenOut<StageList<First, Rest...>> {
  using Type = typename Joined<typename WrittenOut<First>::Type, typename WrittenOut<StageList<Rest...>>::Type>::Type;
};

template <class Stage>
constexpr StageList<Stage> written_out(const Stage& stage) {
  return {stage, {}};
}
template <class Norm>
constexpr typename WrittenOut<QkNorm<Norm>>::Type written_out(const QkNorm<Norm>& stage) {
  return {{stage.eps}, {{stage.eps}, {}}};
}

constexpr StageList<> write_out(const StageList<>&) { return {}; }

template <class First, class... Rest>
constexpr typename WrittenOut<StageList<First, Rest...>>::Type write_out(const StageList<First, Rest...>& list) {
  return join(written_out(list.first), write_out(list.rest));
}

template <class T>
inline constexpr bool is_rope = false;
template <class Pairing>
inline constexpr bool is_rope<Rope<Pairing>> = true;

template <class T>
inline constexpr bool is_gate = false;
template <class... Axes>
inline constexpr bool is_gate<BasicGate<Axes...>> = true;

template <class T>
inline constexpr bool is_normalize = false;
template <class P, class Norm>
inline constexpr bool is_normalize<Normalize<P, Norm>> = true;

template <class T>
inline constexpr bool is_qk_norm = false;
template <class Norm>
inline constexpr bool is_qk_norm<QkNorm<Norm>> = true;

template <class T>
inline constexpr bool is_activate = false;
template <class P, class Activation>
inline constexpr bool is_activate<Activate<P, Activation>> = true;

template <class T>
inline constexpr bool is_scale = false;
template <class P>
inline constexpr bool is_scale<Scale<P>> = true;

template <class T>
inline constexpr bool is_projection_bias = false;
template <class... P>
inline constexpr bool is_projection_bias<ProjectionBias<P...>> = true;

/// A stage that changes rows of heads at one or two positions.
template <class T>
inline constexpr bool is_row_stage =
    is_gate<T> || is_normalize<T> || is_activate<T> || is_scale<T> || is_rope<T>;

template <class T>
inline constexpr bool is_score_function = false;
template <class Function>
inline constexpr bool is_score_function<Score<Function>> = true;

/// A stage on scores that runs in written order.
template <class T>
inline constexpr bool is_score_stage = OneOf<T, Softcap, Alibi, ScoreBias, BooleanMask> || is_score_function<T>;

template <class T>
inline constexpr bool is_stage = is_row_stage<T> || is_score_stage<T> || OneOf<T, SoftmaxScale, LearnedSink> ||
                                 is_qk_norm<T> || is_projection_bias<T> || Mask<T>;

/// Whether a (written-out) stage runs at a position.
template <class P, class Stage>
constexpr bool runs_at() {
  if constexpr (is_rope<Stage>)
    return std::is_same_v<P, at::Query> || std::is_same_v<P, at::Key>;
  else if constexpr (is_row_stage<Stage>)
    return std::is_same_v<P, typename Stage::position>;
  else
    return std::is_same_v<P, at::Scores> && (is_score_stage<Stage> || OneOf<Stage, SoftmaxScale, LearnedSink>);
}

template <class P>
constexpr StageList<> select(const StageList<>&) {
  return {};
}

/// The stages of a written-out list that run at P, in written order.
template <class P, class First, class... Rest>
constexpr auto select(const StageList<First, Rest...>& list) {
  if constexpr (runs_at<P, First>())
    return join(StageList<First>{list.first, {}}, select<P>(list.rest));
  else
    return select<P>(list.rest);
}

template <class... Stages>
constexpr int count_masks = (0 + ... + (Mask<Stages> ? 1 : 0));
template <class... Stages>
constexpr int count_ropes = (0 + ... + (is_rope<Stages> ? 1 : 0));
template <class... Stages>
constexpr int count_projection_biases = (0 + ... + (is_projection_bias<Stages> ? 1 : 0));

template <class Stage, class... Stages>
constexpr int times_in = (0 + ... + (std::is_same_v<Stage, Stages> ? 1 : 0));
template <class Stage, class... Stages>
constexpr bool holds(const StageList<Stages...>*) {
  return times_in<Stage, Stages...> > 0;
}
template <class... Stages>
constexpr bool holds_mask(const StageList<Stages...>*) {
  return count_masks<Stages...> > 0;
}

/// The activation of a layer that computes in Scalar; Identity, after a mistake was told.
template <class Scalar, class A>
using ActivationOn = std::conditional_t<BuiltInActivation<A> || ActsOnPackets<A, Scalar>, A, Identity>;

template <class Scalar, class Stage>
constexpr bool takes_scalar() {
  if constexpr (is_gate<Stage> || is_activate<Stage>)
    return !Activation<typename Stage::activation> ||
           std::is_same_v<ActivationOn<Scalar, typename Stage::activation>, typename Stage::activation>;
  else
    return true;
}

/// Whether a gate's source, if it is a user's, reads rows of Scalar.
template <class Scalar, class Stage>
constexpr bool source_takes_scalar() {
  if constexpr (is_gate<Stage>)
    return !GateSource<typename Stage::source> || ReadsRows<typename Stage::source, Scalar>;
  else
    return true;
}

template <class Scalar, class List>
struct CheckedActivations;
template <class Scalar, class... Stages>
struct CheckedActivations<Scalar, StageList<Stages...>> {
  static constexpr bool every_activation_takes_the_scalar = (... && takes_scalar<Scalar, Stages>());
  static_assert(every_activation_takes_the_scalar,
                "gated_attention: an activation has no value or derivative on packets of the layer's scalar: make both "
                "templates on the scalar");
  static constexpr bool every_source_takes_the_scalar = (... && source_takes_scalar<Scalar, Stages>());
  static_assert(every_source_takes_the_scalar,
                "gated_attention: a source of gate logits cannot read rows of the layer's scalar: give it template "
                "<class Scalar> static void read(const Scalar* x, Index model_dim, Scalar* features)");
};

template <class List, class WrittenOutList>
struct CheckedStages;

/// What a list of stages must be, one sentence each.
template <class... Stages, class... Each>
struct CheckedStages<StageList<Stages...>, StageList<Each...>> {
  static constexpr bool every_argument_is_a_stage = (... && is_stage<Stages>);
  static_assert(every_argument_is_a_stage,
                "gated_attention: an argument is not a stage: stages are Gate, Normalize, QkNorm, Activate, Scale, "
                "Rope, ProjectionBias, those on scores (policy/score.hpp) and one mask (policy/mask.hpp)");
  static constexpr bool there_is_at_most_one_mask = count_masks<Stages...> <= 1;
  static_assert(there_is_at_most_one_mask,
                "gated_attention: a layer has one mask: keep one of Causal, CausalTopLeft, SlidingWindow, "
                "StreamingWindow, PrefixCausal, Bidirectional and BidirectionalWindow");
  static constexpr bool there_is_at_most_one_rotation = count_ropes<Stages...> <= 1;
  static_assert(there_is_at_most_one_rotation,
                "gated_attention: a layer has one Rope, which turns queries and keys alike: keep one");
  static constexpr bool there_is_at_most_one_projection_bias = count_projection_biases<Stages...> <= 1;
  static_assert(there_is_at_most_one_projection_bias,
                "gated_attention: name all biased projections in one stage: ProjectionBias<at::Query, at::Key, ...>");
  static constexpr bool no_stage_is_written_twice =
      !every_argument_is_a_stage || !there_is_at_most_one_mask || !there_is_at_most_one_rotation ||
      !there_is_at_most_one_projection_bias || (... && (times_in<Each, Each...> == 1));
  static_assert(no_stage_is_written_twice,
                "gated_attention: two equal stages: remove one (QkNorm is Normalize<at::Query> and "
                "Normalize<at::Key>)");
};

}  // namespace detail
}  // namespace gated_attention
