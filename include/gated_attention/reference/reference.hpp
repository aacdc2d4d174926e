// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

#include "gated_attention/core/view.hpp"
#include "gated_attention/reference/description.hpp"
#include "gated_attention/reference/formulas.hpp"

/// The same layer, written plainly in double from the formulas alone: nothing here is shared with
/// the kernels, and nothing is fast. For tests of the library and of ports of it.
namespace gated_attention::reference {

/// What a layer gives; a position without a gate has no scores.
struct Result {
  Tensor y;                      ///< [T, 1, E]
  Tensor attention;              ///< [T, Hq, Dv], the SDPA output before the stages at Sdpa
  Tensor log_sum_exp;            ///< [T, Hq, 1]
  Tensor first_token_attention;  ///< [T, Hq, 1], the probability of each sequence's first token
  /// Of the last gate at each position, after its activation (and mean): [T, heads, width] with 1
  /// head for SharedHeads and HeadMean and width 1 for Headwise.
  Tensor gate_scores[5];

  const Tensor& gate_scores_at(Position position) const {
    return gate_scores[static_cast<int>(position)];
  }
};

/// The numbers of the tensor of that name, which must be [rows, columns].
using TensorSource = std::function<Tensor(const std::string& name, Index rows, Index columns)>;

/// One forward of a described layer.
class Forward {
 public:
  Forward(const Description& layer, const TensorSource& tensors, const Tensor& x,
          const std::vector<Index>& lengths, const std::vector<Index>& positions)
      : layer_(layer), tensors_(tensors), x_(x), lengths_(lengths), positions_(positions) {}

  /// y = output(attend(prepare(project(x))))
  Result run() {
    const Shape& shape = layer_.shape;
    const Index width = shape.head_dim, value_width = shape.value_width();
    Tensor q = projection("q_proj", x_, shape.query_heads, width, layer_.query_bias);
    Tensor k = projection("k_proj", x_, shape.kv_heads, width, layer_.key_bias);
    Tensor v = projection("v_proj", x_, shape.kv_heads, value_width, layer_.value_bias);
    run_stages(Position::query, q);
    run_stages(Position::key, k);
    run_stages(Position::value, v);
    attend_sequences(q, k, v);
    Tensor o = result_.attention;
    run_stages(Position::sdpa, o);
    result_.y = projection("o_proj", o, 1, shape.model_dim, layer_.output_bias);
    run_stages(Position::output, result_.y);
    return result_;
  }

 private:
  Tensor projection(const std::string& name, const Tensor& x, Index heads, Index width,
                    bool has_bias) const {
    const Index rows = heads * width;
    std::vector<double> bias;
    if (has_bias) bias = tensors_(name + ".bias", 1, rows).values;
    return project(x, tensors_(name + ".weight", rows, x.heads * x.width), bias, heads, width);
  }

  /// Each sequence by itself, the results back to back.
  void attend_sequences(const Tensor& q, const Tensor& k, const Tensor& v) {
    result_.attention = Tensor(0, q.heads, v.width);
    result_.log_sum_exp = Tensor(0, q.heads, 1);
    result_.first_token_attention = Tensor(0, q.heads, 1);
    Index first = 0;
    for (const Index length : lengths_) {
      const Attention part = attend(rows(q, first, length), rows(k, first, length),
                                    rows(v, first, length), layer_.visible, layer_.scale);
      append(result_.attention, part.output);
      append(result_.log_sum_exp, part.log_sum_exp);
      append(result_.first_token_attention, part.first_key);
      first += length;
    }
  }

  static Tensor rows(const Tensor& x, Index first, Index count) {
    Tensor part(count, x.heads, x.width);
    const double* const from = x.values.data() + first * x.heads * x.width;
    std::copy_n(from, part.values.size(), part.values.data());
    return part;
  }

  static void append(Tensor& to, const Tensor& part) {
    to.tokens += part.tokens;
    to.values.insert(to.values.end(), part.values.begin(), part.values.end());
  }

  void run_stages(Position position, Tensor& y) {
    for (const Stage& stage : layer_.stages) {
      if (stage.position != position) continue;
      switch (stage.kind) {
        case Stage::Kind::gate:
          run_gate(stage, y);
          break;
        case Stage::Kind::normalize:
          run_normalize(stage, y);
          break;
        case Stage::Kind::activate:
          for (double& value : y.values) value = stage.activation(value);
          break;
        case Stage::Kind::scale:
          for (double& value : y.values) value *= stage.number;
          break;
        case Stage::Kind::rotate:
          rotate(y, stage.rotation, positions_);
          break;
      }
    }
  }

  void run_normalize(const Stage& stage, Tensor& y) const {
    const Index group = stage.over_row ? y.heads : 1;
    std::vector<double> multiplier;
    if (stage.weighted) multiplier = tensors_(stage.name + ".weight", 1, group * y.width).values;
    if (stage.offset_from_one)
      for (double& m : multiplier) m += 1;
    normalize(y, group, multiplier, stage.number);
  }

  /// y ← y ⊙ s or y + s
  void run_gate(const Stage& stage, Tensor& y) {
    const Tensor s = gate_scores(stage, y);
    for (Index t = 0; t < y.tokens; ++t)
      for (Index h = 0; h < y.heads; ++h)
        for (Index c = 0; c < y.width; ++c) {
          const double score = s(t, s.heads == 1 ? 0 : h, s.width == 1 ? 0 : c);
          y(t, h, c) = stage.adds ? y(t, h, c) + score : y(t, h, c) * score;
        }
    result_.gate_scores[static_cast<int>(stage.position)] = s;
  }

  /// s = activation(x·Wᵀ + b) or activation(learned logits), then the mean over heads if that is
  /// asked for
  Tensor gate_scores(const Stage& stage, const Tensor& y) const {
    const Index heads = stage.shared ? 1 : y.heads, width = stage.elementwise ? y.width : 1;
    Tensor s = stage.constant ? constant_logits(stage, y.tokens, heads, width)
                              : hidden_logits(stage, heads, width);
    for (double& score : s.values) score = stage.activation(score);
    if (!stage.averaged) return s;
    Tensor mean(y.tokens, 1, width);
    for (Index t = 0; t < y.tokens; ++t)
      for (Index c = 0; c < width; ++c) {
        for (Index h = 0; h < heads; ++h) mean(t, 0, c) += s(t, h, c);
        mean(t, 0, c) /= static_cast<double>(heads);
      }
    return mean;
  }

  Tensor hidden_logits(const Stage& stage, Index heads, Index width) const {
    const Index logits = heads * width;
    std::vector<double> bias;
    if (stage.bias == Stage::GateBias::per_logit)
      bias = tensors_(stage.name + ".bias", 1, logits).values;
    if (stage.bias == Stage::GateBias::per_head)
      for (const double b : tensors_(stage.name + ".bias", 1, heads).values)
        bias.insert(bias.end(), static_cast<std::size_t>(width), b);
    const Tensor w = tensors_(stage.name + ".weight", logits, layer_.shape.model_dim);
    return project(x_, w, bias, heads, width);
  }

  Tensor constant_logits(const Stage& stage, Index tokens, Index heads, Index width) const {
    const Tensor row = tensors_(stage.name + ".logits", heads, width);
    Tensor logits(0, heads, width);
    for (Index t = 0; t < tokens; ++t) append(logits, row);
    logits.tokens = tokens;
    return logits;
  }

  const Description& layer_;
  const TensorSource& tensors_;
  const Tensor& x_;
  const std::vector<Index>& lengths_;
  const std::vector<Index>& positions_;
  Result result_;
};

/// The rows of a matrix as a tensor of one head.
template <class T>
Tensor tensor_of(const MatrixView<T>& matrix) {
  Tensor tensor(matrix.rows(), 1, matrix.columns());
  for (Index i = 0; i < matrix.rows(); ++i)
    for (Index j = 0; j < matrix.columns(); ++j)
      tensor(i, 0, j) = static_cast<double>(matrix(i, j));
  return tensor;
}

/// A described layer on x [T, E]; lengths and positions as in Batch. A ShapeError where they do not
/// fit.
inline Result forward(const Description& layer, const TensorSource& tensors, const Tensor& x,
                      std::span<const Index> lengths = {}, std::span<const Index> positions = {}) {
  const auto agree = [](const char* what, Index value, const char* other, Index wanted) {
    if (value != wanted)
      detail::raise<ShapeError>("reference::forward: ", what, " is ", value, ", ", other, " is ",
                                wanted);
  };
  agree("the width of x", x.width, "model_dim", layer.shape.model_dim);
  std::vector<Index> of_sequences(lengths.begin(), lengths.end());
  if (lengths.empty()) of_sequences.assign(1, x.tokens);
  std::vector<Index> of_rows;
  for (const Index length : of_sequences)
    for (Index t = 0; t < length; ++t) of_rows.push_back(t);
  agree("the sum of the lengths", static_cast<Index>(of_rows.size()), "the rows of x", x.tokens);
  if (!positions.empty()) of_rows.assign(positions.begin(), positions.end());
  agree("the count of positions", static_cast<Index>(of_rows.size()), "the rows of x", x.tokens);
  return Forward(layer, tensors, x, of_sequences, of_rows).run();
}

/// The numbers of parameters[name], a matrix view of float or double, as a Parameters object gives.
template <class Parameters>
TensorSource tensors_of(const Parameters& parameters) {
  return [&parameters](const std::string& name, Index rows, Index columns) {
    const Tensor tensor = tensor_of(parameters[name]);
    if (tensor.tokens != rows || tensor.width != columns)
      detail::raise<ShapeError>("reference::forward: ", name, " is [", tensor.tokens, ", ",
                                tensor.width, "], the layer needs [", rows, ", ", columns, "]");
    return tensor;
  };
}

/// y = layer(x) and what lies between      x: [T, E]
///
/// `lengths` of the sequences of a ragged batch (empty: one) and `positions` of the rows (empty:
/// counted in each sequence) as in Batch.
template <class Layer, class Parameters, class T>
Result forward(const Layer& layer, const Parameters& parameters, MatrixView<T> x,
               std::span<const Index> lengths = {}, std::span<const Index> positions = {}) {
  return forward(describe(layer), tensors_of(parameters), tensor_of(x), lengths, positions);
}

}  // namespace gated_attention::reference
