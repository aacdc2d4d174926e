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

/// What the stages of one token of a stream read; averages the scores that are averaged.
template <class Scalar>
RowPlace<Scalar> prepare_place(const Call<Scalar>& call, int stream, Index token, Index position,
                               Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  Scalar* const row = call.row(stream, token);
  const Index frequencies = static_cast<Index>(plan.rotation.frequencies.size());
  Scalar* const cosines = thread_row;
  Scalar* const sines = thread_row + detail::round_up(frequencies, lanes<Scalar>);
  if (frequencies > 0)
    detail::rotation<Scalar>(position, plan.rotation.frequencies.data(), frequencies,
                             plan.rotation.attention_factor, cosines, sines);
  for (const StagePlan<Scalar>& stage : plan.stages)
    if (stage.averaged && stage.computed() && plan.stream_of(stage.position) == stream)
      average_scores(stage, plan.shape, row + stage.first_column);
  return {.first_head = 0, .gate_logits = row, .cosines = cosines, .sines = sines};
}

/// The stages at query, or at key and value, or at all three, on one token of a stream.
template <class Scalar>
void prepare_token(const Call<Scalar>& call, int stream, Index token, Index position,
                   Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  Scalar* const row = call.row(stream, token);
  const RowPlace<Scalar> place = prepare_place(call, stream, token, position, thread_row);
  if (stream == 0) call.stages.query.run(row, shape.query_heads, plan.head_stride, place);
  if (stream != plan.key_stream()) return;
  call.stages.key.run(row + plan.key_column, shape.kv_heads, plan.head_stride, place);
  call.stages.value.run(row + plan.value_column, shape.kv_heads, plan.value_stride, place);
}

/// 64 tokens of a sequence of a stream: their stages; then, of the stream of keys and values, their block.
template <class Scalar>
void prepare_block(const Call<Scalar>& call, int s, Index block, Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  const Stream<Scalar>& stream = call.streams[s];
  const SequencePlace* const next =
      std::upper_bound(stream.places, stream.places + call.sequence_count, block,
                       [](Index b, const SequencePlace& place) { return b < place.first_block; });
  const Index sequence = next - stream.places - 1;
  const SequencePlace& place = stream.places[sequence];
  const Index own_block = block - place.first_block, first = own_block * block_keys;
  const Index count = std::min(block_keys, place.tokens - first);
  const Index first_token = place.first_token + first;
  for (Index i = 0; i < count; ++i)
    prepare_token(call, s, first_token + i,
                  stream.positions != nullptr ? stream.positions[first_token + i] : first + i,
                  thread_row);
  if (s != plan.key_stream()) return;
  const KeyValueLayout<Scalar> layout{shape.head_dim, shape.value_width()};
  const Scalar* const rows = call.key_row(first_token);
  const Index stride = plan.streams[s].row;
  for (Index h = 0; h < shape.kv_heads; ++h) {
    Scalar* const to =
        const_cast<Scalar*>(call.memory.sequences[sequence].blocks.block(h, own_block));
    write_keys(to, layout, 0, count, rows + plan.key_column + h * plan.head_stride, stride);
    write_values(to, layout, 0, count, rows + plan.value_column + h * plan.value_stride, stride);
  }
}

/// q, k, v ← their stages, token by token; then keys and values go to their blocks, 64 tokens at a time.
template <class Scalar>
void prepare(const Call<Scalar>& call) {
  for (int s = 0; s < 2; ++s)
    parallel_for(call.threads_over(call.plan.streams[s].row), call.streams[s].block_count,
                 [&](Index block, Index thread) {
                   prepare_block(call, s, block,
                                 call.memory.thread_rows + thread * call.memory.thread_row);
                 });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
