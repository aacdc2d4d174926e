// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/kernel/call.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// [q | k | v | gate logits][t, :] = x[t, :] · Wᵀ + b      x: [T, E], W: [columns, E]: one pass
/// over x
template <class Scalar>
void project(const Call<Scalar>& call) {
  const LayerPlan<Scalar>& plan = call.plan;
  multiply<Scalar>({.data = call.x.data(),
                    .rows = call.x.rows(),
                    .row_stride = call.x.row_stride(),
                    .groups = 1,
                    .group_width = plan.shape.model_dim,
                    .group_stride = plan.shape.model_dim},
                   call.weights.input,
                   {call.memory.projected, plan.columns, call.weights.input_bias},
                   call.memory.product, call.threads);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
