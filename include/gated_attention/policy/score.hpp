// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <type_traits>

#include "gated_attention/core/index.hpp"
#include "gated_attention/policy/position.hpp"
#include "gated_attention/policy/required.hpp"

namespace gated_attention {

// Stages on the scores s[h, t, s'] = scale · q[t, h, :]·k[s', h/G, :], before the softmax, in the order written. They work in
// natural units; with none, scale and log2(e) are folded into q and nothing here costs anything. A score that a stage has
// made −∞ stays masked: later stages do not see it. Keys that the mask hides are never shown to a stage's result.

/// s ← s·scale in place of 1/√head_dim, wherever written.
struct SoftmaxScale {
  Required<double> scale;
};

/// s ← cap·tanh(s / cap)      cap > 0 and finite
struct Softcap {
  Required<double> cap;
};

/// s ← s − slope[h]·|t − s'|      t, s' absolute positions among the keys
///
/// Without slopes, those of Press et al. 2022: 2^(−8·(h+1)/H) for H heads a power of two, interleaved with those of 2·H'
/// for the nearest lower power H' otherwise. Own slopes: one per query head; the layer copies them.
struct Alibi {
  std::span<const double> slopes = {};

  static constexpr bool has_default_numbers = true;
};

/// s ← s + bias[h, t, s']      the batch's score_bias, [Hq or 1, T or 1, S]; −∞ masks
struct ScoreBias {};

/// s ← mask[h, t, s'] ? s : −∞      the batch's boolean_mask, [Hq or 1, T or 1, S]
struct BooleanMask {};

/// The softmax also counts e^sink[h], which brings no value: p[s'] = e^s[s'] / (Σ e^s + e^sink[h]). Learned, one per query
/// head: tensor sink.logits [1, Hq]. Joins last, wherever written. A row that sees nothing is 0.
struct LearnedSink {
  static constexpr detail::StageTensors tensors(const Shape& shape) {
    return {1, shape.query_heads, 0};
  }
};

/// s ← function(place, s), a function of your own on packets of scores:
///
///     struct Distance {                       // s − rate·(t − s')
///       double rate;
///       template <class Scalar>
///       Packet<Scalar> operator()(const ScorePlace<Scalar>& place, const Packet<Scalar>& score) const {
///         const auto distance = packet::sub(packet::broadcast<Scalar>(place.position), place.keys);
///         return packet::madd(packet::broadcast<Scalar>(static_cast<Scalar>(-rate)), distance, score);
///       }
///       double reference(Index head, Index position, Index key, double score) const;   // optional, for reference/
///     };
///     compose<float>(shape, Score<Distance>{{.rate = 0.5}}, …)
///
/// −∞ masks a key. The function is called for whole packets; in lanes of keys that the mask hides the score is anything.
template <class Function>
struct Score {
  Function function;

  static constexpr bool has_default_numbers =
      std::is_empty_v<Function> && std::is_default_constructible_v<Function>;
};

}  // namespace gated_attention
