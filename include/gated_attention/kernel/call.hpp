// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/core/batch.hpp"
#include "gated_attention/core/memory.hpp"
#include "gated_attention/core/parallel.hpp"
#include "gated_attention/kernel/attend.hpp"
#include "gated_attention/kernel/plan.hpp"
#include "gated_attention/kernel/product.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// A layer's numbers as the kernels read them. Panels are of the type that the weights are stored in, which `project` and
/// `output` are told.
template <class Scalar>
struct PackedTensors {
  StoredPanels input[2];                             ///< of each stream: one pass over its tokens
  const Scalar* input_bias[2] = {nullptr, nullptr};  ///< [StreamPlan::row], or null
  const void* gate_panels =
      nullptr;          ///< gates with a product of their own, StagePlan::panel_offset apart
  StoredPanels output;  ///< the output projection
  const Scalar* output_bias = nullptr;  ///< [E], or null
  const Scalar* stages =
      nullptr;  ///< norm multipliers and constant logits, StagePlan::parameter_offset apart
};

/// Consecutive stages, bound to their numbers.
template <class Scalar>
struct BoundStages {
  const RowStage<Scalar>* first = nullptr;
  Index count = 0;

  void run(Scalar* rows, Index heads, Index head_stride, const RowPlace<Scalar>& place) const {
    for (Index i = 0; i < count; ++i) first[i].run(first[i], rows, heads, head_stride, place);
  }
};

/// The stages of a call by where they run. Stages at Sdpa run on the attention tile, but from the
/// first one that reads a token's whole row on they run at the entry of `output`, where all heads
/// are at hand.
template <class Scalar>
struct StageTable {
  BoundStages<Scalar> query, key, value, sdpa_tile, sdpa_row, output;
};

/// One sequence of a stream, or what a pass takes of it, and its part of the blocks of 64 absolute positions.
struct SequencePlace {
  Index first_token = 0;  ///< its first row
  Index tokens = 0;
  Index first_block = 0;  ///< blocks of the sequences before it
  Index past = 0;         ///< absolute index of its first row in the sequence

  Index blocks() const {
    return tokens == 0 ? 0 : (past + tokens - 1) / block_keys - past / block_keys + 1;
  }
};

/// One stream of a call: x or the context.
template <class Scalar>
struct Stream {
  MatrixView<const Scalar> x;
  const Index* positions = nullptr;  ///< of each row, or null: counted in each sequence
  Scalar* projected = nullptr;       ///< [T, StreamPlan::row]
  Scalar* features = nullptr;        ///< [T, LayerPlan::most_features]
  SequencePlace* places = nullptr;
  Index block_count = 0;  ///< of all sequences together
};

/// The pieces of a workspace.
template <class Scalar>
struct WorkspaceMemory {
  Scalar* projected[2] = {
      nullptr, nullptr};  ///< of each stream [T, StreamPlan::row]: q, k, v and gate logits
  Scalar* features[2] = {nullptr, nullptr};
  Scalar* sdpa_output = nullptr;  ///< [T, Hq, value_stride]
  Scalar* kept_queries = nullptr;  ///< [T, Hq, head_stride]: what meets kept keys, at in-cache positions
  std::byte* blocks = nullptr;     ///< keys and values of each sequence and head, in blocks of 64
  Scalar* thread_rows = nullptr;  ///< [threads][thread_row]: cosines, sines, one row of y
  Index thread_row = 0;
  RowStage<Scalar>* stages = nullptr;
  ScoreStage<Scalar>* score_stages = nullptr;
  SequencePlace* places[2] = {nullptr, nullptr};
  AttendSequence* sequences = nullptr;
  ProductScratch<Scalar> product;
  AttendScratch<Scalar> attend;
};

inline Index most_blocks(Index tokens, Index sequences) {
  return (tokens + (block_keys - 1) * (sequences < tokens ? sequences : tokens)) / block_keys;
}

/// Lays a workspace out; from an arena that only counts, says how large it is. Linear in tokens.
template <class Scalar>
WorkspaceMemory<Scalar> take_workspace(detail::Arena& arena, const LayerPlan<Scalar>& plan,
                                       const Limits& limits) {
  const Shape& shape = plan.shape;
  const KeyValueLayout<Scalar> layout{shape.head_dim, shape.value_width()};
  const char* const what = "workspace_bytes";
  const auto product = [what](Index a, Index b) { return detail::checked_product(a, b, what); };
  WorkspaceMemory<Scalar> memory;
  const Index stream_tokens[2] = {limits.tokens, shape.is_cross() ? limits.context_tokens : 0};
  for (int s = 0; s < 2; ++s) {
    memory.projected[s] = arena.take<Scalar>(product(stream_tokens[s], plan.streams[s].row));
    memory.features[s] = arena.take<Scalar>(product(stream_tokens[s], plan.most_features));
    memory.places[s] = arena.take<SequencePlace>(limits.sequences);
  }
  memory.sdpa_output =
      arena.take<Scalar>(product(limits.tokens, shape.query_heads * plan.value_stride));
  if (plan.mask.in_cache)
    memory.kept_queries =
        arena.take<Scalar>(product(limits.tokens, shape.query_heads * plan.head_stride));
  memory.blocks =
      arena.take<std::byte>(product(most_blocks(stream_tokens[plan.key_stream()], limits.sequences),
                                    product(shape.kv_heads, layout.bytes())));
  const Index pairs =
      detail::round_up(static_cast<Index>(plan.rotation.frequencies.size()), lanes<Scalar>);
  memory.thread_row = detail::round_up(2 * pairs + detail::round_up(shape.model_dim, lanes<Scalar>),
                                       detail::alignment / static_cast<Index>(sizeof(Scalar)));
  memory.thread_rows = arena.take<Scalar>(product(limits.threads, memory.thread_row));
  memory.stages = arena.take<RowStage<Scalar>>(static_cast<Index>(plan.stages.size()));
  memory.score_stages =
      arena.take<ScoreStage<Scalar>>(static_cast<Index>(plan.score_stages.size()));
  memory.sequences = arena.take<AttendSequence>(limits.sequences);

  // The product and the attention never run at the same time: they share what follows.
  detail::Arena attend_arena = arena;
  Index depth = std::max(shape.model_dim, shape.query_heads * shape.value_width());
  depth = std::max({depth, shape.context_dim, plan.most_features});
  for (const StagePlan<Scalar>& stage : plan.stages) depth = std::max(depth, stage.depth);
  memory.product = take_product_scratch<Scalar>(arena, std::max(stream_tokens[0], stream_tokens[1]),
                                                depth, limits.threads);
  memory.attend = AttendScratch<Scalar>(attend_arena, {.query_heads = shape.query_heads,
                                                       .kv_heads = shape.kv_heads,
                                                       .key_dim = shape.head_dim,
                                                       .value_dim = shape.value_width(),
                                                       .tokens = limits.tokens,
                                                       .sequences = limits.sequences,
                                                       .threads = limits.threads});
  if (attend_arena.used() > arena.used()) arena = attend_arena;
  return memory;
}

/// One call of a layer: everything the four steps read and write.
template <class Scalar>
struct Call {
  const LayerPlan<Scalar>& plan;
  const PackedTensors<Scalar>& weights;
  WorkspaceMemory<Scalar> memory;
  StageTable<Scalar> stages;
  const ScoreStage<Scalar>* score_stages;
  Index score_stage_count;
  Stream<Scalar> streams[2];  ///< x, and the context where this call prepares one
  Index sequence_count;
  MatrixView<Scalar> y;
  Results<Scalar> results;
  Index threads;

  Index tokens() const { return streams[0].x.rows(); }

  /// The threads for a pass over all tokens that handles `width` channels of each, some 20 multiply-adds a channel.
  Index threads_over(Index width) const {
    return threads_for(threads, 20.0 * static_cast<double>(tokens()) * static_cast<double>(width));
  }

  /// The logits of a LearnedSink, or null.
  const Scalar* sinks() const {
    return plan.sink_offset < 0 ? nullptr : weights.stages + plan.sink_offset;
  }

  /// What the pass over a stream gives of a token.
  Scalar* row(int stream, Index token) const {
    return streams[stream].projected + token * plan.streams[stream].row;
  }
  Scalar* query_row(Index token) const { return row(0, token); }
  Scalar* key_row(Index token) const { return row(plan.key_stream(), token); }
};

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
