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

/// What the stages of one token of a stream read at a position. thread_row takes the rotation.
template <class Scalar>
RowPlace<Scalar> place_at(const Call<Scalar>& call, const Scalar* row, Index position,
                          Scalar* thread_row) {
  const RotationPlan& rotation = call.plan.rotation;
  const Index frequencies = static_cast<Index>(rotation.frequencies.size());
  Scalar* const cosines = thread_row;
  Scalar* const sines = thread_row + detail::round_up(frequencies, lanes<Scalar>);
  if (frequencies > 0)
    detail::rotation<Scalar>(position, rotation.frequencies.data(), frequencies,
                             rotation.attention_factor, cosines, sines);
  return {.first_head = 0, .gate_logits = row, .cosines = cosines, .sines = sines};
}

/// A token's queries for the kept keys: the same stages, at its position among the keys that it still sees.
template <class Scalar>
void prepare_kept_query(const Call<Scalar>& call, Index token, Index position, Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Scalar* const row = call.query_row(token);
  const Index width = plan.shape.query_heads * plan.head_stride;
  Scalar* const kept = call.memory.kept_queries + token * width;
  std::copy_n(row, width, kept);
  call.stages.query.run(kept, plan.shape.query_heads, plan.head_stride,
                        place_at(call, row, position, thread_row));
}

/// The stages at query, or at key and value, or at all three, on one token of a stream. `evicted`: how many keys there are
/// between those that it keeps and those of its window.
template <class Scalar>
void prepare_token(const Call<Scalar>& call, int stream, Index token, Index position, Index evicted,
                   Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  Scalar* const row = call.row(stream, token);
  for (const StagePlan<Scalar>& stage : plan.stages)
    if (stage.averaged && stage.computed() && plan.stream_of(stage.position) == stream)
      average_scores(stage, shape, row + stage.first_column);
  if (stream == 0 && plan.mask.in_cache)
    prepare_kept_query(call, token, position - evicted, thread_row);
  const RowPlace<Scalar> place = place_at(call, row, position, thread_row);
  if (stream == 0) call.stages.query.run(row, shape.query_heads, plan.head_stride, place);
  if (stream != plan.key_stream()) return;
  call.stages.key.run(row + plan.key_column, shape.kv_heads, plan.head_stride, place);
  call.stages.value.run(row + plan.value_column, shape.kv_heads, plan.value_stride, place);
}

/// The tokens of a sequence of a stream that lie in one block of 64 positions: their stages; then, of the stream of keys and
/// values, their lanes of the block.
template <class Stored, class Scalar>
void prepare_block(const Call<Scalar>& call, int s, Index block, Scalar* thread_row) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  const Stream<Scalar>& stream = call.streams[s];
  const SequencePlace* const next =
      std::upper_bound(stream.places, stream.places + call.sequence_count, block,
                       [](Index b, const SequencePlace& place) { return b < place.first_block; });
  const Index sequence = next - stream.places - 1;
  const SequencePlace& place = stream.places[sequence];
  const Index own_block = block - place.first_block + place.past / block_keys;
  const Index first = std::max(own_block * block_keys, place.past);
  const Index count = std::min((own_block + 1) * block_keys, place.past + place.tokens) - first;
  const Index first_token = place.first_token + first - place.past;
  const KeyBounds& bounds = call.memory.sequences[sequence].bounds;
  for (Index i = 0; i < count; ++i)
    prepare_token(call, s, first_token + i,
                  stream.positions != nullptr ? stream.positions[first_token + i] : first + i,
                  bounds.evicted(first + i - place.past), thread_row);
  if (s != plan.key_stream()) return;
  const KeyValueLayout<Scalar, Stored> layout{shape.head_dim, shape.value_width()};
  const Scalar* const rows = call.key_row(first_token);
  const Index stride = plan.streams[s].row, lane = first % block_keys;
  for (Index h = 0; h < shape.kv_heads; ++h) {
    Stored* const to =
        call.memory.sequences[sequence].blocks.template block<Stored>(h, own_block);
    write_keys(to, layout, lane, count, rows + plan.key_column + h * plan.head_stride, stride);
    write_values(to, layout, lane, count, rows + plan.value_column + h * plan.value_stride, stride);
  }
}

/// q, k, v ← their stages, token by token; then keys and values go to their blocks, stored as Stored, up to 64 tokens at a
/// time.
template <class Stored, class Scalar>
void prepare(const Call<Scalar>& call) {
  for (int s = 0; s < 2; ++s)
    parallel_for(call.threads_over(call.plan.streams[s].row), call.streams[s].block_count,
                 [&](Index block, Index thread) {
                   prepare_block<Stored>(call, s, block,
                                         call.memory.thread_rows + thread * call.memory.thread_row);
                 });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
