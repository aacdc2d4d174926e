// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/kernel/call.hpp"
#include "gated_attention/kernel/first_token.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// o[t, h, :] = stages(Σ_s p[t, h, s] · v[s, h/G, :])      p = softmax(scale · q·k) over the keys that t sees, stored as
/// Stored
template <class Stored, class Scalar>
void attend(const Call<Scalar>& call) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  const Index tokens = call.tokens();
  AttendArguments<Scalar> arguments;
  arguments.query_heads = shape.query_heads;
  arguments.kv_heads = shape.kv_heads;
  arguments.key_dim = shape.head_dim;
  arguments.value_dim = shape.value_width();
  arguments.q = {call.streams[0].projected, tokens,          shape.query_heads, shape.head_dim,
                 plan.streams[0].row,       plan.head_stride};
  if (call.memory.kept_queries != nullptr)
    arguments.kept_q = {call.memory.kept_queries, tokens, shape.query_heads, shape.head_dim,
                        shape.query_heads * plan.head_stride, plan.head_stride};
  arguments.score_stages = call.score_stages;
  arguments.score_stage_count = call.score_stage_count;
  arguments.sinks = call.sinks();
  arguments.score_scale = score_scale<Scalar>(plan.scale, call.score_stage_count);
  arguments.sequences = call.memory.sequences;
  arguments.sequence_count = call.sequence_count;
  arguments.stages = call.stages.sdpa_tile.first;
  arguments.stage_count = call.stages.sdpa_tile.count;
  arguments.gate_logits = call.streams[0].projected;
  arguments.gate_token_stride = plan.streams[0].row;
  arguments.out = {call.memory.sdpa_output,
                   tokens,
                   shape.query_heads,
                   shape.value_width(),
                   shape.query_heads * plan.value_stride,
                   plan.value_stride};
  arguments.attention = call.results.attention;
  arguments.log_sum_exp = call.results.log_sum_exp;
  attend<Stored>(arguments, call.memory.attend, call.threads);
  if (!call.results.first_token_attention.empty())
    record_first_token<Stored>(arguments, plan.scale, call.results.first_token_attention);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
