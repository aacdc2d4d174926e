// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "gated_attention/core/batch.hpp"
#include "gated_attention/core/memory.hpp"
#include "gated_attention/kernel/first_token.hpp"
#include "gated_attention/kernel/gate_scores.hpp"
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
  HeadsView<const Scalar> kept_q = {};      ///< [T, Hq, D], StreamingWindow at in-cache positions: q rotated for the kept keys
  HeadsView<const Scalar> k;                ///< [S, Hkv, D]
  HeadsView<const Scalar> v;                ///< [S, Hkv, Dv]
  HeadsView<const Scalar> gate_logits = {}; ///< of the gate: [T, Hq or 1 (SharedHeads), Dv or 1 (Headwise)]
  std::span<const Index> lengths = {};      ///< queries of each sequence; empty: one sequence
  std::span<const Index> key_lengths = {};  ///< keys of each sequence; empty: one sequence
  std::optional<Index> offset = {};         ///< index of each sequence's first query among its keys; absent: S − T
  Index first_key = 0;  ///< absolute index of each sequence's first key, where k and v hold but a part of all keys; offset,
                        ///< prefixes and the views of scores count from key 0 all the same, and S is first_key + keys
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
  MatrixView<Scalar> first_token_attention = {};  ///< [T, Hq], the probability of each sequence's first key; wants
                                                  ///< log_sum_exp beside it
  HeadsView<Scalar> gate_scores = {};  ///< of the gate, after its activation: [T, Hq or 1 (SharedHeads), Dv or 1 (Headwise)]
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
    return std::is_same_v<typename Stage::source, FromHidden> && !Stage::averaged && std::is_same_v<typename Stage::bias, NoBias>;
  else if constexpr (is_normalize<Stage>)
    return Stage::norm::weightless && !Stage::norm::over_row;
  else
    return true;
}

}  // namespace detail

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// total ← total ∪ part: folds a later part of the keys into the earlier ones, for every row. Disjoint keys, in ascending
/// order; where each part lies within one run of restart_keys keys from an absolute multiple of it (and a StreamingWindow
/// keeps no more than that), the result has the same bits as one call over all keys. A ShapeError names what does not fit.
template <class Scalar>
void merge(const PartialAttention<Scalar>& total, const PartialAttention<Scalar>& part) {
  const Index tokens = total.output.tokens(), heads = total.output.heads(), width = total.output.width();
  const auto equal = [](const char* extent, Index value, Index wanted) {
    if (value != wanted) detail::raise<ShapeError>("merge: the part has ", value, " ", extent, ", the total ", wanted);
  };
  equal("tokens", part.output.tokens(), tokens);
  equal("heads", part.output.heads(), heads);
  equal("channels", part.output.width(), width);
  for (const MatrixView<Scalar>* rows : {&total.maximum, &total.sum, &part.maximum, &part.sum}) {
    equal("rows of maximum or sum", rows->rows(), tokens);
    equal("columns of maximum or sum", rows->columns(), heads);
  }
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      kernel::merge_row<Scalar>({total.maximum(t, h), total.sum(t, h), total.output.row(t, h)},
                                {part.maximum(t, h), part.sum(t, h), part.output.row(t, h)}, width);
}

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
                "gated_attention: attention has one mask: keep one of Causal, CausalTopLeft, SlidingWindow, "
                "StreamingWindow, PrefixCausal, Bidirectional and BidirectionalWindow");
  static constexpr bool no_stage_is_written_twice = !every_stage_stands_at_sdpa || !there_is_at_most_one_gate ||
                                                    !there_is_at_most_one_mask ||
                                                    (... && (detail::times_in<Stages, Stages...> == 1));
  static_assert(no_stage_is_written_twice, "gated_attention: two equal stages: remove one");
  static_assert(sizeof(detail::CheckedActivations<Scalar, StageList<Stages...>>) > 0);
  static_assert(sizeof(kernel::CheckedScoreFunctions<Scalar, StageList<Stages...>>) > 0);

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

  /// out [T, Hq, Dv] lies apart from q, k, v and the logits; rows may interleave in one matrix. A ShapeError names what does not fit, with both numbers,
  /// before anything is written. On one thread no allocation, lock or system call.
  void operator()(const AttendBatch<Scalar>& batch, AttendWorkspace<Attend>& workspace, HeadsView<Scalar> out,
                  const AttendResults<Scalar>& results = {}) const {
    check(batch, workspace, true, results);
    check_heads("out", out, batch.q.tokens());
    for (const auto& [name, view] : {std::pair{"q", batch.q}, std::pair{"kept_q", batch.kept_q}, std::pair{"k", batch.k},
                                     std::pair{"v", batch.v}, std::pair{"gate_logits", batch.gate_logits}})
      kernel::check_apart("Attend", "out", out, name, view);
    detail::Arena arena(workspace.data());
    const Pieces pieces = lay_out(arena, workspace.size());
    kernel::AttendArguments<Scalar> arguments = begin(batch, pieces, workspace.size());
    arguments.out = out;
    arguments.attention = results.attention;
    arguments.log_sum_exp = results.log_sum_exp;
    kernel::attend<Scalar>(arguments, pieces.scratch, workspace.size().threads);
    if (!results.first_token_attention.empty())
      kernel::record_first_token<Scalar>(arguments, plan_.scale, results.first_token_attention);
    record_gate(batch, results);
  }

  /// What attention over these keys alone leaves, for merge: no stage has run, and gate_logits and sinks are not read.
  void partial(const AttendBatch<Scalar>& batch, AttendWorkspace<Attend>& workspace,
               const PartialAttention<Scalar>& out) const {
    check(batch, workspace, false, {});
    check_partial(out, batch.q.tokens());
    detail::Arena arena(workspace.data());
    const Pieces pieces = lay_out(arena, workspace.size());
    kernel::AttendArguments<Scalar> arguments = begin(batch, pieces, workspace.size());
    arguments.stage_count = 0;
    arguments.partial = out;
    kernel::attend<Scalar>(arguments, pieces.scratch, workspace.size().threads);
  }

  /// out = stages(output / sum) of merged parts: the epilogue of a whole call, with its bits. Of the batch only gate_logits
  /// and sinks are read, so that results.first_token_attention cannot be had from it.
  void finish(const PartialAttention<Scalar>& merged, const AttendBatch<Scalar>& batch,
              AttendWorkspace<Attend>& workspace, HeadsView<Scalar> out, const AttendResults<Scalar>& results = {}) const {
    const Index tokens = merged.output.tokens(), group = shape_.query_heads / shape_.kv_heads;
    check_partial(merged, tokens);
    check_workspace(workspace);
    check_stages(batch, tokens);
    check_heads("out", out, tokens);
    check_results(results, tokens);
    if (!results.first_token_attention.empty())
      detail::raise<ShapeError>("Attend::finish: results.first_token_attention of ", tokens,
                                " rows needs the keys, of which merged parts keep ", 0);
    kernel::check_apart("Attend::finish", "out", out, "gate_logits", batch.gate_logits);
    detail::Arena arena(workspace.data());
    const Pieces pieces = lay_out(arena, workspace.size());
    kernel::AttendArguments<Scalar> arguments;
    bind(batch, pieces, arguments);
    arguments.out = out;
    arguments.attention = results.attention;
    arguments.log_sum_exp = results.log_sum_exp;
    kernel::finish_partial(arguments, merged, group, layout().value_channels(), pieces.row);
    record_gate(batch, results);
  }

 private:
  struct Pieces {
    std::byte* blocks;
    kernel::AttendSequence* sequences;
    RowStage<Scalar>* stages;
    ScoreStage<Scalar>* score_stages;
    Scalar* row;  ///< [G, value_channels]
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
    // A part of the keys may begin within a block, so that a sequence has one block more.
    const Index blocks = kernel::most_blocks(size.keys, size.sequences) + size.sequences;
    pieces.blocks =
        arena.take<std::byte>(detail::checked_product(blocks, shape_.kv_heads * layout().bytes(), "Attend"));
    pieces.row = arena.take<Scalar>(shape_.query_heads / shape_.kv_heads * layout().value_channels());
    pieces.sequences = arena.take<kernel::AttendSequence>(size.sequences);
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

  /// Sequences, blocks and stages of a call.
  kernel::AttendArguments<Scalar> begin(const AttendBatch<Scalar>& batch, const Pieces& pieces,
                                        const AttendSize& size) const {
    const Index sequences = place_sequences(batch, pieces);
    kernel::AttendArguments<Scalar> arguments;
    bind(batch, pieces, arguments);
    arguments.q = batch.q;
    arguments.kept_q = batch.kept_q;
    arguments.sequences = pieces.sequences;
    arguments.sequence_count = sequences;
    arguments.score_stages = pieces.score_stages;
    arguments.score_stage_count =
        kernel::bind_score_stages("Attend", plan_, batch, pieces.sequences, sequences, pieces.score_stages);
    arguments.score_scale = kernel::score_scale<Scalar>(plan_.scale, arguments.score_stage_count);
    write_blocks(batch, pieces, sequences, size.threads);
    return arguments;
  }

  Index place_sequences(const AttendBatch<Scalar>& batch, const Pieces& pieces) const {
    const Index sequences = sequence_count(batch), first_block = batch.first_key / block_keys;
    Index token = 0, block = 0;
    for (Index i = 0; i < sequences; ++i) {
      const Index tokens = length(batch.lengths, i, batch.q.tokens());
      const Index end = batch.first_key + length(batch.key_lengths, i, batch.k.tokens());
      const Index blocks = detail::divide_up(end, block_keys) - first_block;
      KeyBounds bounds = plan_.mask.bounds(tokens, end, kernel::prefix_of(batch.prefixes, i));
      bounds.first = batch.first_key;
      if (batch.offset) bounds.shift = *batch.offset;
      pieces.sequences[i] = {.first_token = token,
                             .tokens = tokens,
                             .bounds = bounds,
                             .blocks = {.base = pieces.blocks + block * shape_.kv_heads * layout().bytes(),
                                        .block_stride = layout().bytes(),
                                        .head_stride = blocks * layout().bytes(),
                                        .first_block = first_block}};
      token += tokens;
      block += blocks;
    }
    return sequences;
  }

  void write_blocks(const AttendBatch<Scalar>& batch, const Pieces& pieces, Index sequences, Index threads) const {
    const Index first_block = batch.first_key / block_keys;
    Index first_row = 0;
    for (Index i = 0; i < sequences; ++i) {
      const Index keys = length(batch.key_lengths, i, batch.k.tokens()), end = batch.first_key + keys;
      const auto& blocks = pieces.sequences[i].blocks;
      const Index items = keys == 0 ? 0 : (detail::divide_up(end, block_keys) - first_block) * shape_.kv_heads;
      const double work = 20.0 * static_cast<double>(items * layout().elements());
      kernel::parallel_for(kernel::threads_for(threads, work), items, [&](Index item, Index) {
        const Index block = first_block + item / shape_.kv_heads, head = item % shape_.kv_heads;
        const Index from = std::max(block * block_keys, batch.first_key), lane = from % block_keys;
        const Index count = std::min((block + 1) * block_keys, end) - from;
        const Index row = first_row + from - batch.first_key;
        Scalar* const to = blocks.template block<Scalar>(head, block);
        if (lane > 0) *layout().flag(to) = 1;  // nothing stands before it
        kernel::write_keys(to, layout(), lane, count, batch.k.row(row, head), batch.k.token_stride());
        kernel::write_values(to, layout(), lane, count, batch.v.row(row, head), batch.v.token_stride());
      });
      first_row += keys;
    }
  }

  /// Extents, and the stages at Sdpa with the call's logits and sinks.
  void bind(const AttendBatch<Scalar>& batch, const Pieces& pieces, kernel::AttendArguments<Scalar>& arguments) const {
    arguments.query_heads = shape_.query_heads;
    arguments.kv_heads = shape_.kv_heads;
    arguments.key_dim = shape_.head_dim;
    arguments.value_dim = plan_.shape.value_width();
    arguments.sinks = batch.sinks.empty() ? nullptr : batch.sinks.data();
    arguments.gate_logits = batch.gate_logits.data();
    arguments.gate_token_stride = batch.gate_logits.token_stride();
    arguments.stages = pieces.stages;
    for (const kernel::StagePlan<Scalar>& stage : plan_.stages) {
      RowStage<Scalar>& bound = pieces.stages[arguments.stage_count++];
      bound = kernel::bind_stage<Scalar>(plan_, stage, nullptr);
      bound.logits_offset = 0;
      if (!stage.shared) bound.logits_head_stride = batch.gate_logits.head_stride();
    }
  }

  static void check_view(const char* name, const auto& view, Index tokens, Index heads, Index width) {
    const auto equal = [name](const char* extent, Index value, Index wanted) {
      if (value != wanted) detail::raise<ShapeError>("Attend: ", name, " has ", value, " ", extent, ", not ", wanted);
    };
    equal("tokens", view.tokens(), tokens);
    equal("heads", view.heads(), heads);
    equal("channels", view.width(), width);
  }

  void check_heads(const char* name, const HeadsView<Scalar>& view, Index tokens) const {
    check_view(name, view, tokens, shape_.query_heads, plan_.shape.value_width());
  }

  void check_partial(const PartialAttention<Scalar>& partial, Index tokens) const {
    check_heads("partial.output", partial.output, tokens);
    for (const MatrixView<Scalar>* rows : {&partial.maximum, &partial.sum})
      kernel::check_extents("Attend", "partial.maximum or partial.sum", rows->rows(), rows->columns(), tokens,
                            shape_.query_heads, "query_heads");
  }

  void check_workspace(const AttendWorkspace<Attend>& workspace) const {
    const AttendShape& made = workspace.shape();
    const auto same = [](const char* extent, Index value, Index wanted) {
      if (value != wanted)
        detail::raise<ShapeError>("Attend: the workspace was made for ", extent, " ", value, ", this one has ", wanted);
    };
    same("query_heads", made.query_heads, shape_.query_heads);
    same("kv_heads", made.kv_heads, shape_.kv_heads);
    same("head_dim", made.head_dim, shape_.head_dim);
    same("value_dim", made.value_dim, shape_.value_dim);
  }

  /// Logits and sinks, for the stages of the epilogue.
  void check_stages(const AttendBatch<Scalar>& batch, Index tokens) const {
    bool gated = false;
    for (const kernel::StagePlan<Scalar>& stage : plan_.stages) {
      if (stage.kind != kernel::StagePlan<Scalar>::Kind::gate) continue;
      gated = true;
      check_view("gate_logits", batch.gate_logits, tokens, stage.logit_heads(plan_.shape),
                 stage.logit_width(plan_.shape));
    }
    if (!gated && !batch.gate_logits.empty())
      detail::raise<ShapeError>("Attend: gate_logits has ", batch.gate_logits.tokens(), " tokens, there are 0 gates");
    const Index sinks = has_sink ? shape_.query_heads : 0;
    if (static_cast<Index>(batch.sinks.size()) != sinks)
      detail::raise<ShapeError>("Attend: there are ", batch.sinks.size(), " sinks, not ", sinks,
                                has_sink ? ", one per query head" : ": there is no LearnedSink");
  }

  void check_results(const AttendResults<Scalar>& results, Index tokens) const {
    if (!results.attention.empty()) check_heads("results.attention", results.attention, tokens);
    if (!results.log_sum_exp.empty())
      kernel::check_extents("Attend", "results.log_sum_exp", results.log_sum_exp.rows(),
                            results.log_sum_exp.columns(), tokens, shape_.query_heads, "query_heads");
    const MatrixView<Scalar>& first = results.first_token_attention;
    if (!first.empty()) {
      kernel::check_extents("Attend", "results.first_token_attention", first.rows(), first.columns(), tokens,
                            shape_.query_heads, "query_heads");
      if (results.log_sum_exp.empty())
        detail::raise<ShapeError>("Attend: results.first_token_attention of ", tokens,
                                  " rows is computed from results.log_sum_exp, which has ", 0);
    }
    if (results.gate_scores.empty()) return;
    const kernel::StagePlan<Scalar>* const gate = kernel::last_gate_at(plan_, Position::sdpa);
    if (gate == nullptr)
      detail::raise<ShapeError>("Attend: results.gate_scores has ", results.gate_scores.tokens(),
                                " tokens, there are 0 gates");
    check_view("results.gate_scores", results.gate_scores, tokens, gate->logit_heads(plan_.shape),
               gate->logit_width(plan_.shape));
  }

  /// The gate's scores, where they are wanted.
  void record_gate(const AttendBatch<Scalar>& batch, const AttendResults<Scalar>& results) const {
    const HeadsView<Scalar>& scores = results.gate_scores;
    for (Index t = 0; t < scores.tokens(); ++t)
      for (Index h = 0; h < scores.heads(); ++h)
        kernel::last_gate_at(plan_, Position::sdpa)
            ->activate(batch.gate_logits.row(t, h), scores.width(), scores.row(t, h));
  }

  void check(const AttendBatch<Scalar>& batch, const AttendWorkspace<Attend>& workspace, bool with_stages,
             const AttendResults<Scalar>& results) const {
    const Index tokens = batch.q.tokens(), keys = batch.k.tokens(), sequences = sequence_count(batch);
    check_workspace(workspace);
    check_view("q", batch.q, tokens, shape_.query_heads, shape_.head_dim);
    const Index kept_tokens = plan_.mask.in_cache ? tokens : 0;
    if (batch.kept_q.tokens() != kept_tokens)
      detail::raise<ShapeError>("Attend: kept_q has ", batch.kept_q.tokens(), " tokens, not ", kept_tokens);
    if (kept_tokens > 0) check_view("kept_q", batch.kept_q, tokens, shape_.query_heads, shape_.head_dim);
    check_view("k", batch.k, keys, shape_.kv_heads, shape_.head_dim);
    check_view("v", batch.v, keys, shape_.kv_heads, plan_.shape.value_width());
    if (batch.first_key < 0) detail::raise<ShapeError>("Attend: first_key is ", batch.first_key, ", the least is 0");
    if (with_stages) check_stages(batch, tokens);
    check_results(results, tokens);
    kernel::check_prefixes("Attend", plan_.mask, batch.prefixes, sequences);
    check_lengths("lengths", batch.lengths, tokens, "q");
    check_lengths("key_lengths", batch.key_lengths, keys, "k");
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
