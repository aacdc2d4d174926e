// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include "gated_attention/cache/cache.hpp"
#include "gated_attention/layer/begin.hpp"

// Appending to a cache: the checks, and the passes that a call is divided into where a ring holds less than its tokens.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// What a cache is made for.
struct CacheExtents {
  const Shape& shape;
  std::uint64_t key_signature;
  Index sequences;
};

/// Every check of an extend but the cache's room, before anything is written.
template <class Scalar>
void check_extend(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch, const MatrixView<Scalar>& y,
                  const Results<Scalar>& results, const CacheExtents& cache) {
  const char* const function = objects.function;
  const Shape &shape = objects.plan.shape, &made = cache.shape;
  if (shape.is_cross())
    detail::raise<ShapeError>(function, ": the layer's keys come from a context of context_dim ", shape.context_dim,
                              ", which prepare_context prepares; a cache takes 0");
  if (made != shape)
    detail::raise<ShapeError>(function, ": the cache was made for a layer of ", made.kv_heads, " kv heads, head_dim ",
                              made.head_dim, ", value_dim ", made.value_width(), ", model_dim ", made.model_dim,
                              "; this layer's are ", shape.kv_heads, ", ", shape.head_dim, ", ", shape.value_width(),
                              ", ", shape.model_dim);
  if (const std::uint64_t own = objects.plan.key_signature; cache.key_signature != own)
    detail::raise<ShapeError>(function, ": the cache holds keys of another layer (signature ", cache.key_signature,
                              ", this layer's is ", own,
                              "): the stages at key and value, the rotation, or their numbers differ");
  const Index sequences = count_sequences(batch.lengths);
  if (sequences != cache.sequences)
    detail::raise<ShapeError>(function, ": the batch has ", sequences, " sequences, the cache has ", cache.sequences,
                              "; a sequence without new tokens has a length of 0");
  check_forward(objects, batch, y, results, static_cast<const PreparedKeys<Scalar>*>(nullptr));
}

/// A sequence's prefix is there when its first tokens see it: with the first chunk.
inline void check_prefix(const char* function, Index prefix, Index sequence, Index size, Index tokens) {
  const Index seen = size > 0 ? size : tokens;
  if (tokens > 0 && prefix > seen)
    detail::raise<ShapeError>(function, ": sequence ", sequence, " has a prefix of ", prefix,
                              " tokens, its first chunk has ", seen);
}

/// Sets the next pass up in the workspace: of each sequence's tokens as many as its cache has room for at once. False when
/// there are none left.
template <class Scalar, class Cache>
bool next_pass(Call<Scalar>& call, const Batch<Scalar>& batch, const Cache& cache) {
  Index start = 0, blocks = 0, taken = 0;
  for (Index i = 0; i < call.sequence_count; ++i) {
    const Index length = length_of(batch.lengths, i, batch.x.rows());
    SequencePlace& place = call.streams[0].places[i];
    place.first_token += place.tokens;
    place.past += place.tokens;
    place.tokens = std::min(start + length - place.first_token, cache.room(i, place.past));
    place.first_block = blocks;
    blocks += place.blocks();
    taken += place.tokens;
    call.memory.sequences[i] = {
        .first_token = place.first_token,
        .tokens = place.tokens,
        .bounds = call.plan.mask.bounds(place.tokens, place.past + place.tokens, prefix_of(batch.prefixes, i)),
        .blocks = cache.blocks(i),
        .first_query = place.first_token - start};
    start += length;
  }
  call.streams[0].block_count = blocks;
  return taken > 0;
}

/// Checks everything and makes the cache ready; its sequences' sizes stand until they are committed.
template <class Scalar, class Cache>
Call<Scalar> begin_extend(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch, Cache& cache,
                          const MatrixView<Scalar>& y, const Results<Scalar>& results) {
  check_extend(objects, batch, y, results, {cache.shape(), cache.key_signature(), cache.sequences()});
  const LayerPlan<Scalar>& plan = objects.plan;
  const WorkspaceMemory<Scalar>& memory = objects.memory;
  const Index tokens = batch.x.rows(), sequences = cache.sequences();
  cache.check_mask(objects.function, plan.mask);
  cache.check_room(objects.function, batch.lengths.empty() ? std::span<const Index>(&tokens, 1) : batch.lengths);
  Stream<Scalar> x = place_stream(memory, 0, batch.x, batch.lengths, batch.positions, sequences);
  for (Index i = 0; i < sequences; ++i) {
    const Index size = cache.size(i), length = x.places[i].tokens;
    check_prefix(objects.function, prefix_of(batch.prefixes, i), i, size, length);
    memory.sequences[i] = {.first_token = x.places[i].first_token,
                           .tokens = length,
                           .bounds = plan.mask.bounds(length, size + length),
                           .blocks = {}};
  }
  const Index score_stages =
      bind_score_stages(objects.function, plan, batch, memory.sequences, sequences, memory.score_stages);
  for (Index i = 0; i < sequences; ++i) {
    cache.reserve(i, x.places[i].tokens);
    x.places[i].past = cache.size(i);
    x.places[i].tokens = 0;  // none in the pass before the first
  }
  return {.plan = plan,
          .weights = objects.weights,
          .memory = memory,
          .stages = bind_stages(plan, objects.weights.stages, memory.stages),
          .score_stages = memory.score_stages,
          .score_stage_count = score_stages,
          .streams = {x, Stream<Scalar>{}},
          .sequence_count = sequences,
          .y = y,
          .results = results,
          .threads = objects.limits.threads};
}

/// Counts the tokens of a call that is done.
template <class Scalar, class Cache>
void end_extend(const Call<Scalar>& call, const Batch<Scalar>& batch, Cache& cache) {
  for (Index i = 0; i < call.sequence_count; ++i)
    cache.commit(i, length_of(batch.lengths, i, batch.x.rows()));
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
