// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/kernel/call.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// o ← the stages at Sdpa that read a token's whole row, and those written after them      o: [T,
/// Hq, Dv]
template <class Scalar>
void run_row_stages(const Call<Scalar>& call) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Index row = plan.shape.query_heads * plan.value_stride;
  parallel_for(call.threads_over(row), call.tokens(), [&](Index token, Index) {
    const RowPlace<Scalar> place{.first_head = 0,
                                 .gate_logits = call.query_row(token),
                                 .cosines = nullptr,
                                 .sines = nullptr};
    call.stages.sdpa_row.run(call.memory.sdpa_output + token * row, plan.shape.query_heads,
                             plan.value_stride, place);
  });
}

/// y ← the stages at Output      y: [T, E]
template <class Scalar>
void run_output_stages(const Call<Scalar>& call) {
  const Index width = call.plan.shape.model_dim;
  const Index padded = detail::round_up(width, lanes<Scalar>);
  parallel_for(call.threads_over(width), call.tokens(), [&](Index token, Index thread) {
    // A row of y is the caller's and exact; the stages want one that may be written in whole
    // packets.
    Scalar* const row = call.memory.thread_rows + (thread + 1) * call.memory.thread_row - padded;
    const RowPlace<Scalar> place{.first_head = 0,
                                 .gate_logits = call.query_row(token),
                                 .cosines = nullptr,
                                 .sines = nullptr};
    std::copy_n(call.y.row(token), width, row);
    call.stages.output.run(row, 1, 0, place);
    std::copy_n(row, width, call.y.row(token));
  });
}

/// y[t, :] = o[t, :] · W_oᵀ + b, then the stages at Output      o: [T, Hq·Dv], W_o: [E, Hq·Dv], stored as Weight
template <class Weight, class Scalar>
void output(const Call<Scalar>& call) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  if (call.stages.sdpa_row.count > 0) run_row_stages(call);
  multiply<Scalar, Weight>({.data = call.memory.sdpa_output,
                    .rows = call.tokens(),
                    .row_stride = shape.query_heads * plan.value_stride,
                    .groups = shape.query_heads,
                    .group_width = shape.value_width(),
                    .group_stride = plan.value_stride},
                   call.weights.output.template as<Weight>(),
                   {call.y.data(), call.y.row_stride(), call.weights.output_bias},
                   call.memory.product, call.threads);
  if (call.stages.output.count > 0) run_output_stages(call);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
