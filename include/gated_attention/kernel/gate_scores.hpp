// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/kernel/call.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// scores[t, h, c] = activation(logit[t, h, c]) of one gate      (averaged scores and constants as
/// they are)
template <class Scalar>
void record_scores(const Call<Scalar>& call, const StagePlan<Scalar>& stage,
                   const HeadsView<Scalar>& scores) {
  for (Index t = 0; t < scores.tokens(); ++t) {
    const Scalar* const logits =
        stage.computed() ? call.row(call.plan.stream_of(stage.position), t) + stage.first_column
                         : call.weights.stages + stage.parameter_offset;
    for (Index h = 0; h < scores.heads(); ++h) {
      if (stage.averaged)
        std::copy_n(logits, scores.width(), scores.row(t, h));
      else
        stage.activate(logits + h * scores.width(), scores.width(), scores.row(t, h));
    }
  }
}

/// The view of results for the gates at a position.
template <class Scalar>
const HeadsView<Scalar>& scores_at(const GateScores<Scalar>& scores, Position position) {
  switch (position) {
    case Position::query:
      return scores.query;
    case Position::key:
      return scores.key;
    case Position::value:
      return scores.value;
    case Position::sdpa:
      return scores.sdpa;
    default:
      return scores.output;
  }
}

/// The last gate written at a position, or null.
template <class Scalar>
const StagePlan<Scalar>* last_gate_at(const LayerPlan<Scalar>& plan, Position position) {
  const StagePlan<Scalar>* last = nullptr;
  for (const StagePlan<Scalar>& stage : plan.stages)
    if (stage.kind == StagePlan<Scalar>::Kind::gate && stage.position == position) last = &stage;
  return last;
}

/// Writes the scores that were asked for, of the last gate at each position. Runs behind `prepare`,
/// which averages; the logits stand until the next call.
template <class Scalar>
void record_gate_scores(const Call<Scalar>& call) {
  for (int i = 0; i < 5; ++i) {
    const Position position = static_cast<Position>(i);
    const HeadsView<Scalar>& scores = scores_at(call.results.gate_scores, position);
    if (!scores.empty()) record_scores(call, *last_gate_at(call.plan, position), scores);
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
