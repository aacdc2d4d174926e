// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/kernel/call.hpp"
#include "gated_attention/math/rotary.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// s[c] = mean over the heads of activation(logit[h, c]), written where head 0's logits were
template <class Scalar>
void average_scores(const StagePlan<Scalar>& stage, const Shape& shape, Scalar* logits) {
  const Index heads = stage.logit_heads(shape), width = stage.logit_width(shape);
  stage.activate(logits, heads * width, logits);
  for (Index h = 1; h < heads; ++h)
    for (Index c = 0; c < width; ++c) logits[c] += logits[h * width + c];
  for (Index c = 0; c < width; ++c) logits[c] /= static_cast<Scalar>(heads);
}

/// The stages at query, key and value on one token's row.
template <class Scalar>
void prepare_token(const Call<Scalar>& call, Index token, Index position, Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  Scalar* const row = call.projected_row(token);
  const Index frequencies = static_cast<Index>(plan.rotation.frequencies.size());
  Scalar* const cosines = thread_row;
  Scalar* const sines = thread_row + detail::round_up(frequencies, lanes<Scalar>);
  if (frequencies > 0)
    detail::rotation<Scalar>(position, plan.rotation.frequencies.data(), frequencies,
                             plan.rotation.attention_factor, cosines, sines);
  for (const StagePlan<Scalar>& stage : plan.stages)
    if (stage.averaged && stage.from_hidden) average_scores(stage, shape, row + stage.first_column);
  const RowPlace<Scalar> place{
      .first_head = 0, .gate_logits = row, .cosines = cosines, .sines = sines};
  call.stages.query.run(row, shape.query_heads, plan.head_stride, place);
  call.stages.key.run(row + plan.key_column, shape.kv_heads, plan.head_stride, place);
  call.stages.value.run(row + plan.value_column, shape.kv_heads, plan.value_stride, place);
}

/// q, k, v ← their stages, token by token; then keys and values go to their blocks, 64 tokens at a
/// time.
template <class Scalar>
void prepare(const Call<Scalar>& call) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  const KeyValueLayout<Scalar> layout{shape.head_dim, shape.value_width()};
  parallel_for(call.threads_over(plan.columns), call.block_count, [&](Index block, Index thread) {
    const SequencePlace* const next =
        std::upper_bound(call.memory.places, call.memory.places + call.sequence_count, block,
                         [](Index b, const SequencePlace& place) { return b < place.first_block; });
    const Index sequence = next - call.memory.places - 1;
    const SequencePlace& place = call.memory.places[sequence];
    const Index first = (block - place.first_block) * block_keys;
    const Index count = std::min(block_keys, place.tokens - first);
    const Index first_token = place.first_token + first;
    for (Index i = 0; i < count; ++i) {
      const Index token = first_token + i;
      prepare_token(call, token, call.positions != nullptr ? call.positions[token] : first + i,
                    call.memory.thread_rows + thread * call.memory.thread_row);
    }
    const Scalar* const rows = call.projected_row(first_token);
    for (Index h = 0; h < shape.kv_heads; ++h) {
      Scalar* const to = const_cast<Scalar*>(
          call.memory.sequences[sequence].blocks.block(h, block - place.first_block));
      write_keys(to, layout, 0, count, rows + plan.key_column + h * plan.head_stride, plan.columns);
      write_values(to, layout, 0, count, rows + plan.value_column + h * plan.value_stride,
                   plan.columns);
    }
  });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
