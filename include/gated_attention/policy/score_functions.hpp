// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "gated_attention/core/batch.hpp"
#include "gated_attention/math/functions.hpp"
#include "gated_attention/policy/score.hpp"
#include "gated_attention/policy/score_stage.hpp"
#include "gated_attention/policy/stage_list.hpp"

// The formulas of the stages at Scores on a row of packets. Compiled once per scalar and kind.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Where a packet of scores stands, for a function of the user's.
template <class Scalar>
struct ScorePlace {
  Index head = 0;         ///< query head
  Index token = 0;        ///< the query, counted in its sequence
  Index first_key = 0;    ///< the key of lane 0
  Scalar position = 0;    ///< the query's own place among the keys
  Packet<Scalar> keys{};  ///< the key of each lane
};

namespace kernel {

/// A function of a user's on scores of Scalar.
template <class Function, class Scalar>
concept ScoresPackets = requires(const Function& function, const ScorePlace<Scalar>& place,
                                 const Packet<Scalar>& score) {
  { function(place, score) } -> std::convertible_to<Packet<Scalar>>;
};

template <class Scalar, class Stage>
inline constexpr bool scores_packets = true;
template <class Scalar, class Function>
inline constexpr bool scores_packets<Scalar, Score<Function>> = ScoresPackets<Function, Scalar>;

template <class Scalar, class List>
struct CheckedScoreFunctions;
template <class Scalar, class... Stages>
struct CheckedScoreFunctions<Scalar, StageList<Stages...>> {
  static constexpr bool every_score_function_takes_the_scalar =
      (... && scores_packets<Scalar, Stages>);
  static_assert(every_score_function_takes_the_scalar,
                "gated_attention: a function of scores cannot be called on the layer's scalar: give it template "
                "<class Scalar> Packet<Scalar> operator()(const ScorePlace<Scalar>& place, const Packet<Scalar>& "
                "score) const");
};

/// `after`, but −∞ where `before` was: a masked score stays masked.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> keep_masked(const Packet<Scalar>& before,
                                                  const Packet<Scalar>& after) {
  return packet::select_less(
      before, packet::broadcast<Scalar>(std::numeric_limits<Scalar>::lowest()), before, after);
}

/// Runs function(place of packet j, score) over the packets of a row.
template <class Scalar, class Function>
GATED_ATTENTION_INLINE void for_each_score_packet(Scalar* scores, Index packets,
                                                  const Function& function) {
  for (Index j = 0; j < packets; ++j) {
    Scalar* const at = scores + j * lanes<Scalar>;
    const Packet<Scalar> before = packet::load<Scalar>(at);
    packet::store<Scalar>(at, keep_masked<Scalar>(before, function(j * lanes<Scalar>, before)));
  }
}

/// s ← cap·tanh(s / cap)
template <class Scalar>
void run_softcap(const ScoreStage<Scalar>& stage, const ScoreRow&, Scalar* scores, Index packets) {
  const Packet<Scalar> cap = packet::broadcast<Scalar>(stage.number);
  const Packet<Scalar> inverse = packet::broadcast<Scalar>(Scalar(1) / stage.number);
  for_each_score_packet(scores, packets, [&](Index, const Packet<Scalar>& score) {
    return packet::mul(cap, packet::tanh<Scalar>(packet::mul(score, inverse)));
  });
}

/// Slopes of ALiBi for `heads` heads: 2^(−8(h+1)/n) for n a power of two; else those of the power below, then every other
/// of twice as many.
inline std::vector<double> alibi_slopes(Index heads) {
  const auto power = static_cast<Index>(std::bit_floor(static_cast<std::size_t>(heads)));
  std::vector<double> slopes;
  for (Index h = 0; h < power; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(power)));
  for (Index h = 0; h < heads - power; ++h)
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(2 * h + 1) / static_cast<double>(power)));
  return slopes;
}

/// s ← s − slope[h]·|t − s'|
template <class Scalar>
void run_alibi(const ScoreStage<Scalar>& stage, const ScoreRow& row, Scalar* scores,
               Index packets) {
  const double slope = static_cast<const double*>(stage.state)[row.head];
  const Packet<Scalar> fall = packet::broadcast<Scalar>(static_cast<Scalar>(-slope));
  for_each_score_packet(scores, packets, [&](Index offset, const Packet<Scalar>& score) {
    const Packet<Scalar> gap =
        packet::broadcast<Scalar>(static_cast<Scalar>(row.position - row.first_key - offset));
    return packet::madd(fall, packet::abs(packet::sub(gap, packet::ramp<Scalar>())), score);
  });
}

/// The row of a batch's view that a row of scores meets, from its first key on.
template <class T>
const T* view_row(const void* views, const ScoreRow& row) {
  const ScoreView<T>& view = static_cast<const ScoreView<T>*>(views)[row.sequence];
  return view.row(row.head, row.token) + row.first_key;
}

/// s ← s + bias[h, t, s']
template <class Scalar>
void run_score_bias(const ScoreStage<Scalar>& stage, const ScoreRow& row, Scalar* scores,
                    Index packets) {
  const Scalar* const bias = view_row<const Scalar>(stage.state, row);
  const Index count = row.keys - row.first_key;
  for_each_score_packet(scores, packets, [&](Index offset, const Packet<Scalar>& score) {
    if (offset >= count) return score;
    const Packet<Scalar> added = packet::load_at<Scalar>(bias, offset, count);
    return keep_masked<Scalar>(added, packet::add(score, added));
  });
}

template <class Scalar>
bool score_bias_hides(const ScoreStage<Scalar>& stage, const ScoreRow& row, Index count) {
  const Scalar* const bias = view_row<const Scalar>(stage.state, row);
  return std::all_of(bias, bias + count,
                     [](Scalar b) { return b < std::numeric_limits<Scalar>::lowest(); });
}

/// s ← mask[h, t, s'] ? s : −∞
template <class Scalar>
void run_boolean_mask(const ScoreStage<Scalar>& stage, const ScoreRow& row, Scalar* scores,
                      Index packets) {
  const bool* const mask = view_row<const bool>(stage.state, row);
  const Index count = std::min(packets * lanes<Scalar>, row.keys - row.first_key);
  for (Index i = 0; i < count; ++i)
    scores[i] = mask[i] ? scores[i] : -std::numeric_limits<Scalar>::infinity();
}

template <class Scalar>
bool boolean_mask_hides(const ScoreStage<Scalar>& stage, const ScoreRow& row, Index count) {
  const bool* const mask = view_row<const bool>(stage.state, row);
  return std::none_of(mask, mask + count, [](bool seen) { return seen; });
}

/// s ← function(place, s)
template <class Scalar, class Function>
void run_score_function(const ScoreStage<Scalar>& stage, const ScoreRow& row, Scalar* scores,
                        Index packets) {
  const Function& function = *static_cast<const Function*>(stage.state);
  ScorePlace<Scalar> place{.head = row.head,
                           .token = row.token,
                           .first_key = row.first_key,
                           .position = static_cast<Scalar>(row.position)};
  for_each_score_packet(scores, packets, [&](Index offset, const Packet<Scalar>& score) {
    place.first_key = row.first_key + offset;
    place.keys = packet::add(packet::broadcast<Scalar>(static_cast<Scalar>(place.first_key)),
                             packet::ramp<Scalar>());
    return function(std::as_const(place), score);
  });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
