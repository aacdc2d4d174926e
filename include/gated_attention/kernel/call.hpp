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

/// A layer's numbers as the kernels read them.
template <class Scalar>
struct PackedTensors {
  PanelMatrix<Scalar> input;            ///< [q | k | v | gates]: one pass over x
  const Scalar* input_bias = nullptr;   ///< [columns], or null
  PanelMatrix<Scalar> output;           ///< the output projection
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

/// One sequence of the batch and its part of the key and value blocks.
struct SequencePlace {
  Index first_token = 0;
  Index tokens = 0;
  Index first_block = 0;
};

/// The pieces of a workspace.
template <class Scalar>
struct WorkspaceMemory {
  Scalar* projected = nullptr;    ///< [T, columns]: q, k, v and gate logits of each token
  Scalar* sdpa_output = nullptr;  ///< [T, Hq, value_stride]
  Scalar* blocks = nullptr;       ///< keys and values of each sequence and head, in blocks of 64
  Scalar* thread_rows = nullptr;  ///< [threads][thread_row]: cosines, sines, one row of y
  Index thread_row = 0;
  RowStage<Scalar>* stages = nullptr;
  ScoreStage<Scalar>* score_stages = nullptr;
  SequencePlace* places = nullptr;
  AttendSequence<Scalar>* sequences = nullptr;
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
  memory.projected = arena.take<Scalar>(product(limits.tokens, plan.columns));
  memory.sdpa_output =
      arena.take<Scalar>(product(limits.tokens, shape.query_heads * plan.value_stride));
  memory.blocks = arena.take<Scalar>(product(most_blocks(limits.tokens, limits.sequences),
                                             product(shape.kv_heads, layout.elements())));
  const Index pairs =
      detail::round_up(static_cast<Index>(plan.rotation.frequencies.size()), lanes<Scalar>);
  memory.thread_row = detail::round_up(2 * pairs + detail::round_up(shape.model_dim, lanes<Scalar>),
                                       detail::alignment / static_cast<Index>(sizeof(Scalar)));
  memory.thread_rows = arena.take<Scalar>(product(limits.threads, memory.thread_row));
  memory.stages = arena.take<RowStage<Scalar>>(static_cast<Index>(plan.stages.size()));
  memory.score_stages =
      arena.take<ScoreStage<Scalar>>(static_cast<Index>(plan.score_stages.size()));
  memory.places = arena.take<SequencePlace>(limits.sequences);
  memory.sequences = arena.take<AttendSequence<Scalar>>(limits.sequences);

  // The product and the attention never run at the same time: they share what follows.
  detail::Arena attend_arena = arena;
  const Index depth = std::max(shape.model_dim, shape.query_heads * shape.value_width());
  memory.product = take_product_scratch<Scalar>(arena, limits.tokens, depth, limits.threads);
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

/// One forward: everything the four steps read and write.
template <class Scalar>
struct Call {
  const LayerPlan<Scalar>& plan;
  const PackedTensors<Scalar>& weights;
  WorkspaceMemory<Scalar> memory;
  StageTable<Scalar> stages;
  const ScoreStage<Scalar>* score_stages;
  Index score_stage_count;
  MatrixView<const Scalar> x;
  const Index* positions;  ///< of each row, or null: counted in each sequence
  Index sequence_count;
  Index block_count;  ///< of all sequences together
  MatrixView<Scalar> y;
  Results<Scalar> results;
  Index threads;

  /// The threads for a pass over all tokens that handles `width` channels of each, some 20 multiply-adds a channel.
  Index threads_over(Index width) const {
    return threads_for(threads, 20.0 * static_cast<double>(x.rows()) * static_cast<double>(width));
  }

  /// The logits of a LearnedSink, or null.
  const Scalar* sinks() const {
    return plan.sink_offset < 0 ? nullptr : weights.stages + plan.sink_offset;
  }

  Scalar* projected_row(Index token) const { return memory.projected + token * plan.columns; }
};

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
