// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "gated_attention/kernel/panel_matrix.hpp"
#include "gated_attention/math/packet.hpp"
#include "gated_attention/policy/row_functions.hpp"
#include "gated_attention/policy/score_functions.hpp"

// A layer as numbers: what its type means, in the form that pack and the four steps read. Compiled
// once per scalar; a layer's constructor fills it in.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

enum class BiasShape { none, per_logit, per_head };

/// Where a gate's logits come from: a column of the one pass over its stream each, or a product of their own behind it
/// from its first channels, from a low-rank column, or from features of a user's.
enum class GateOrigin { hidden, constant, channels, low_rank, features };

/// One row stage as numbers.
template <class Scalar>
struct StagePlan {
  enum class Kind { gate, normalize, activate, scale, rotate };
  /// scores[0, count) = activation(logits[0, count))
  using Activate = void (*)(const Scalar* logits, Index count, Scalar* scores);

  Kind kind = Kind::scale;
  Position position = Position::query;
  typename RowStage<Scalar>::Run run = nullptr;
  detail::StageTensors tensors;  ///< what it learns
  double number = 0;             ///< eps or factor
  bool whole_row = false;        ///< reads all heads of a token at once

  bool elementwise = false;  ///< gate: a logit per channel; else one per head
  bool shared = false;       ///< gate: one row of logits for all heads
  bool averaged = false;     ///< gate: scores averaged over the heads
  GateOrigin origin = GateOrigin::constant;
  Index depth = 0;  ///< gate: numbers that a logit is the weighted sum of
  void (*features)(const Scalar* x, Index width, Scalar* features) = nullptr;
  BiasShape bias = BiasShape::none;
  Activate activate = nullptr;
  Index first_column = 0;  ///< gate: its logits' first column in a row of its stream
  Index low_column = 0;    ///< low-rank gate: the first column of x·Aᵀ
  Index panel_offset =
      0;  ///< gate with a product of its own: its panels in PackedTensors::gate_panels
  Index parameter_offset =
      -1;  ///< norm multiplier or constant logits: where in PackedTensors::stages; −1: none
  Index first_tensor =
      -1;  ///< its weight among the layer's tensors, its bias behind it; −1: learns nothing

  bool offset_from_one = false;  ///< norm: multiplies by 1 + w

  Index first_dim = 0, rotary_dim = 0, pairs = 0, rotated_pairs = 0;  ///< rotation

  /// Numbers it reads from PackedTensors::stages. Constant averaged scores are averaged when they
  /// are packed.
  Index parameters(const Shape& shape) const {
    if (kind == Kind::normalize) return tensors.weight_rows * tensors.weight_columns;
    if (kind != Kind::gate || origin != GateOrigin::constant) return 0;
    return averaged ? logit_width(shape) : logits(shape);
  }

  /// Whether its logits are computed with each call.
  bool computed() const { return kind == Kind::gate && origin != GateOrigin::constant; }
  bool has_own_product() const { return computed() && origin != GateOrigin::hidden; }

  Index logit_heads(const Shape& shape) const {
    return shared ? 1 : detail::heads_at(position, shape);
  }
  Index logit_width(const Shape& shape) const {
    return elementwise ? detail::width_at(position, shape) : 1;
  }
  Index logits(const Shape& shape) const { return logit_heads(shape) * logit_width(shape); }
};

/// The rotation of a layer: its frequencies, in double.
struct RotationPlan {
  std::vector<double> frequencies;  ///< one per turned pair; empty: none
  double attention_factor = 1;      ///< multiplies cos and sin
};

/// One stage at Scores as numbers.
template <class Scalar>
struct ScoreStagePlan {
  enum class Kind { softcap, alibi, bias, boolean, function };

  Kind kind = Kind::softcap;
  ScoreStage<Scalar> stage;  ///< what it runs; the views of a batch are bound with the call
  std::shared_ptr<const void> state;  ///< owns slopes or a user's function
};

/// One stream of tokens: x or the context.
struct StreamPlan {
  Index width = 0;    ///< channels of a token
  Index columns = 0;  ///< that the one pass over the stream gives
  Index row = 0;      ///< those and the logits behind them: the distance from token to token
};

template <class Scalar>
struct LayerPlan {
  Shape shape;
  double scale = 1;  ///< multiplies q·k
  detail::MaskRule mask;
  bool query_bias = false, key_bias = false, value_bias = false, output_bias = false;
  std::vector<StagePlan<Scalar>> stages;  ///< written out, in written order
  RotationPlan rotation;
  std::vector<ScoreStagePlan<Scalar>> score_stages;  ///< in written order
  Index sink_tensor = -1;  ///< a LearnedSink's logits among the layer's tensors; −1: none
  Index sink_offset = -1;  ///< and in PackedTensors::stages

  // One pass over x gives a row [q | k | v | gate logits] per token; in cross-attention one pass over x gives
  // [q | gate logits] and one over the context [k | v | gate logits]. Logits with a product of their own lie behind. A
  // head's row is padded to whole packets, so that stages may work on it in place; a section starts on a packet.
  Index head_stride = 0;   ///< head_dim in whole packets
  Index value_stride = 0;  ///< value_dim in whole packets
  Index key_column = 0, value_column = 0;
  StreamPlan streams[2];  ///< of x, and of the context
  Index gate_panel_elements = 0;
  Index most_features = 0;     ///< of a token, for gates with features of a user's
  Index stage_parameters = 0;  ///< numbers in PackedTensors::stages
  std::uint64_t key_signature = 0;  ///< how keys and values are made of a token, see signature_of_keys

  /// The stream that keys and values are projected from.
  int key_stream() const { return shape.is_cross() ? 1 : 0; }
  int stream_of(Position position) const {
    return detail::is_key_side(position) ? key_stream() : 0;
  }
};

/// Channels that a Rope turns: to the end of the head where it does not say.
template <class Pairing>
Index rotary_dim(const Shape& shape, const Rope<Pairing>& rope) {
  return rope.rotary_dim == 0 ? shape.head_dim - rope.first_dim : rope.rotary_dim;
}

/// The frequencies of the layer's rotation.
template <class Scalar, class Pairing>
void plan_rotation(LayerPlan<Scalar>& plan, const Rope<Pairing>& rope) {
  const Index channels = rotary_dim(plan.shape, rope);
  const Index turned = rope.rotated_pairs == 0 ? channels / 2 : rope.rotated_pairs;
  // Numbers that do not fit are refused with the plan's other numbers.
  if (channels < 2 || channels % 2 != 0 || channels > plan.shape.head_dim || turned < 1 ||
      turned > channels / 2)
    return;
  plan.rotation.frequencies.resize(static_cast<std::size_t>(turned));
  detail::inverse_frequencies(rope.theta, channels, turned, rope.yarn ? &*rope.yarn : nullptr,
                              plan.rotation.frequencies.data());
  if (rope.yarn) plan.rotation.attention_factor = detail::attention_factor(*rope.yarn);
}

/// Lays the columns of the projections and the stages' parameters out.
template <class Scalar>
void lay_out(LayerPlan<Scalar>& plan) {
  const Shape& shape = plan.shape;
  const auto take = [](Index& end, Index count) {
    const Index first = end;
    end += detail::round_up(count, lanes<Scalar>);
    return first;
  };
  plan.head_stride = detail::round_up(shape.head_dim, lanes<Scalar>);
  plan.value_stride = detail::round_up(shape.value_width(), lanes<Scalar>);
  StreamPlan &queries = plan.streams[0], &keys = plan.streams[plan.key_stream()];
  queries.width = shape.model_dim;
  keys.width = shape.key_source_dim();
  take(queries.columns, shape.query_heads * plan.head_stride);
  plan.key_column = take(keys.columns, shape.kv_heads * plan.head_stride);
  plan.value_column = take(keys.columns, shape.kv_heads * plan.value_stride);
  for (StagePlan<Scalar>& stage : plan.stages) {
    if (const Index parameters = stage.parameters(shape); parameters > 0) {
      stage.parameter_offset = plan.stage_parameters;
      plan.stage_parameters += parameters;
    }
    StreamPlan& stream = plan.streams[plan.stream_of(stage.position)];
    if (!stage.computed()) continue;
    if (stage.origin == GateOrigin::hidden)
      stage.first_column = take(stream.columns, stage.logits(shape));
    if (stage.origin == GateOrigin::low_rank) stage.low_column = take(stream.columns, stage.depth);
  }
  for (StreamPlan& stream : plan.streams) stream.row = stream.columns;
  for (StagePlan<Scalar>& stage : plan.stages) {
    if (!stage.has_own_product()) continue;
    stage.first_column =
        take(plan.streams[plan.stream_of(stage.position)].row, stage.logits(shape));
    stage.panel_offset = plan.gate_panel_elements;
    plan.gate_panel_elements += panel_elements(stage.logits(shape), stage.depth);
    if (stage.origin == GateOrigin::features)
      plan.most_features = std::max(plan.most_features, stage.depth);
  }
  if (plan.sink_tensor < 0) return;
  plan.sink_offset = plan.stage_parameters;
  plan.stage_parameters += shape.query_heads;
}

/// A number that tells how keys and values are made of a token: the same for layers whose stages at key and value and whose
/// rotation are the same, with the same numbers. A cache of the one is of no use to a layer with another.
template <class Scalar>
std::uint64_t signature_of_keys(const LayerPlan<Scalar>& plan) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a, over words
  const auto mix = [&hash](std::uint64_t word) { hash = (hash ^ word) * 0x100000001b3U; };
  const auto mix_real = [&mix](double number) { mix(std::bit_cast<std::uint64_t>(number)); };
  for (const StagePlan<Scalar>& stage : plan.stages) {
    if (!detail::is_key_side(stage.position)) continue;
    mix(static_cast<std::uint64_t>(stage.kind));
    mix(static_cast<std::uint64_t>(stage.position));
    mix(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stage.run)));
    mix_real(stage.number);
    for (const Index number : {stage.first_dim, stage.pairs, stage.rotated_pairs})
      mix(static_cast<std::uint64_t>(number));
  }
  for (const double frequency : plan.rotation.frequencies) mix_real(frequency);
  mix_real(plan.rotation.attention_factor);
  return hash;
}

/// The features of a row by a user's source.
template <class Scalar, class Source>
void read_features(const Scalar* x, Index width, Scalar* features) {
  Source::template read<Scalar>(x, width, features);
}

/// Appends a stage at Scores to the plan.
template <class Scalar, class Stage>
void add_score_stage(LayerPlan<Scalar>& plan, const Stage& stage) {
  using Kind = typename ScoreStagePlan<Scalar>::Kind;
  ScoreStagePlan<Scalar> entry;
  if constexpr (std::is_same_v<Stage, Softcap>) {
    entry.kind = Kind::softcap;
    entry.stage.run = &run_softcap<Scalar>;
    entry.stage.number = static_cast<Scalar>(double{stage.cap});
  } else if constexpr (std::is_same_v<Stage, Alibi>) {
    entry.kind = Kind::alibi;
    entry.stage.run = &run_alibi<Scalar>;
    const auto slopes = std::make_shared<const std::vector<double>>(
        stage.slopes.empty() ? alibi_slopes(plan.shape.query_heads)
                             : std::vector<double>(stage.slopes.begin(), stage.slopes.end()));
    if (static_cast<Index>(slopes->size()) != plan.shape.query_heads)
      detail::raise<ShapeError>("Alibi: there are ", slopes->size(), " slopes, the layer has ",
                                plan.shape.query_heads, " query heads");
    entry.state = slopes;
    entry.stage.state = slopes->data();
  } else if constexpr (std::is_same_v<Stage, ScoreBias>) {
    entry.kind = Kind::bias;
    entry.stage.run = &run_score_bias<Scalar>;
    entry.stage.hides = &score_bias_hides<Scalar>;
    entry.stage.masks = true;
  } else if constexpr (std::is_same_v<Stage, BooleanMask>) {
    entry.kind = Kind::boolean;
    entry.stage.run = &run_boolean_mask<Scalar>;
    entry.stage.hides = &boolean_mask_hides<Scalar>;
    entry.stage.masks = true;
  } else {
    using Function = decltype(stage.function);
    entry.kind = Kind::function;
    if constexpr (scores_packets<Scalar, Stage>)
      entry.stage.run = &run_score_function<Scalar, Function>;
    entry.stage.masks = true;
    const auto function = std::make_shared<const Function>(stage.function);
    entry.state = function;
    entry.stage.state = function.get();
  }
  plan.score_stages.push_back(entry);
}

/// Appends a written-out row stage to the plan.
template <class Scalar, class Stage>
void add_stage(LayerPlan<Scalar>& plan, Position position, const Stage& stage) {
  StagePlan<Scalar> entry;
  entry.position = position;
  entry.run = row_function<Scalar, Stage>();
  entry.tensors = Stage::tensors(plan.shape);
  if constexpr (detail::is_gate<Stage>) {
    entry.kind = StagePlan<Scalar>::Kind::gate;
    entry.elementwise = Stage::elementwise;
    entry.shared = Stage::shared;
    entry.averaged = Stage::averaged;
    using Source = typename Stage::source;
    entry.origin = Stage::constant                      ? GateOrigin::constant
                   : detail::first_channels<Source> > 0 ? GateOrigin::channels
                   : detail::low_rank<Source> > 0       ? GateOrigin::low_rank
                   : GateSource<Source>                 ? GateOrigin::features
                                                        : GateOrigin::hidden;
    entry.depth = Stage::depth(plan.shape);
    if constexpr (GateSource<Source> && detail::ReadsRows<Source, Scalar>)
      entry.features = &read_features<Scalar, Source>;
    entry.bias = std::is_same_v<typename Stage::bias, Bias>       ? BiasShape::per_logit
                 : std::is_same_v<typename Stage::bias, HeadBias> ? BiasShape::per_head
                                                                  : BiasShape::none;
    entry.activate =
        &activate_logits<Scalar, detail::ActivationOn<Scalar, typename Stage::activation>>;
  } else if constexpr (detail::is_normalize<Stage>) {
    entry.kind = StagePlan<Scalar>::Kind::normalize;
    entry.number = stage.eps;
    entry.whole_row = Stage::norm::over_row;
    entry.offset_from_one =
        std::is_same_v<typename Stage::norm::weight_convention, weight::OffsetFromOne>;
  } else if constexpr (detail::is_activate<Stage>) {
    entry.kind = StagePlan<Scalar>::Kind::activate;
  } else if constexpr (detail::is_rope<Stage>) {
    entry.kind = StagePlan<Scalar>::Kind::rotate;
    entry.first_dim = stage.first_dim;
    entry.rotary_dim = rotary_dim(plan.shape, stage);
    entry.pairs = entry.rotary_dim / 2;
    entry.rotated_pairs = stage.rotated_pairs == 0 ? entry.pairs : stage.rotated_pairs;
  } else {
    entry.kind = StagePlan<Scalar>::Kind::scale;
    entry.number = stage.factor;
  }
  plan.stages.push_back(entry);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
