// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/layer/check.hpp"

// The beginning of every call: all checks, then its tables in the workspace.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

inline Index count_sequences(std::span<const Index> lengths) {
  return lengths.empty() ? 1 : static_cast<Index>(lengths.size());
}

inline Index length_of(std::span<const Index> lengths, Index sequence, Index all) {
  return lengths.empty() ? all : lengths[static_cast<std::size_t>(sequence)];
}

/// Keys and values that were prepared before: a sequence's blocks, and how many keys it has.
template <class Scalar>
struct PreparedKeys {
  const std::byte* blocks = nullptr;
  const SequencePlace* places = nullptr;
  Index sequences = 0;
};

/// Divides a stream into its sequences; returns it with its blocks counted.
template <class Scalar>
Stream<Scalar> place_stream(const WorkspaceMemory<Scalar>& memory, int s, const MatrixView<const Scalar>& x,
                            std::span<const Index> lengths, std::span<const Index> positions, Index sequences) {
  Stream<Scalar> stream;
  stream.x = x;
  stream.positions = positions.empty() ? nullptr : positions.data();
  stream.projected = memory.projected[s];
  stream.features = memory.features[s];
  stream.places = memory.places[s];
  SequencePlace place;
  for (Index i = 0; i < sequences; ++i) {
    place.tokens = length_of(lengths, i, x.rows());
    stream.places[i] = place;
    place.first_token += place.tokens;
    place.first_block += place.blocks();
  }
  stream.block_count = place.first_block;
  return stream;
}

/// The blocks of one sequence in memory that holds those of all, head by head.
template <class Scalar>
KeyValueSequence blocks_of(std::byte* blocks, const SequencePlace& place, const Shape& shape) {
  const Index bytes = KeyValueLayout<Scalar>{shape.head_dim, shape.value_width()}.bytes();
  return {.base = blocks + place.first_block * shape.kv_heads * bytes,
          .block_stride = bytes,
          .head_stride = place.blocks() * bytes};
}

/// The context of a batch fits the layer: there is one where keys and values come from one, and none otherwise.
template <class Scalar>
void check_context(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch, bool prepared) {
  const char* const function = objects.function;
  const Shape& shape = objects.plan.shape;
  const Index wanted = shape.is_cross() && !prepared ? shape.context_dim : 0;
  if (batch.context.columns() != wanted)
    detail::raise<ShapeError>(function, ": context has ", batch.context.columns(), " columns, ",
                              prepared ? "beside a prepared context it takes " : "the layer's context_dim is ", wanted);
  if (wanted == 0) return;
  check_stream(function, "context_lengths", "context", batch.context_lengths, batch.context_positions,
               batch.context.rows());
  if (batch.context.rows() > objects.limits.context_tokens)
    detail::raise<ShapeError>(function, ": the context has ", batch.context.rows(),
                              " tokens, the workspace was made for ", objects.limits.context_tokens);
  const Index sequences = count_sequences(batch.context_lengths);
  if (sequences > objects.limits.sequences)
    detail::raise<ShapeError>(function, ": the context has ", sequences, " sequences, the workspace was made for ",
                              objects.limits.sequences);
}

/// Every check of a forward, before anything is written.
template <class Scalar>
void check_forward(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch, const MatrixView<Scalar>& y,
                   const Results<Scalar>& results, const PreparedKeys<Scalar>* prepared) {
  const char* const function = objects.function;
  const LayerPlan<Scalar>& plan = objects.plan;
  const Index tokens = batch.x.rows(), sequences = count_sequences(batch.lengths);
  check_extents(function, "x", tokens, batch.x.columns(), tokens, plan.shape.model_dim, "model_dim");
  check_extents(function, "y", y.rows(), y.columns(), tokens, plan.shape.model_dim, "model_dim");
  check_objects(objects, batch);
  check_stream(function, "lengths", "x", batch.lengths, batch.positions, tokens);
  check_context(objects, batch, prepared != nullptr);
  Index contexts = sequences;
  if (prepared != nullptr) contexts = prepared->sequences;
  if (plan.shape.is_cross() && prepared == nullptr) contexts = count_sequences(batch.context_lengths);
  if (contexts != sequences)
    detail::raise<ShapeError>(function, ": there are ", sequences, " sequences and ", contexts, " contexts",
                              prepared != nullptr && contexts == 0 ? ": prepare_context comes first" : "");
  check_alias(function, "x", batch.x, y);
  if (!batch.context.empty()) check_alias(function, "context", batch.context, y);
  check_results(function, plan, results, tokens, plan.shape.is_cross() ? batch.context.rows() : tokens);
  check_prefixes(function, plan.mask, batch.prefixes, sequences);
}

/// Checks everything, then sets the call's tables up in the workspace. `prepared`: where the keys and values are, or null
/// where this call makes them.
template <class Scalar>
Call<Scalar> begin_forward(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch, const MatrixView<Scalar>& y,
                           const Results<Scalar>& results, const PreparedKeys<Scalar>* prepared = nullptr) {
  check_forward(objects, batch, y, results, prepared);
  const LayerPlan<Scalar>& plan = objects.plan;
  const WorkspaceMemory<Scalar>& memory = objects.memory;
  const Index sequences = count_sequences(batch.lengths);
  const Stream<Scalar> x = place_stream(memory, 0, batch.x, batch.lengths, batch.positions, sequences);
  Stream<Scalar> context;
  if (plan.shape.is_cross() && prepared == nullptr)
    context = place_stream(memory, 1, batch.context, batch.context_lengths, batch.context_positions, sequences);
  const SequencePlace* const key_places =
      prepared != nullptr ? prepared->places : (plan.shape.is_cross() ? context.places : x.places);
  for (Index i = 0; i < sequences; ++i)
    memory.sequences[i] = {
        .first_token = x.places[i].first_token,
        .tokens = x.places[i].tokens,
        .bounds = plan.mask.bounds(x.places[i].tokens, key_places[i].tokens, prefix_of(batch.prefixes, i)),
        // A prepared context's are only read.
        .blocks = blocks_of<Scalar>(prepared != nullptr ? const_cast<std::byte*>(prepared->blocks) : memory.blocks,
                                    key_places[i], plan.shape)};
  const Index score_stages =
      bind_score_stages(objects.function, plan, batch, memory.sequences, sequences, memory.score_stages);
  return {.plan = plan,
          .weights = objects.weights,
          .memory = memory,
          .stages = bind_stages(plan, objects.weights.stages, memory.stages),
          .score_stages = memory.score_stages,
          .score_stage_count = score_stages,
          .streams = {x, context},
          .sequence_count = sequences,
          .y = y,
          .results = results,
          .threads = objects.limits.threads};
}

/// The beginning of prepare_context: a call of the context alone, whose blocks lie at `blocks`. Fills `places`.
template <class Scalar>
Call<Scalar> begin_context(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch, std::byte* blocks,
                           SequencePlace* places) {
  check_objects(objects, Batch<Scalar>{});
  check_context(objects, batch, false);
  const LayerPlan<Scalar>& plan = objects.plan;
  const WorkspaceMemory<Scalar>& memory = objects.memory;
  const Index sequences = count_sequences(batch.context_lengths);
  Stream<Scalar> context =
      place_stream(memory, 1, batch.context, batch.context_lengths, batch.context_positions, sequences);
  for (Index i = 0; i < sequences; ++i) {
    places[i] = context.places[i];
    memory.sequences[i] = {};
    memory.sequences[i].blocks = blocks_of<Scalar>(blocks, places[i], plan.shape);
  }
  return {.plan = plan,
          .weights = objects.weights,
          .memory = memory,
          .stages = bind_stages(plan, objects.weights.stages, memory.stages),
          .score_stages = nullptr,
          .score_stage_count = 0,
          .streams = {Stream<Scalar>{}, context},
          .sequence_count = sequences,
          .y = {},
          .results = {},
          .threads = objects.limits.threads};
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
