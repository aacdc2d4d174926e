// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

#include "gated_attention/core/batch.hpp"
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

/// What a call reads, as in Batch. Empty lengths: one sequence; empty positions: counted in each.
struct Inputs {
  Tensor x;  ///< [T, 1, E]
  std::vector<Index> lengths = {}, positions = {};
  Tensor context = {};  ///< [S, 1, context_dim]
  std::vector<Index> context_lengths = {}, context_positions = {};
  std::vector<ScoreInputs> scores = {};  ///< one per sequence, or none
};

/// One forward of a described layer.
class Forward {
 public:
  Forward(const Description& layer, const TensorSource& tensors, const Inputs& inputs)
      : layer_(layer), tensors_(tensors), inputs_(inputs) {}

  /// y = output(attend(prepare(project(x))))      keys and values of the context, if there is one
  Result run() {
    const Shape& shape = layer_.shape;
    const Index width = shape.head_dim, value_width = shape.value_width();
    const Tensor& x = inputs_.x;
    Tensor q = projection("q_proj", x, shape.query_heads, width, layer_.query_bias);
    Tensor k = projection("k_proj", key_source(), shape.kv_heads, width, layer_.key_bias);
    Tensor v = projection("v_proj", key_source(), shape.kv_heads, value_width, layer_.value_bias);
    Tensor kept_q;
    if (layer_.visible.in_cache) run_stages(Position::query, kept_q = q, kept_positions());
    run_stages(Position::query, q, inputs_.positions);
    run_stages(Position::key, k, key_positions());
    run_stages(Position::value, v);
    attend_sequences(q, kept_q, k, v);
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

  /// The rows that keys and values come from.
  const Tensor& key_source() const { return layer_.shape.is_cross() ? inputs_.context : inputs_.x; }
  /// The rows that what stands at a position comes from.
  const Tensor& source_of(Position position) const {
    return position == Position::key || position == Position::value ? key_source() : inputs_.x;
  }

  const std::vector<Index>& key_positions() const {
    return layer_.shape.is_cross() ? inputs_.context_positions : inputs_.positions;
  }
  const std::vector<Index>& key_lengths() const {
    return layer_.shape.is_cross() ? inputs_.context_lengths : inputs_.lengths;
  }

  /// Where queries stand to kept keys at in-cache positions: before theirs by the keys that are gone.
  std::vector<Index> kept_positions() const {
    std::vector<Index> positions = inputs_.positions;
    auto position = positions.begin();
    for (std::size_t i = 0; i < inputs_.lengths.size(); ++i)
      for (Index t = 0; t < inputs_.lengths[i]; ++t)
        *position++ -= layer_.visible.evicted(t + key_lengths()[i] - inputs_.lengths[i]);
    return positions;
  }

  /// Each sequence by itself, the results back to back.
  void attend_sequences(const Tensor& q, const Tensor& kept_q, const Tensor& k, const Tensor& v) {
    result_.attention = Tensor(0, q.heads, v.width);
    result_.log_sum_exp = Tensor(0, q.heads, 1);
    result_.first_token_attention = Tensor(0, q.heads, 1);
    Scoring scoring{
        .visible = layer_.visible, .scale = layer_.scale, .stages = layer_.score_stages};
    if (layer_.sink) scoring.sinks = tensors_("sink.logits", 1, q.heads).values;
    Index first = 0, first_key = 0;
    for (std::size_t i = 0; i < inputs_.lengths.size(); ++i) {
      const Index length = inputs_.lengths[i], keys = key_lengths()[i];
      const Attention part =
          attend(rows(q, first, length), rows(k, first_key, keys), rows(v, first_key, keys),
                 scoring, inputs_.scores.empty() ? ScoreInputs{} : inputs_.scores[i],
                 layer_.visible.in_cache ? rows(kept_q, first, length) : Tensor());
      append(result_.attention, part.output);
      append(result_.log_sum_exp, part.log_sum_exp);
      append(result_.first_token_attention, part.first_key);
      first += length;
      first_key += keys;
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

  /// The stages at a position; `positions` of the rows where they may turn.
  void run_stages(Position position, Tensor& y, const std::vector<Index>& positions = {}) {
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
          rotate(y, stage.rotation, positions);
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
                              : learned_logits(stage, heads, width);
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

  /// f(x)·Wᵀ + b      f(x): x, its first channels, x·Aᵀ or features of the user's
  Tensor learned_logits(const Stage& stage, Index heads, Index width) const {
    const Index logits = heads * width;
    std::vector<double> bias;
    if (stage.bias == Stage::GateBias::per_logit)
      bias = tensors_(stage.name + ".bias", 1, logits).values;
    if (stage.bias == Stage::GateBias::per_head)
      for (const double b : tensors_(stage.name + ".bias", 1, heads).values)
        bias.insert(bias.end(), static_cast<std::size_t>(width), b);
    const Tensor read = features(stage, source_of(stage.position));
    return project(read, tensors_(stage.name + ".weight", logits, read.width), bias, heads, width);
  }

  Tensor features(const Stage& stage, const Tensor& x) const {
    if (stage.rank > 0)
      return project(x, tensors_(stage.name + ".down", stage.rank, x.width), {}, 1, stage.rank);
    if (stage.channels == 0 && stage.read == nullptr) return x;
    Tensor read(x.tokens, 1, stage.read != nullptr ? stage.features : stage.channels);
    for (Index t = 0; t < x.tokens; ++t) {
      if (stage.read != nullptr)
        stage.read(x.values.data() + t * x.width, x.width, read.values.data() + t * read.width);
      else
        for (Index c = 0; c < stage.channels; ++c) read(t, 0, c) = x(t, 0, c);
    }
    return read;
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
  const Inputs& inputs_;
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

/// [heads, tokens, keys] of a view.
template <class T>
Tensor tensor_of(const ScoreView<T>& view) {
  Tensor tensor(view.heads, view.tokens, view.keys);
  for (Index h = 0; h < view.heads; ++h)
    for (Index t = 0; t < view.tokens; ++t)
      for (Index s = 0; s < view.keys; ++s)
        tensor(h, t, s) = static_cast<double>(view.row(h, t)[s]);
  return tensor;
}

template <class Scalar>
Inputs inputs_of(const Batch<Scalar>& batch) {
  const auto list = [](std::span<const Index> from) {
    return std::vector<Index>(from.begin(), from.end());
  };
  Inputs inputs{.x = tensor_of(batch.x),
                .lengths = list(batch.lengths),
                .positions = list(batch.positions),
                .context = tensor_of(batch.context),
                .context_lengths = list(batch.context_lengths),
                .context_positions = list(batch.context_positions)};
  inputs.scores.resize(
      std::max({batch.prefixes.size(), batch.score_bias.size(), batch.boolean_mask.size()}));
  for (std::size_t i = 0; i < batch.prefixes.size(); ++i)
    inputs.scores[i].prefix = batch.prefixes[i];
  for (std::size_t i = 0; i < batch.score_bias.size(); ++i)
    inputs.scores[i].bias = tensor_of(batch.score_bias[i]);
  for (std::size_t i = 0; i < batch.boolean_mask.size(); ++i)
    inputs.scores[i].mask = tensor_of(batch.boolean_mask[i]);
  return inputs;
}

namespace internal {

inline void agree(const char* what, Index value, const char* other, Index wanted) {
  if (value != wanted)
    detail::raise<ShapeError>("reference::forward: ", what, " is ", value, ", ", other, " is ",
                              wanted);
}

/// Fills lengths and positions in where they are empty.
inline void complete(std::vector<Index>& lengths, std::vector<Index>& positions, Index rows,
                     const char* name) {
  if (lengths.empty()) lengths.assign(1, rows);
  std::vector<Index> counted;
  for (const Index length : lengths)
    for (Index t = 0; t < length; ++t) counted.push_back(t);
  agree("the sum of the lengths", static_cast<Index>(counted.size()), name, rows);
  if (positions.empty()) positions = counted;
  agree("the count of positions", static_cast<Index>(positions.size()), name, rows);
}

}  // namespace internal

/// A described layer on a call's inputs. A ShapeError where they do not fit.
inline Result forward(const Description& layer, const TensorSource& tensors, Inputs inputs) {
  using internal::agree;
  agree("the width of x", inputs.x.width, "model_dim", layer.shape.model_dim);
  internal::complete(inputs.lengths, inputs.positions, inputs.x.tokens, "the rows of x");
  const Index sequences = static_cast<Index>(inputs.lengths.size());
  if (layer.shape.is_cross()) {
    agree("the width of the context", inputs.context.width, "context_dim", layer.shape.context_dim);
    internal::complete(inputs.context_lengths, inputs.context_positions, inputs.context.tokens,
                       "the rows of the context");
    agree("the number of contexts", static_cast<Index>(inputs.context_lengths.size()),
          "the number of sequences", sequences);
  }
  if (!inputs.scores.empty())
    agree("the number of prefixes, biases or masks", static_cast<Index>(inputs.scores.size()),
          "the number of sequences", sequences);
  return Forward(layer, tensors, inputs).run();
}

/// A described layer on x [T, E]; lengths and positions as in Batch.
inline Result forward(const Description& layer, const TensorSource& tensors, const Tensor& x,
                      std::span<const Index> lengths = {}, std::span<const Index> positions = {}) {
  return forward(layer, tensors,
                 Inputs{.x = x,
                        .lengths = {lengths.begin(), lengths.end()},
                        .positions = {positions.begin(), positions.end()}});
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
  return forward(reference::describe(layer), tensors_of(parameters), tensor_of(x), lengths,
                 positions);
}

/// The same of a whole Batch: with a context, prefixes, biases and masks.
template <class Layer, class Parameters, class T>
Result forward(const Layer& layer, const Parameters& parameters, const Batch<T>& batch) {
  return forward(reference::describe(layer), tensors_of(parameters), inputs_of(batch));
}

}  // namespace gated_attention::reference
