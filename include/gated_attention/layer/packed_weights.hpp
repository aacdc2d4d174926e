// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/kernel/call.hpp"
#include "gated_attention/layer/parameters.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

namespace kernel {

/// Packs rows of weights and biases of one stream's projection.
template <class Scalar, class Weight>
struct InputPacker {
  Index depth;
  Weight* panels;
  Scalar* bias;  ///< null: the stream has none

  /// Rows [heads · width, E] to columns from `column` on, heads `stride` columns apart.
  void weight(const Scalar* rows, Index heads, Index width, Index column, Index stride) const {
    for (Index h = 0; h < heads; ++h)
      pack_columns<Scalar>(panels, depth, column + h * stride,
                           MatrixView<const Scalar>(rows + h * width * depth, width, depth));
  }

  void add_bias(const Scalar* from, Index heads, Index width, Index column, Index stride) const {
    for (Index h = 0; h < heads; ++h) std::copy_n(from + h * width, width, bias + column + h * stride);
  }
};

template <class Scalar>
bool has_input_bias(const LayerPlan<Scalar>& plan, int stream) {
  bool any = stream == 0 && plan.query_bias;
  any = any || (stream == plan.key_stream() && (plan.key_bias || plan.value_bias));
  for (const StagePlan<Scalar>& stage : plan.stages)
    any = any || (plan.stream_of(stage.position) == stream && stage.bias != BiasShape::none);
  return any;
}

/// q, k and v with their biases, each in the stream that it is projected from.
template <class Scalar, class Weight>
void pack_projections(const LayerPlan<Scalar>& plan, const Parameters<Scalar>& parameters,
                      const InputPacker<Scalar, Weight> (&packers)[2]) {
  struct Projection {
    const char *weight, *bias;
    bool biased;
    int stream;
    Index heads, width, column, stride;
  };
  const Shape& shape = plan.shape;
  const int keys = plan.key_stream();
  const Projection projections[] = {
      {"q_proj.weight", "q_proj.bias", plan.query_bias, 0, shape.query_heads, shape.head_dim, 0, plan.head_stride},
      {"k_proj.weight", "k_proj.bias", plan.key_bias, keys, shape.kv_heads, shape.head_dim, plan.key_column,
       plan.head_stride},
      {"v_proj.weight", "v_proj.bias", plan.value_bias, keys, shape.kv_heads, shape.value_width(), plan.value_column,
       plan.value_stride}};
  for (const Projection& p : projections) {
    const InputPacker<Scalar, Weight>& packer = packers[p.stream];
    packer.weight(parameters[p.weight].data(), p.heads, p.width, p.column, p.stride);
    if (p.biased) packer.add_bias(parameters[p.bias].data(), p.heads, p.width, p.column, p.stride);
  }
}

/// One gate: in its stream's one pass, or in panels of its own.
template <class Scalar, class Weight>
void pack_gate(const LayerPlan<Scalar>& plan, const StagePlan<Scalar>& stage, const Parameters<Scalar>& parameters,
               const InputPacker<Scalar, Weight>& packer, Weight* gate_panels) {
  const Index heads = stage.logit_heads(plan.shape), width = stage.logit_width(plan.shape), rows = heads * width;
  const Scalar* const weight = parameters.data(stage.first_tensor);
  Index next = stage.first_tensor + 1;
  if (stage.origin == GateOrigin::hidden) {
    packer.weight(weight, heads, width, stage.first_column, width);
  } else {
    Weight* const panels = gate_panels + stage.panel_offset;
    clear_padding<Scalar>(panels, rows, stage.depth);
    pack_columns<Scalar>(panels, stage.depth, 0, MatrixView<const Scalar>(weight, rows, stage.depth));
  }
  if (stage.bias != BiasShape::none) {
    const Scalar* const from = parameters.data(next++);
    if (stage.bias == BiasShape::per_logit)
      packer.add_bias(from, heads, width, stage.first_column, width);
    else
      for (Index h = 0; h < heads; ++h) std::fill_n(packer.bias + stage.first_column + h * width, width, from[h]);
  }
  if (stage.origin == GateOrigin::low_rank)
    packer.weight(parameters.data(next), 1, stage.depth, stage.low_column, stage.depth);
}

/// Everything that is projected from a stream side by side in one matrix, and its biases in one row.
template <class Scalar, class Weight>
void pack_input(const LayerPlan<Scalar>& plan, const Parameters<Scalar>& parameters, Weight* const (&panels)[2],
                Scalar* const (&biases)[2], Weight* gate_panels) {
  for (int s = 0; s < 2; ++s) {
    const StreamPlan& stream = plan.streams[s];
    if (panels[s] != nullptr)
      clear_columns<Scalar>(panels[s], stream.width, 0, detail::round_up(stream.columns, panel_columns));
    if (biases[s] != nullptr) std::fill_n(biases[s], stream.row, Scalar(0));
  }
  const InputPacker<Scalar, Weight> packers[2] = {{plan.streams[0].width, panels[0], biases[0]},
                                          {plan.streams[1].width, panels[1], biases[1]}};
  pack_projections(plan, parameters, packers);
  for (const StagePlan<Scalar>& stage : plan.stages)
    if (stage.computed())
      pack_gate(plan, stage, parameters, packers[plan.stream_of(stage.position)], gate_panels);
}

/// Norm multipliers (1 + w where that is the convention) and constant logits (averaged scores where they are averaged).
template <class Scalar>
void pack_stages(const LayerPlan<Scalar>& plan, const Parameters<Scalar>& parameters, Scalar* to) {
  for (const StagePlan<Scalar>& stage : plan.stages) {
    if (stage.parameter_offset < 0) continue;
    const Scalar* const from = parameters.data(stage.first_tensor);
    Scalar* const out = to + stage.parameter_offset;
    const Index count = stage.parameters(plan.shape);
    if (stage.kind == StagePlan<Scalar>::Kind::normalize) {
      const Scalar offset = stage.offset_from_one ? Scalar(1) : Scalar(0);
      for (Index i = 0; i < count; ++i) out[i] = from[i] + offset;
    } else if (stage.averaged) {
      const Index heads = stage.logit_heads(plan.shape);
      std::vector<Scalar> scores(static_cast<std::size_t>(heads * count));
      stage.activate(from, heads * count, scores.data());
      for (Index c = 0; c < count; ++c) {
        Scalar sum = 0;
        for (Index h = 0; h < heads; ++h) sum += scores[static_cast<std::size_t>(h * count + c)];
        out[c] = sum / static_cast<Scalar>(heads);
      }
    } else {
      std::copy_n(from, count, out);
    }
  }
  if (plan.sink_offset >= 0)
    std::copy_n(parameters.data(plan.sink_tensor), plan.shape.query_heads, to + plan.sink_offset);
}

/// The parameters are those of the layer; a ShapeError names the first tensor that is not.
template <class Scalar>
void check_tensors(const std::vector<TensorInfo>& expected, const Parameters<Scalar>& parameters) {
  if (parameters.tensors().size() != expected.size())
    detail::raise<ShapeError>("pack: the parameters hold ", parameters.tensors().size(), " tensors, the layer has ",
                              expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const TensorInfo &given = parameters.tensors()[i], &wanted = expected[i];
    if (given.name != wanted.name || given.rows != wanted.rows || given.columns != wanted.columns)
      detail::raise<ShapeError>("pack: tensor ", given.name, " [", given.rows, ", ", given.columns,
                                "] stands where the layer has ", wanted.name, " [", wanted.rows, ", ",
                                wanted.columns, "]");
  }
}

template <class Weight, class Scalar>
struct CheckedWeight {
  static constexpr bool weights_can_be_stored_so = detail::stores_weights<Weight, Scalar>;
  static_assert(weights_can_be_stored_so,
                "gated_attention: weights are stored as the layer's scalar, float, bfloat16 or half");
};

/// Packed tensors and the memory they lie in: compiled once per scalar and type of weights, not per layer.
template <class Scalar, class Weight>
class PackedMemory {
 public:
  PackedMemory(const LayerPlan<Scalar>& plan, const std::vector<TensorInfo>& expected,
               const Parameters<Scalar>& parameters) {
    check_tensors(expected, parameters);
    detail::Arena count;
    lay_out(count, plan);
    memory_ = detail::AlignedBytes(count.used());
    detail::Arena arena(memory_.data());
    const Pieces pieces = lay_out(arena, plan);
    pack_input(plan, parameters, pieces.input, pieces.input_bias, pieces.gate_panels);
    const MatrixView<const Scalar> output = parameters["o_proj.weight"];
    clear_padding<Scalar>(pieces.output, output.rows(), output.columns());
    pack_columns<Scalar>(pieces.output, output.columns(), 0, output);
    if (plan.output_bias) std::copy_n(parameters["o_proj.bias"].data(), output.rows(), pieces.output_bias);
    pack_stages(plan, parameters, pieces.stages);
    for (int s = 0; s < 2; ++s) {
      tensors_.input[s] = {pieces.input[s], plan.streams[s].columns, plan.streams[s].width};
      tensors_.input_bias[s] = pieces.input_bias[s];
    }
    tensors_.gate_panels = pieces.gate_panels;
    tensors_.output = {pieces.output, output.rows(), output.columns()};
    tensors_.output_bias = pieces.output_bias;
    tensors_.stages = pieces.stages;
  }

  Index bytes() const { return memory_.size(); }
  const PackedTensors<Scalar>& tensors() const { return tensors_; }

 private:
  struct Pieces {
    Weight* input[2];
    Scalar* input_bias[2];
    Weight *gate_panels, *output;
    Scalar *output_bias, *stages;
  };

  static Pieces lay_out(detail::Arena& arena, const LayerPlan<Scalar>& plan) {
    const Shape& shape = plan.shape;
    Pieces pieces{};
    for (int s = 0; s < 2; ++s) {
      const StreamPlan& stream = plan.streams[s];
      if (stream.columns == 0) continue;
      pieces.input[s] = arena.take<Weight>(panel_elements(stream.columns, stream.width));
      if (has_input_bias(plan, s)) pieces.input_bias[s] = arena.take<Scalar>(stream.row);
    }
    pieces.gate_panels = arena.take<Weight>(plan.gate_panel_elements);
    pieces.output = arena.take<Weight>(panel_elements(shape.model_dim, shape.query_heads * shape.value_width()));
    if (plan.output_bias) pieces.output_bias = arena.take<Scalar>(shape.model_dim);
    pieces.stages = arena.take<Scalar>(plan.stage_parameters);
    return pieces;
  }

  detail::AlignedBytes memory_;
  PackedTensors<Scalar> tensors_;
};

}  // namespace kernel

/// A layer's weights as its kernels read them: packed once, shared freely between threads. The matrices are stored as
/// Weight, float, bfloat16 or half, rounded to nearest even when they are packed and widened in registers; biases, norms
/// and constant logits stay in the layer's scalar. Belongs to the instruction set it was packed for. Movable, not copyable.
template <class Layer, class Weight = typename Layer::Scalar>
class PackedWeights {
 public:
  using Scalar = typename Layer::Scalar;

  static_assert(sizeof(kernel::CheckedWeight<Weight, Scalar>) > 0);

  /// Packs the parameters of a layer; a ShapeError names the first tensor that does not fit.
  PackedWeights(const Layer& layer, const Parameters<Scalar>& parameters)
      : shape_(layer.shape()), packed_(layer.plan(), layer.tensors(), parameters) {}

  /// Bytes it holds.
  Index bytes() const { return packed_.bytes(); }

  /// For the layer: the packed numbers, and the shape they were packed for.
  const kernel::PackedTensors<Scalar>& tensors() const { return packed_.tensors(); }
  const Shape& shape() const { return shape_; }

 private:
  Shape shape_;
  kernel::PackedMemory<Scalar, Weight> packed_;
};

/// Packs parameters for a layer's kernels; pack(attention, parameters, stored_as<bfloat16>) in fewer bits.
template <class Layer>
PackedWeights<Layer> pack(const Layer& layer, const Parameters<typename Layer::Scalar>& parameters) {
  return PackedWeights<Layer>(layer, parameters);
}
template <class Layer, class Weight>
PackedWeights<Layer, Weight> pack(const Layer& layer, const Parameters<typename Layer::Scalar>& parameters,
                                  StoredAs<Weight>) {
  return PackedWeights<Layer, Weight>(layer, parameters);
}

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
