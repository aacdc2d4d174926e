// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>

#include "gated_attention/policy/activation.hpp"
#include "gated_attention/policy/position.hpp"

namespace gated_attention {

// The axes of a gate. Each has a default (named first in its group) and is written in any order.

struct Elementwise {};  ///< a score per channel
struct Headwise {};     ///< a score per head

struct PerHead {};      ///< every head has its own score
struct SharedHeads {};  ///< one score of the position's width for all heads
struct HeadMean {};     ///< full-width scores, averaged over the heads after the activation

struct Multiply {};  ///< y ⊙ s
struct Add {};       ///< y + s

struct FromHidden {};  ///< logits x·Wᵀ from the layer's input x, the pre-normed hidden state
struct Constant {};    ///< learned logits that do not read x

/// Logits x[:channels]·Wᵀ from the first channels of x alone.
template <Index channels>
struct FirstChannels {};

/// Logits (x·Aᵀ)·Wᵀ through a low rank: A [rank, E] is the tensor .down, W [rows, rank].
template <Index rank>
struct LowRank {};

/// A source of your own: features φ(x) of a row of x, from which the gate learns its logits φ(x)·Wᵀ:
///
///     struct Squares {                                         // φ(x) = x ⊙ x
///       static constexpr bool is_gate_source = true;
///       static constexpr Index features(Index model_dim) { return model_dim; }
///       template <class Scalar>
///       static void read(const Scalar* x, Index model_dim, Scalar* features);
///     };
template <class T>
concept GateSource = requires(Index n) {
  T::is_gate_source;
  { T::features(n) } -> std::convertible_to<Index>;
};

struct NoBias {};
struct Bias {};      ///< a bias per logit
struct HeadBias {};  ///< a bias per head on an elementwise gate

namespace detail {

template <class T>
inline constexpr Index first_channels = 0;
template <Index channels>
inline constexpr Index first_channels<FirstChannels<channels>> = channels;

template <class T>
inline constexpr Index low_rank = 0;
template <Index rank>
inline constexpr Index low_rank<LowRank<rank>> = rank;

template <class T, class Scalar>
concept ReadsRows = requires(const Scalar* x, Index n, Scalar* features) { T::template read<Scalar>(x, n, features); };

template <class T>
inline constexpr bool is_source = OneOf<T, FromHidden, Constant> || GateSource<T>;
template <Index channels>
inline constexpr bool is_source<FirstChannels<channels>> = true;
template <Index rank>
inline constexpr bool is_source<LowRank<rank>> = true;

template <class T>
inline constexpr bool reads_no_channel = false;
template <Index channels>
inline constexpr bool reads_no_channel<FirstChannels<channels>> = channels < 1;

template <class T>
inline constexpr bool has_no_rank = false;
template <Index rank>
inline constexpr bool has_no_rank<LowRank<rank>> = rank < 1;

enum class GateAxis { granularity, sharing, combine, source, bias, activation };

/// Whatever names no other axis is taken for an activation, and must then be one.
template <class T>
constexpr GateAxis gate_axis() {
  if (std::is_same_v<T, Elementwise> || std::is_same_v<T, Headwise>) return GateAxis::granularity;
  if (std::is_same_v<T, PerHead> || std::is_same_v<T, SharedHeads> || std::is_same_v<T, HeadMean>)
    return GateAxis::sharing;
  if (std::is_same_v<T, Multiply> || std::is_same_v<T, Add>) return GateAxis::combine;
  if (is_source<T>) return GateAxis::source;
  if (std::is_same_v<T, NoBias> || std::is_same_v<T, Bias> || std::is_same_v<T, HeadBias>)
    return GateAxis::bias;
  return GateAxis::activation;
}

/// The first of Choices that names the axis, or the default.
template <GateAxis axis, class Default, class... Choices>
struct PickAxis {
  using Type = Default;
};
template <GateAxis axis, class Default, class First, class... Rest>
struct PickAxis<axis, Default, First, Rest...> {
  using Type = typename std::conditional_t<gate_axis<First>() == axis, std::type_identity<First>,
                                           std::type_identity<typename PickAxis<axis, Default, Rest...>::Type>>::type;
};

template <class... Axes>
constexpr bool each_axis_at_most_once() {
  int count[6] = {};
  (++count[static_cast<int>(gate_axis<Axes>())], ...);
  for (const int times : count)
    if (times > 1) return false;
  return true;
}

}  // namespace detail

/// s = activation(logits)     logits = x·Wᵀ + b, or a learned constant
/// y ← y ⊙ s (Multiply) or y + s (Add)
///
/// The one type behind every spelling of Gate. With H heads of width w at the position and E = model_dim:
///
/// |               | PerHead, HeadMean: W    | SharedHeads: W |
/// |---------------|-------------------------|----------------|
/// | Elementwise   | [H·w, E], row h·w + c   | [w, E]         |
/// | Headwise      | [H, E]                  | [1, E]         |
///
/// Constant logits are [H, w], [H, 1] or, shared, one row of it. Bias has one entry per row of W, HeadBias one per head.
/// Source: Qiu et al. 2025, §2, Table 1.
template <class P, class Granularity, class Sharing, class Combine, class Activate, class Source, class BiasKind>
struct BasicGate {
  using position = P;
  using granularity = Granularity;
  using sharing = Sharing;
  using combine = Combine;
  using activation = Activate;
  using source = Source;
  using bias = BiasKind;

  static constexpr bool elementwise = std::is_same_v<Granularity, Elementwise>;
  static constexpr bool shared = std::is_same_v<Sharing, SharedHeads>;
  static constexpr bool averaged = std::is_same_v<Sharing, HeadMean>;
  static constexpr bool constant = std::is_same_v<Source, Constant>;

  static constexpr bool every_choice_names_an_axis = Activation<Activate>;
  static_assert(every_choice_names_an_axis,
                "gated_attention: a choice of this gate names no axis and is no activation (Sigmoid, Silu, ..., or a "
                "type with value and derivative on packets)");
  static constexpr bool the_source_reads_a_channel = !detail::reads_no_channel<Source>;
  static_assert(the_source_reads_a_channel, "gated_attention: FirstChannels reads at least 1 channel");
  static constexpr bool the_source_has_a_rank = !detail::has_no_rank<Source>;
  static_assert(the_source_has_a_rank, "gated_attention: LowRank has a rank of at least 1");
  static constexpr bool output_has_no_heads =
      !std::is_same_v<P, at::Output> || (elementwise && std::is_same_v<Sharing, PerHead>);
  static_assert(output_has_no_heads,
                "gated_attention: there are no heads behind the output projection: write Gate<at::Output> with "
                "Elementwise and PerHead, or gate the heads with Gate<at::Sdpa, ...>");
  static constexpr bool a_constant_has_no_bias = !constant || std::is_same_v<BiasKind, NoBias>;
  static_assert(a_constant_has_no_bias,
                "gated_attention: a Constant gate is its own bias: write NoBias, or FromHidden with Bias");
  static constexpr bool head_bias_has_heads =
      !std::is_same_v<BiasKind, HeadBias> || (elementwise && !shared && !std::is_same_v<P, at::Output>);
  static_assert(head_bias_has_heads,
                "gated_attention: HeadBias is one bias per head of an Elementwise gate with a score per head: write "
                "Bias here");

  /// Logits per token.
  static constexpr Index rows(const Shape& shape) {
    const Position position_number = detail::PositionOf<P>::value;
    const Index heads = shared ? 1 : detail::heads_at(position_number, shape);
    return heads * (elementwise ? detail::width_at(position_number, shape) : 1);
  }

  /// Channels of a row of the stream that the gate reads, and the numbers that its logits are made from.
  static constexpr Index source_dim(const Shape& shape) {
    return detail::source_dim(detail::PositionOf<P>::value, shape);
  }
  static constexpr Index depth(const Shape& shape) {
    if constexpr (GateSource<Source>)
      return Source::features(source_dim(shape));
    else if constexpr (detail::first_channels<Source> > 0)
      return detail::first_channels<Source>;
    else if constexpr (detail::low_rank<Source> > 0)
      return detail::low_rank<Source>;
    else
      return source_dim(shape);
  }

  static constexpr detail::StageTensors tensors(const Shape& shape) {
    const Index bias_entries = std::is_same_v<BiasKind, Bias>       ? rows(shape)
                               : std::is_same_v<BiasKind, HeadBias> ? detail::heads_at(detail::PositionOf<P>::value, shape)
                                                                    : 0;
    if constexpr (!constant)
      return {rows(shape), depth(shape), bias_entries, detail::low_rank<Source> > 0 ? source_dim(shape) : 0};
    const Index width = elementwise ? detail::width_at(detail::PositionOf<P>::value, shape) : 1;
    return {rows(shape) / width, width, bias_entries};
  }

  constexpr bool operator==(const BasicGate&) const = default;
};

namespace detail {

template <class P, class... Axes>
struct CanonicalGate {
  static constexpr bool the_position_comes_first = RowPosition<P>;
  static_assert(the_position_comes_first,
                "gated_attention: a gate names its position first: Gate<at::Sdpa, ...>, at::Value, at::Key, "
                "at::Query or at::Output");
  static constexpr bool every_axis_is_named_once = each_axis_at_most_once<Axes...>();
  static_assert(every_axis_is_named_once,
                "gated_attention: this gate names one axis twice (granularity, sharing, combine, activation, source "
                "and bias are chosen once each)");

  using Named = BasicGate<P, typename PickAxis<GateAxis::granularity, Elementwise, Axes...>::Type,
                          typename PickAxis<GateAxis::sharing, PerHead, Axes...>::Type,
                          typename PickAxis<GateAxis::combine, Multiply, Axes...>::Type,
                          typename PickAxis<GateAxis::activation, Sigmoid, Axes...>::Type,
                          typename PickAxis<GateAxis::source, FromHidden, Axes...>::Type,
                          typename PickAxis<GateAxis::bias, NoBias, Axes...>::Type>;
  /// The gate; the default one, after a mistake was told.
  using Type =
      std::conditional_t<the_position_comes_first && every_axis_is_named_once, Named,
                         BasicGate<at::Sdpa, Elementwise, PerHead, Multiply, Sigmoid, FromHidden, NoBias>>;
};

}  // namespace detail

/// A gate at a position; unnamed axes are Elementwise, PerHead, Multiply, Sigmoid, FromHidden, NoBias, the paper's best.
template <class P, class... Axes>
using Gate = typename detail::CanonicalGate<P, Axes...>::Type;

}  // namespace gated_attention
