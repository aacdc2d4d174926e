// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <span>
#include <type_traits>

#include "gated_attention/core/parallel.hpp"
#include "gated_attention/kernel/call.hpp"
#include "gated_attention/kernel/gate_scores.hpp"
#include "gated_attention/layer/tensors.hpp"

// From meaning to numbers: a layer's plan, the checks of its numbers and of a call's, all before anything is written.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The plan of a layer of these (written-out) stages.
template <class Scalar, class... Stages>
LayerPlan<Scalar> make_plan(const Shape& shape, const StageList<Stages...>& stages) {
  const StageList<Stages...>* const type = nullptr;
  LayerPlan<Scalar> plan;
  plan.shape = shape;
  plan.mask = Causal{}.rule();
  plan.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  plan.query_bias = detail::has_projection_bias<at::Query>(type);
  plan.key_bias = detail::has_projection_bias<at::Key>(type);
  plan.value_bias = detail::has_projection_bias<at::Value>(type);
  plan.output_bias = detail::has_projection_bias<at::Output>(type);
  stages.for_each([&plan](const auto& gated_attention_stage) {
    using Stage = std::remove_cvref_t<decltype(gated_attention_stage)>;
    if constexpr (detail::Mask<Stage>) plan.mask = gated_attention_stage.rule();
    if constexpr (detail::is_rope<Stage>) plan_rotation(plan, gated_attention_stage);
    if constexpr (detail::is_score_stage<Stage>) add_score_stage(plan, gated_attention_stage);
    if constexpr (std::is_same_v<Stage, SoftmaxScale>) plan.scale = gated_attention_stage.scale;
  });
  detail::for_each_row_stage(stages, [&plan](const auto& gated_attention_stage, Position position) {
    add_stage(plan, position, gated_attention_stage);
  });
  return plan;
}

inline void check_shape(const char* function, const Shape& shape) {
  const auto at_least = [function](const char* extent, Index value, Index least) {
    if (value < least) detail::raise<ShapeError>(function, ": ", extent, " is ", value, ", the least is ", least);
  };
  at_least("model_dim", shape.model_dim, 1);
  at_least("query_heads", shape.query_heads, 1);
  at_least("kv_heads", shape.kv_heads, 1);
  at_least("head_dim", shape.head_dim, 1);
  at_least("value_dim", shape.value_dim, 0);
  at_least("context_dim", shape.context_dim, 0);
  if (shape.query_heads % shape.kv_heads != 0)
    detail::raise<ShapeError>(function, ": query_heads is ", shape.query_heads, ", not a multiple of kv_heads, ",
                              shape.kv_heads);
  // Room for every projection and gate, for padding and bytes, beside what the extents multiply to.
  constexpr Index room = 512;
  const Index width = detail::checked_product(shape.query_heads, std::max(shape.head_dim, shape.value_width()), function);
  const Index source = std::max(shape.model_dim, shape.context_dim);
  detail::checked_product(detail::checked_product(std::max(width, source), source, function), room, function);
}

/// The shape, checked before anything is made of it.
inline const Shape& checked_shape(const char* function, const Shape& shape) {
  check_shape(function, shape);
  return shape;
}

template <class Scalar>
void check_stage(const char* function, const StagePlan<Scalar>& stage, const Shape& shape) {
  using Kind = typename StagePlan<Scalar>::Kind;
  const auto place = detail::name_of(stage.position);
  if (stage.kind == Kind::normalize && !(stage.number >= 0 && std::isfinite(stage.number)))
    detail::raise<ShapeError>(function, ": eps of the norm at ", place, " is ", stage.number,
                              ", it must be finite and at least 0");
  if (stage.kind == Kind::scale && !std::isfinite(stage.number))
    detail::raise<ShapeError>(function, ": the factor at ", place, " is ", stage.number, ", it must be finite");
  if (stage.origin == GateOrigin::channels && stage.depth > detail::source_dim(stage.position, shape))
    detail::raise<ShapeError>(function, ": a gate at ", place, " reads the first ", stage.depth,
                              " channels of rows of ", detail::source_dim(stage.position, shape));
  if (stage.kind != Kind::rotate) return;
  if (stage.first_dim < 0 || stage.rotary_dim < 2 || stage.rotary_dim % 2 != 0)
    detail::raise<ShapeError>(function, ": Rope's rotary_dim is ", stage.rotary_dim, " from first_dim ",
                              stage.first_dim, ", it must be even, at least 2, and start at 0 or later");
  if (stage.rotary_dim > shape.head_dim - stage.first_dim)
    detail::raise<ShapeError>(function, ": Rope turns channels ", stage.first_dim, " to ",
                              stage.first_dim + stage.rotary_dim, ", head_dim is ", shape.head_dim);
  if (stage.rotated_pairs < 1 || stage.rotated_pairs > stage.pairs)
    detail::raise<ShapeError>(function, ": Rope's rotated_pairs is ", stage.rotated_pairs, ", rotary_dim has ",
                              stage.pairs, " pairs");
}

template <class Scalar>
void check_scores(const char* function, const LayerPlan<Scalar>& plan) {
  if (!std::isfinite(plan.scale))
    detail::raise<ShapeError>(function, ": SoftmaxScale's scale is ", plan.scale, ", it must be finite");
  for (const ScoreStagePlan<Scalar>& stage : plan.score_stages)
    if (stage.kind == ScoreStagePlan<Scalar>::Kind::softcap &&
        !(stage.stage.number > 0 && std::isfinite(stage.stage.number)))
      detail::raise<ShapeError>(function, ": Softcap's cap is ", stage.stage.number,
                                ", it must be finite and greater than 0");
}

/// Checks the numbers of a plan, then lays its columns out.
template <class Scalar>
void finish_plan(const char* function, LayerPlan<Scalar>& plan, const std::vector<Index>& first_tensors) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    check_stage(function, plan.stages[i], plan.shape);
    plan.stages[i].first_tensor = first_tensors[i];
  }
  check_scores(function, plan);
  lay_out(plan);
  plan.key_signature = signature_of_keys(plan);
}

inline Limits complete_limits(const Limits& limits) {
  Limits complete = limits;
  const auto at_least = [](const char* name, Index value, Index least) {
    if (value < least) detail::raise<ShapeError>("Workspace: ", name, " is ", value, ", the least is ", least);
  };
  at_least("limits.tokens", complete.tokens, 0);
  at_least("limits.sequences", complete.sequences, 1);
  at_least("limits.threads", complete.threads, 0);
  if (complete.threads == 0) complete.threads = default_threads();
  return complete;
}

/// What a call is made with, before its batch.
template <class Scalar>
struct CallObjects {
  const char* function;
  const LayerPlan<Scalar>& plan;
  const Shape& weights_shape;
  const PackedTensors<Scalar>& weights;
  const Shape& workspace_shape;
  const Limits& limits;
  const WorkspaceMemory<Scalar>& memory;
};

/// Refuses `name` [rows, columns] where the call needs other extents.
inline void check_extents(const char* function, const char* name, Index rows, Index columns, Index wanted_rows,
                          Index wanted_columns, const char* wanted) {
  if (columns != wanted_columns)
    detail::raise<ShapeError>(function, ": ", name, " has ", columns, " columns, the layer's ", wanted, " is ",
                              wanted_columns);
  if (rows != wanted_rows)
    detail::raise<ShapeError>(function, ": ", name, " has ", rows, " rows, the batch has ", wanted_rows, " tokens");
}

template <class Scalar>
void check_heads(const char* function, const char* name, const HeadsView<Scalar>& view, Index tokens, Index heads,
                 Index width) {
  if (view.empty()) return;
  const auto equal = [&](const char* extent, Index value, Index wanted) {
    if (value != wanted)
      detail::raise<ShapeError>(function, ": ", name, " has ", value, " ", extent, ", the call gives ", wanted);
  };
  equal("tokens", view.tokens(), tokens);
  equal("heads", view.heads(), heads);
  equal("channels", view.width(), width);
}

/// The layer, the weights, the workspace and the batch belong together.
template <class Scalar>
void check_objects(const CallObjects<Scalar>& objects, const Batch<Scalar>& batch) {
  const char* const function = objects.function;
  const auto same_shape = [&](const char* what, const Shape& shape) {
    if (shape == objects.plan.shape) return;
    const Shape& own = objects.plan.shape;
    detail::raise<ShapeError>(function, ": ", what, " for a layer of model_dim ", shape.model_dim, ", ",
                              shape.query_heads, " query heads, ", shape.kv_heads, " kv heads, head_dim ",
                              shape.head_dim, ", value_dim ", shape.value_width(), "; this layer's are ", own.model_dim,
                              ", ", own.query_heads, ", ", own.kv_heads, ", ", own.head_dim, ", ", own.value_width());
  };
  same_shape("the weights were packed", objects.weights_shape);
  same_shape("the workspace was made", objects.workspace_shape);
  if (objects.weights.input[0].columns != objects.plan.streams[0].columns)
    detail::raise<ShapeError>(function, ": the weights were packed with ", objects.weights.input[0].columns,
                              " columns, this layer has ", objects.plan.streams[0].columns);
  if (batch.x.rows() > objects.limits.tokens)
    detail::raise<ShapeError>(function, ": the batch has ", batch.x.rows(), " tokens, the workspace was made for ",
                              objects.limits.tokens);
  const Index sequences = batch.lengths.empty() ? 1 : static_cast<Index>(batch.lengths.size());
  if (sequences > objects.limits.sequences)
    detail::raise<ShapeError>(function, ": the batch has ", sequences, " sequences, the workspace was made for ",
                              objects.limits.sequences);
}

/// Lengths of sequences sum to the rows of their stream, and there is a position for every row or for none.
inline void check_stream(const char* function, const char* lengths_name, const char* name,
                         std::span<const Index> lengths, std::span<const Index> positions, Index tokens) {
  Index sum = 0;
  for (const Index length : lengths) {
    if (length < 0)
      detail::raise<ShapeError>(function, ": one of the ", lengths_name, " is ", length, ", the least is 0");
    if (length > tokens - sum)
      detail::raise<ShapeError>(function, ": one of the ", lengths_name, " is ", length, " behind a sum of ", sum, ", ",
                                name, " has ", tokens, " rows");
    sum += length;
  }
  if (!lengths.empty() && sum != tokens)
    detail::raise<ShapeError>(function, ": the ", lengths_name, " sum to ", sum, ", ", name, " has ", tokens, " rows");
  if (!positions.empty() && static_cast<Index>(positions.size()) != tokens)
    detail::raise<ShapeError>(function, ": there are ", positions.size(), " positions, ", name, " has ", tokens,
                              " rows");
}

/// y is x (or the context) itself, or apart from it.
template <class Scalar>
void check_alias(const char* function, const char* name, const MatrixView<const Scalar>& x,
                 const MatrixView<Scalar>& y) {
  if (x.rows() == 0 || y.rows() == 0 || (x.data() == y.data() && (x.row_stride() == y.row_stride() || x.rows() == 1))) return;
  const Scalar* const x_end = x.row(x.rows() - 1) + x.columns();
  const Scalar* const y_end = y.row(y.rows() - 1) + y.columns();
  const bool apart = !std::less<>{}(x.data(), y_end) || !std::less<const Scalar*>{}(y.data(), x_end);
  // Interleaved rows of one matrix, x left and y right, are apart too.
  const Index stride = x.row_stride();
  const Index gap = y.data() - x.data();
  const bool side_by_side = stride == y.row_stride() && (gap > 0 ? gap >= x.columns() && gap + y.columns() <= stride
                                                                 : -gap >= y.columns() && x.columns() - gap <= stride);
  if (!apart && !side_by_side)
    detail::raise<ShapeError>(function, ": y overlaps ", name, " ", gap, " elements behind its start: y must be ", name,
                              " itself or lie apart from it");
}

/// Where the elements of a view lie: rows of `span` elements, their first at `first + t·stride`, all in [low, high).
template <class T>
struct ViewExtent {
  const T *first, *low, *high;
  Index span, stride;

  template <class U>
  explicit ViewExtent(const HeadsView<U>& view)
      : span(std::abs((view.heads() - 1) * view.head_stride()) + view.width()), stride(std::abs(view.token_stride())) {
    first = view.data() + std::min((view.heads() - 1) * view.head_stride(), Index{0});
    low = first + std::min((view.tokens() - 1) * view.token_stride(), Index{0});
    high = low + (view.tokens() - 1) * stride + span;
  }
};

/// Refuses two views that share an element, or that may: rows of one matrix that lie side by side do not.
template <class T, class U>
void check_apart(const char* function, const char* name, const HeadsView<T>& view, const char* other_name,
                 const HeadsView<U>& other) {
  if (view.empty() || other.empty() || view.tokens() == 0 || other.tokens() == 0) return;
  const ViewExtent<std::remove_const_t<T>> own(view), others(other);
  const std::less<const void*> before;
  if (!before(own.low, others.high) || !before(others.low, own.high)) return;
  if (own.stride == others.stride && own.stride > 0) {
    // Of the other's rows in a row of this stride.
    const Index offset = ((others.first - own.first) % own.stride + own.stride) % own.stride;
    if (offset >= own.span && offset + others.span <= own.stride) return;
  }
  detail::raise<ShapeError>(function, ": ", name, " overlaps ", other_name, ", which starts ",
                            other.data() - view.data(), " elements behind it, with rows of ", own.span, " and ",
                            others.span, " elements: they must lie apart");
}

template <class Scalar>
void check_results(const char* function, const LayerPlan<Scalar>& plan, const Results<Scalar>& results, Index tokens,
                   Index keys) {
  const Shape& shape = plan.shape;
  check_heads(function, "results.attention", results.attention, tokens, shape.query_heads, shape.value_width());
  if (!results.log_sum_exp.empty())
    check_extents(function, "results.log_sum_exp", results.log_sum_exp.rows(), results.log_sum_exp.columns(), tokens,
                  shape.query_heads, "query_heads");
  const MatrixView<Scalar>& first = results.first_token_attention;
  if (!first.empty()) {
    check_extents(function, "results.first_token_attention", first.rows(), first.columns(), tokens,
                  shape.query_heads, "query_heads");
    if (results.log_sum_exp.empty())
      detail::raise<ShapeError>(function, ": results.first_token_attention of ", tokens,
                                " rows is computed from results.log_sum_exp, which has ", 0);
  }
  for (int i = 0; i < 5; ++i) {
    const Position position = static_cast<Position>(i);
    const HeadsView<Scalar>& scores = scores_at(results.gate_scores, position);
    const StagePlan<Scalar>* const gate = last_gate_at(plan, position);
    if (gate != nullptr)
      check_heads(function, "results.gate_scores", scores, detail::is_key_side(position) ? keys : tokens, gate->averaged ? 1 : gate->logit_heads(shape),
                  gate->logit_width(shape));
    else if (!scores.empty())
      detail::raise<ShapeError>(function, ": results.gate_scores asks for ", scores.tokens(), " rows of scores at ",
                                detail::name_of(position), ", where the layer has 0 gates");
  }
}

/// A stage with pointers for its numbers.
template <class Scalar>
RowStage<Scalar> bind_stage(const LayerPlan<Scalar>& plan, const StagePlan<Scalar>& stage, const Scalar* parameters) {
  const Shape& shape = plan.shape;
  RowStage<Scalar> bound;
  bound.run = stage.run;
  bound.width = detail::width_at(stage.position, shape);
  bound.number = static_cast<Scalar>(stage.number);
  bound.parameter = stage.parameter_offset < 0 ? nullptr : parameters + stage.parameter_offset;
  bound.logits_offset = stage.computed() ? stage.first_column : 0;
  bound.logits_head_stride = stage.shared || stage.averaged ? 0 : stage.logit_width(shape);
  bound.first_dim = stage.first_dim;
  bound.pairs = stage.pairs;
  bound.rotated_pairs = stage.rotated_pairs;
  return bound;
}

/// Binds the stages, in the order of StageTable, into the workspace.
template <class Scalar>
StageTable<Scalar> bind_stages(const LayerPlan<Scalar>& plan, const Scalar* parameters, RowStage<Scalar>* to) {
  const auto take = [&](Position position, auto wanted) {
    BoundStages<Scalar> bound{to, 0};
    bool whole_row_seen = false;
    for (const StagePlan<Scalar>& stage : plan.stages) {
      if (stage.position != position) continue;
      whole_row_seen = whole_row_seen || stage.whole_row;
      if (!wanted(whole_row_seen)) continue;
      *to++ = bind_stage(plan, stage, parameters);
      ++bound.count;
    }
    return bound;
  };
  const auto all = [](bool) { return true; };
  StageTable<Scalar> table;
  table.query = take(Position::query, all);
  table.key = take(Position::key, all);
  table.value = take(Position::value, all);
  table.sdpa_tile = take(Position::sdpa, [](bool whole_row_seen) { return !whole_row_seen; });
  table.sdpa_row = take(Position::sdpa, [](bool whole_row_seen) { return whole_row_seen; });
  table.output = take(Position::output, all);
  return table;
}

/// One view per sequence, of the call's extents, where the layer has the stage that reads it; none where it has not.
template <class View>
void check_score_views(const char* function, const char* name, const char* stage, bool wanted,
                       std::span<const View> views, Index query_heads, const AttendSequence* sequences,
                       Index sequence_count) {
  const Index expected = wanted ? sequence_count : 0;
  if (static_cast<Index>(views.size()) != expected)
    detail::raise<ShapeError>(function, ": ", name, " has ", views.size(), " views, the ", wanted ? "" : "missing ",
                              stage, " stage takes ", expected, wanted ? ", one per sequence" : "");
  for (Index i = 0; i < expected; ++i) {
    const View& view = views[static_cast<std::size_t>(i)];
    const auto equal = [&](const char* extent, Index value, Index one, Index all) {
      if (value != all && value != one)
        detail::raise<ShapeError>(function, ": ", name, " of sequence ", i, " has ", value, " ", extent, ", not ", all);
    };
    equal("heads", view.heads, 1, query_heads);
    equal("tokens", view.tokens, 1, sequences[i].tokens);
    equal("keys", view.keys, sequences[i].bounds.keys, sequences[i].bounds.keys);
  }
}

/// The stages at Scores with the batch's views, into the workspace.
template <class Scalar, class SomeBatch>
Index bind_score_stages(const char* function, const LayerPlan<Scalar>& plan, const SomeBatch& batch,
                        const AttendSequence* sequences, Index sequence_count, ScoreStage<Scalar>* to) {
  using Kind = typename ScoreStagePlan<Scalar>::Kind;
  bool biased = false, masked = false;
  for (const ScoreStagePlan<Scalar>& stage : plan.score_stages) {
    biased = biased || stage.kind == Kind::bias;
    masked = masked || stage.kind == Kind::boolean;
  }
  check_score_views(function, "score_bias", "ScoreBias", biased, batch.score_bias, plan.shape.query_heads, sequences,
                    sequence_count);
  check_score_views(function, "boolean_mask", "BooleanMask", masked, batch.boolean_mask, plan.shape.query_heads,
                    sequences, sequence_count);
  Index count = 0;
  for (const ScoreStagePlan<Scalar>& stage : plan.score_stages) {
    ScoreStage<Scalar>& bound = to[count++];
    bound = stage.stage;
    if (stage.kind == Kind::bias) bound.state = batch.score_bias.data();
    if (stage.kind == Kind::boolean) bound.state = batch.boolean_mask.data();
  }
  return count;
}

/// A prefix per sequence where the mask is PrefixCausal.
inline void check_prefixes(const char* function, const detail::MaskRule& mask, std::span<const Index> prefixes,
                           Index sequences) {
  const Index expected = mask.prefixed ? sequences : 0;
  if (static_cast<Index>(prefixes.size()) != expected)
    detail::raise<ShapeError>(function, ": there are ", prefixes.size(), " prefixes, the mask takes ", expected,
                              mask.prefixed ? ", one per sequence" : ": it is not PrefixCausal");
  for (const Index prefix : prefixes)
    if (prefix < 0) detail::raise<ShapeError>(function, ": a prefix is ", prefix, ", the least is 0");
}

inline Index prefix_of(std::span<const Index> prefixes, Index sequence) {
  return prefixes.empty() ? 0 : prefixes[static_cast<std::size_t>(sequence)];
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
