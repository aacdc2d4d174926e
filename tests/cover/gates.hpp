// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <tuple>
#include <utility>

#include "cover/trial.hpp"

// Every valid combination of a gate's axes at one position, told by a number in mixed radix.

namespace gated_attention::cover {

using Granularities = std::tuple<Elementwise, Headwise>;
using Sharings = std::tuple<PerHead, SharedHeads, HeadMean>;
using Combines = std::tuple<Multiply, Add>;
using Activations =
    std::tuple<Sigmoid, Silu, NonSparseSigmoid, Identity, Tanh, Softplus, TwiceSigmoid>;
/// Where logits come from and their bias: Constant takes none.
template <class Source, class BiasKind>
struct Logits {
  using source = Source;
  using bias = BiasKind;
};
using LogitKinds = std::tuple<Logits<FromHidden, NoBias>, Logits<FromHidden, Bias>,
                              Logits<FromHidden, HeadBias>, Logits<Constant, NoBias>>;

inline constexpr std::size_t gate_numbers = 2 * 3 * 2 * 7 * 4;

template <class P, std::size_t number>
struct NumberedGate {
  using granularity = std::tuple_element_t<number % 2, Granularities>;
  using sharing = std::tuple_element_t<number / 2 % 3, Sharings>;
  using combine = std::tuple_element_t<number / 6 % 2, Combines>;
  using activation = std::tuple_element_t<number / 12 % 7, Activations>;
  using logits = std::tuple_element_t<number / 84, LogitKinds>;

  /// No heads at Output; a bias per head wants an elementwise gate with a score per head.
  static constexpr bool valid =
      (!std::is_same_v<P, at::Output> ||
       (std::is_same_v<granularity, Elementwise> && std::is_same_v<sharing, PerHead>)) &&
      (!std::is_same_v<typename logits::bias, HeadBias> ||
       (std::is_same_v<granularity, Elementwise> && !std::is_same_v<sharing, SharedHeads> &&
        !std::is_same_v<P, at::Output>));
};

template <class P, class Numbered>
using GateOf = Gate<P, typename Numbered::granularity, typename Numbered::sharing,
                    typename Numbered::combine, typename Numbered::activation,
                    typename Numbered::logits::source, typename Numbered::logits::bias>;

/// 2 combines × 7 activations × (7 kinds of logits elementwise: 4 per head, 4 averaged, 3 shared;
/// headwise 3 × 3), or of the 3 at Output.
template <class P>
inline constexpr std::size_t gate_count = std::is_same_v<P, at::Output>
                                              ? 2 * 7 * 3
                                              : 2 * 7 * (4 + 4 + 3 + 3 * 3);

/// The numbers of the valid combinations at P.
template <class P>
inline constexpr auto valid_gates = []<std::size_t... numbers>(std::index_sequence<numbers...>) {
  std::array<std::size_t, gate_count<P>> valid{};
  std::size_t count = 0;
  ((NumberedGate<P, numbers>::valid ? void(valid.at(count++) = numbers) : void()), ...);
  if (count != gate_count<P>) throw "a combination is missing";
  return valid;
}
(std::make_index_sequence<gate_numbers>());

/// visit.template operator()<Gate<P, …>>() for every valid combination at P.
template <class P, class Visit>
void for_each_gate(const Visit& visit) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (visit.template operator()<GateOf<P, NumberedGate<P, valid_gates<P>[i]>>>(), ...);
  }
  (std::make_index_sequence<gate_count<P>>());
}

inline constexpr Shape small_shape{
    .model_dim = 20, .query_heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 12};

template <class Scalar, class... Stages>
void check_small_layer() {
  check_layer(compose<Scalar>(small_shape, Stages{}...), {});
}

/// A layer with each gate at P.
template <class Scalar, class P>
void check_gates_at() {
  std::vector<Case> cases;
  for_each_gate<P>([&]<class G>() {
    cases.push_back({type_text<G>(), &check_small_layer<Scalar, G>});
  });
  run_all(cases, gate_count<P>);
}

}  // namespace gated_attention::cover
