// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>

#include "gated_attention/core/batch.hpp"
#include "gated_attention/core/memory.hpp"
#include "gated_attention/kernel/attend.hpp"
#include "gated_attention/kernel/plan.hpp"
#include "gated_attention/layer/check.hpp"

namespace gated_attention {

/// The extents of attention without projections: Hq query_heads, Hkv kv_heads, D head_dim, Dv value_dim (0: head_dim).
struct AttendShape {
  Index query_heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;
  Index value_dim = 0;
};

/// What a call of Attend reads. Rows of sequences lie back to back; views may have any strides between tokens and heads.
template <class Scalar>
struct AttendBatch {
  HeadsView<const Scalar> q;                ///< [T, Hq, D], normalised and rotated
  HeadsView<const Scalar> k;                ///< [S, Hkv, D]
  HeadsView<const Scalar> v;                ///< [S, Hkv, Dv]
  HeadsView<const Scalar> gate_logits = {}; ///< of the gate: [T, Hq or 1 (SharedHeads), Dv or 1 (Headwise)]
  std::span<const Index> lengths = {};      ///< queries of each sequence; empty: one sequence
  std::span<const Index> key_lengths = {};  ///< keys of each sequence; empty: one sequence
  std::optional<Index> offset = {};         ///< index of each sequence's first query among its keys; absent: S − T
  std::span<const Index> prefixes = {};     ///< PrefixCausal: keys that every query of a sequence sees, one per sequence
  std::span<const Scalar> sinks = {};       ///< LearnedSink: a logit per query head
  std::span<const ScoreView<const Scalar>> score_bias = {};  ///< ScoreBias: one view per sequence
  std::span<const ScoreView<const bool>> boolean_mask = {};  ///< BooleanMask: one view per sequence
};

/// How large the workspace of Attend is to be.
struct AttendSize {
  Index tokens = 0;     ///< queries of a whole batch
  Index keys = 0;       ///< keys of a whole batch
  Index sequences = 1;
  Index threads = 0;  ///< 0: what OpenMP would give
};

/// Optional results of Attend; an empty view is not wanted.
template <class Scalar>
struct AttendResults {
  HeadsView<Scalar> attention = {};     ///< [T, Hq, Dv], the output before any stage
  MatrixView<Scalar> log_sum_exp = {};  ///< [T, Hq], ln Σ exp(score) over the keys (no sink); −∞ where none is seen
};

namespace detail {

template <class Stage>
constexpr bool stands_at_sdpa() {
  if constexpr (is_row_stage<Stage> && !is_rope<Stage>)
    return std::is_same_v<typename Stage::position, at::Sdpa>;
  else
    return Mask<Stage> || runs_at<at::Scores, Stage>();
}

template <class Stage>
constexpr bool has_no_parameters() {
  if constexpr (is_gate<Stage>)
    return Stage::from_hidden && !Stage::averaged && std::is_same_v<typename Stage::bias, NoBias>;
  else if constexpr (is_normalize<Stage>)
    return Stage::norm::weightless && !Stage::norm::over_row;
  else
    return true;
}

}  // namespace detail

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

template <class ScalarType, class... Stages>
class Attend;

/// Scratch of an Attend: packed keys and values, and a tile per thread. The only allocation.
template <class Layer>
class AttendWorkspace {
 public:
  using Scalar = typename Layer::Scalar;

  AttendWorkspace(const Layer& layer, const AttendSize& size)
      : memory_(layer.workspace_bytes(size)), size_(Layer::complete(size)), shape_(layer.shape()) {}

  const AttendSize& size() const { return size_; }
  const AttendShape& shape() const { return shape_; }
  std::byte* data() const { return memory_.data(); }

 private:
  detail::AlignedBytes memory_;
  AttendSize size_;
  AttendShape shape_;
};

template <class Layer>
AttendWorkspace(const Layer&, const AttendSize&) -> AttendWorkspace<Layer>;

/// out[t, h, :] = stages(Σ_s p[s] · v[s, h/G, :])      p = softmax over the keys s that t sees of q[t, h, :]·k[s, h/G, :]/√D
///
/// Scaled dot-product attention with its gate, for those who have their own projections: one mask (default Causal) and
/// the stages at Sdpa that learn nothing themselves: Gate (its logits come with the call), Activate, Scale and the
/// weightless norm. A const value without state, shared freely between threads.
template <class ScalarType, class... Stages>
class Attend {
 public:
  using Scalar = detail::LayerScalar<ScalarType>;
  static_assert(sizeof(detail::CheckedScalar<ScalarType>) > 0);

  static constexpr bool every_stage_stands_at_sdpa = (... && detail::stands_at_sdpa<Stages>());
  static_assert(every_stage_stands_at_sdpa,
                "gated_attention: Attend has no projections: give it one mask and stages at::Sdpa");
  static constexpr bool no_stage_has_parameters =
      !every_stage_stands_at_sdpa || (... && detail::has_no_parameters<Stages>());
  static_assert(no_stage_has_parameters,
                "gated_attention: Attend has no parameters: its gates are FromHidden with NoBias and no HeadMean (add "
                "the bias to the logits; give averaged scores to SharedHeads with Identity), its norms are "
                "weight::Weightless, over::Head");
  static constexpr bool there_is_at_most_one_gate = (0 + ... + (detail::is_gate<Stages> ? 1 : 0)) <= 1;
  static_assert(there_is_at_most_one_gate,
                "gated_attention: Attend takes the logits of one gate: combine two gates' scores outside");
  static constexpr bool there_is_at_most_one_mask = detail::count_masks<Stages...> <= 1;
  static_assert(there_is_at_most_one_mask,
                "gated_attention: attention has one mask: keep one of Causal, SlidingWindow and Bidirectional");
  static constexpr bool no_stage_is_written_twice = !every_stage_stands_at_sdpa || !there_is_at_most_one_gate ||
                                                    !there_is_at_most_one_mask ||
                                                    (... && (detail::times_in<Stages, Stages...> == 1));
  static_assert(no_stage_is_written_twice, "gated_attention: two equal stages: remove one");
  static_assert(sizeof(detail::CheckedActivations<Scalar, StageList<Stages...>>) > 0);

  /// Stages that have numbers are given behind the shape.
  template <class... Given>
  explicit Attend(const AttendShape& shape, const Given&... given)
      : shape_(shape), plan_(kernel::make_plan<Scalar>(kernel::checked_shape("Attend", layer_shape(shape)), detail::write_out(detail::choose_stages(
                                static_cast<const StageList<Stages...>*>(nullptr), given...)))) {
    for (const kernel::StagePlan<Scalar>& stage : plan_.stages) kernel::check_stage("Attend", stage, plan_.shape);
    kernel::check_scores("Attend", plan_);
  }

  const AttendShape& shape() const { return shape_; }

  Index workspace_bytes(const AttendSize& size) const {
    detail::Arena arena;
    lay_out(arena, complete(size));
    return arena.used();
  }

  static AttendSize complete(const AttendSize& size) {
    const Limits limits = kernel::complete_limits({size.tokens, size.sequences, size.threads});
    if (size.keys < 0) detail::raise<ShapeError>("AttendWorkspace: keys is ", size.keys, ", the least is 0");
    return {limits.tokens, size.keys, limits.sequences, limits.threads};
  }

  /// out [T, Hq, Dv] must not overlap q, k, v or the logits. A ShapeError names what does not fit, with both numbers,
  /// before anything is written. On one thread no allocation, lock or system call.
  void operator()(const AttendBatch<Scalar>& batch, AttendWorkspace<Attend>& workspace, HeadsView<Scalar> out,
                  const AttendResults<Scalar>& results = {}) const {
    check(batch, workspace, out, results);
    detail::Arena arena(workspace.data());
    const Pieces pieces = lay_out(arena, workspace.size());
    const Index sequences = place_sequences(batch, pieces);
    write_blocks(batch, pieces, sequences, workspace.size().threads);
    kernel::AttendArguments<Scalar> arguments;
    arguments.query_heads = shape_.query_heads;
    arguments.kv_heads = shape_.kv_heads;
    arguments.key_dim = shape_.head_dim;
    arguments.value_dim = plan_.shape.value_width();
    arguments.q = batch.q;
    arguments.score_stages = pieces.score_stages;
    arguments.score_stage_count =
        kernel::bind_score_stages("Attend", plan_, batch, pieces.sequences, sequences, pieces.score_stages);
    arguments.sinks = batch.sinks.empty() ? nullptr : batch.sinks.data();
    arguments.score_scale = kernel::score_scale<Scalar>(plan_.scale, arguments.score_stage_count);
    arguments.sequences = pieces.sequences;
    arguments.sequence_count = sequences;
    arguments.stages = pieces.stages;
    arguments.stage_count = bind(batch, pieces);
    arguments.gate_logits = batch.gate_logits.data();
    arguments.gate_token_stride = batch.gate_logits.token_stride();
    arguments.out = out;
    arguments.attention = results.attention;
    arguments.log_sum_exp = results.log_sum_exp;
    kernel::attend(arguments, pieces.scratch, workspace.size().threads);
  }

 private:
  struct Pieces {
    Scalar* blocks;
    kernel::AttendSequence<Scalar>* sequences;
    RowStage<Scalar>* stages;
    ScoreStage<Scalar>* score_stages;
    kernel::AttendScratch<Scalar> scratch;
  };

  static Shape layer_shape(const AttendShape& shape) {
    return {.model_dim = 1,
            .query_heads = shape.query_heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .value_dim = shape.value_dim};
  }

  static constexpr bool has_sink = (... || std::is_same_v<Stages, LearnedSink>);

  KeyValueLayout<Scalar> layout() const { return {shape_.head_dim, plan_.shape.value_width()}; }

  Pieces lay_out(detail::Arena& arena, const AttendSize& size) const {
    Pieces pieces{};
    pieces.blocks = arena.take<Scalar>(detail::checked_product(kernel::most_blocks(size.keys, size.sequences),
                                                               shape_.kv_heads * layout().elements(), "Attend"));
    pieces.sequences = arena.take<kernel::AttendSequence<Scalar>>(size.sequences);
    pieces.stages = arena.take<RowStage<Scalar>>(static_cast<Index>(plan_.stages.size()));
    pieces.score_stages = arena.take<ScoreStage<Scalar>>(static_cast<Index>(plan_.score_stages.size()));
    pieces.scratch = kernel::AttendScratch<Scalar>(arena, {.query_heads = shape_.query_heads,
                                                           .kv_heads = shape_.kv_heads,
                                                           .key_dim = shape_.head_dim,
                                                           .value_dim = plan_.shape.value_width(),
                                                           .tokens = size.tokens,
                                                           .sequences = size.sequences,
                                                           .threads = size.threads});
    return pieces;
  }

  static Index length(std::span<const Index> lengths, Index sequence, Index all) {
    return lengths.empty() ? all : lengths[static_cast<std::size_t>(sequence)];
  }

  static Index sequence_count(const AttendBatch<Scalar>& batch) {
    return batch.lengths.empty() ? 1 : static_cast<Index>(batch.lengths.size());
  }

  Index place_sequences(const AttendBatch<Scalar>& batch, const Pieces& pieces) const {
    const Index sequences = sequence_count(batch);
    Index token = 0, block = 0;
    for (Index i = 0; i < sequences; ++i) {
      const Index tokens = length(batch.lengths, i, batch.q.tokens());
      const Index keys = length(batch.key_lengths, i, batch.k.tokens());
      const Index blocks = detail::divide_up(keys, block_keys);
      KeyBounds bounds = plan_.mask.bounds(tokens, keys, kernel::prefix_of(batch.prefixes, i));
      if (batch.offset) bounds.shift = *batch.offset;
      pieces.sequences[i] = {.first_token = token,
                             .tokens = tokens,
                             .bounds = bounds,
                             .blocks = {pieces.blocks + block * shape_.kv_heads * layout().elements(),
                                        layout().elements(), blocks * layout().elements(), nullptr, 0}};
      token += tokens;
      block += blocks;
    }
    return sequences;
  }

  void write_blocks(const AttendBatch<Scalar>& batch, const Pieces& pieces, Index sequences, Index threads) const {
    Index first_key = 0;
    for (Index i = 0; i < sequences; ++i) {
      const Index keys = length(batch.key_lengths, i, batch.k.tokens());
      const auto& blocks = pieces.sequences[i].blocks;
      kernel::parallel_for(threads, detail::divide_up(keys, block_keys) * shape_.kv_heads, [&](Index item, Index) {
        const Index b = item / shape_.kv_heads, head = item % shape_.kv_heads;
        const Index count = std::min(block_keys, keys - b * block_keys), row = first_key + b * block_keys;
        Scalar* const to = const_cast<Scalar*>(blocks.block(head, b));
        kernel::write_keys(to, layout(), 0, count, batch.k.row(row, head), batch.k.token_stride());
        kernel::write_values(to, layout(), 0, count, batch.v.row(row, head), batch.v.token_stride());
      });
      first_key += keys;
    }
  }

  Index bind(const AttendBatch<Scalar>& batch, const Pieces& pieces) const {
    Index count = 0;
    for (const kernel::StagePlan<Scalar>& stage : plan_.stages) {
      RowStage<Scalar>& bound = pieces.stages[count++];
      bound = kernel::bind_stage<Scalar>(plan_, stage, nullptr);
      bound.logits_offset = 0;
      if (!stage.shared) bound.logits_head_stride = batch.gate_logits.head_stride();
    }
    return count;
  }

  void check(const AttendBatch<Scalar>& batch, const AttendWorkspace<Attend>& workspace, const HeadsView<Scalar>& out,
             const AttendResults<Scalar>& results) const {
    const Index tokens = batch.q.tokens(), keys = batch.k.tokens(), value_dim = plan_.shape.value_width();
    const auto heads = [](const char* name, const auto& view, Index t, Index h, Index w) {
      const auto equal = [name](const char* extent, Index value, Index wanted) {
        if (value != wanted) detail::raise<ShapeError>("Attend: ", name, " has ", value, " ", extent, ", not ", wanted);
      };
      equal("tokens", view.tokens(), t);
      equal("heads", view.heads(), h);
      equal("channels", view.width(), w);
    };
    const AttendShape& made = workspace.shape();
    const auto same = [](const char* extent, Index value, Index wanted) {
      if (value != wanted)
        detail::raise<ShapeError>("Attend: the workspace was made for ", extent, " ", value, ", this one has ", wanted);
    };
    same("query_heads", made.query_heads, shape_.query_heads);
    same("kv_heads", made.kv_heads, shape_.kv_heads);
    same("head_dim", made.head_dim, shape_.head_dim);
    same("value_dim", made.value_dim, shape_.value_dim);
    heads("q", batch.q, tokens, shape_.query_heads, shape_.head_dim);
    heads("k", batch.k, keys, shape_.kv_heads, shape_.head_dim);
    heads("v", batch.v, keys, shape_.kv_heads, value_dim);
    heads("out", out, tokens, shape_.query_heads, value_dim);
    bool gated = false;
    for (const kernel::StagePlan<Scalar>& stage : plan_.stages) {
      if (stage.kind != kernel::StagePlan<Scalar>::Kind::gate) continue;
      gated = true;
      heads("gate_logits", batch.gate_logits, tokens, stage.logit_heads(plan_.shape), stage.logit_width(plan_.shape));
    }
    if (!gated && !batch.gate_logits.empty())
      detail::raise<ShapeError>("Attend: gate_logits has ", batch.gate_logits.tokens(), " tokens, there are 0 gates");
    if (!results.attention.empty())
      heads("results.attention", results.attention, tokens, shape_.query_heads, value_dim);
    if (!results.log_sum_exp.empty())
      kernel::check_extents("Attend", "results.log_sum_exp", results.log_sum_exp.rows(),
                            results.log_sum_exp.columns(), tokens, shape_.query_heads, "query_heads");
    const Index sinks = has_sink ? shape_.query_heads : 0;
    if (static_cast<Index>(batch.sinks.size()) != sinks)
      detail::raise<ShapeError>("Attend: there are ", batch.sinks.size(), " sinks, not ", sinks,
                                has_sink ? ", one per query head" : ": there is no LearnedSink");
    kernel::check_prefixes("Attend", plan_.mask, batch.prefixes, sequence_count(batch));
    check_lengths("lengths", batch.lengths, tokens, "q");
    check_lengths("key_lengths", batch.key_lengths, keys, "k");
    const Index sequences = sequence_count(batch);
    const Index key_sequences = batch.key_lengths.empty() ? 1 : static_cast<Index>(batch.key_lengths.size());
    if (sequences != key_sequences)
      detail::raise<ShapeError>("Attend: there are ", sequences, " sequences of queries and ", key_sequences,
                                " of keys");
    const AttendSize& size = workspace.size();
    if (tokens > size.tokens || keys > size.keys || sequences > size.sequences)
      detail::raise<ShapeError>("Attend: the batch has ", tokens, " tokens, ", keys, " keys and ", sequences,
                                " sequences, the workspace was made for ", size.tokens, ", ", size.keys, " and ",
                                size.sequences);
  }

  static void check_lengths(const char* name, std::span<const Index> lengths, Index all, const char* view) {
    if (lengths.empty()) return;
    Index sum = 0;
    for (const Index length : lengths) {
      if (length < 0 || length > all - sum)
        detail::raise<ShapeError>("Attend: ", name, " holds ", length, " behind a sum of ", sum, ", ", view, " has ",
                                  all, " tokens");
      sum += length;
    }
    if (sum != all)
      detail::raise<ShapeError>("Attend: ", name, " sum to ", sum, ", ", view, " has ", all, " tokens");
  }

  AttendShape shape_;
  kernel::LayerPlan<Scalar> plan_;
};

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
