// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/kernel/call.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The features of every token of a stream, by a user's source.
template <class Scalar>
void read_all_features(const Call<Scalar>& call, const StagePlan<Scalar>& stage,
                       const Stream<Scalar>& stream) {
  const Index width = stream.x.columns();
  parallel_for(call.threads_over(width), stream.x.rows(), [&](Index token, Index) {
    stage.features(stream.x.row(token), width, stream.features + token * stage.depth);
  });
}

/// The logits of a gate with a product of its own.
template <class Weight, class Scalar>
void project_gate(const Call<Scalar>& call, const StagePlan<Scalar>& stage, int s) {
  const Stream<Scalar>& stream = call.streams[s];
  const Index row = call.plan.streams[s].row;
  ProductSource<Scalar> source{stream.x.data(), stream.x.rows(), stream.x.row_stride(), 1,
                               stage.depth,     stage.depth};
  if (stage.origin == GateOrigin::low_rank) {
    source.data = stream.projected + stage.low_column;
    source.row_stride = row;
  } else if (stage.origin == GateOrigin::features) {
    read_all_features(call, stage, stream);
    source.data = stream.features;
    source.row_stride = stage.depth;
  }
  const Scalar* const bias = call.weights.input_bias[s];
  const Weight* const panels = static_cast<const Weight*>(call.weights.gate_panels);
  multiply<Scalar, Weight>(
      source, {panels + stage.panel_offset, stage.logits(call.plan.shape), stage.depth},
      {stream.projected + stage.first_column, row,
       bias == nullptr ? nullptr : bias + stage.first_column},
      call.memory.product, call.threads);
}

/// [q | k | v | gate logits][t, :] = x[t, :] · Wᵀ + b      x: [T, E], W: [columns, E]: one pass over x
///
/// In cross-attention [q | gate logits] of x and [k | v | gate logits] of the context. The weights are stored as Weight.
template <class Weight, class Scalar>
void project(const Call<Scalar>& call) {
  for (int s = 0; s < 2; ++s) {
    const Stream<Scalar>& stream = call.streams[s];
    const StreamPlan& plan = call.plan.streams[s];
    if (stream.x.rows() == 0) continue;
    multiply<Scalar, Weight>({.data = stream.x.data(),
                      .rows = stream.x.rows(),
                      .row_stride = stream.x.row_stride(),
                      .groups = 1,
                      .group_width = plan.width,
                      .group_stride = plan.width},
                     call.weights.input[s].template as<Weight>(),
                     {stream.projected, plan.row, call.weights.input_bias[s]}, call.memory.product,
                     call.threads);
    for (const StagePlan<Scalar>& stage : call.plan.stages)
      if (stage.has_own_product() && call.plan.stream_of(stage.position) == s)
        project_gate<Weight>(call, stage, s);
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
