// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <random>

#include "bug/copying_layer.hpp"

namespace gated_attention::test {

/// `count` numbers from N(0, deviation²).
template <class Scalar>
std::vector<Scalar> normal_numbers(Index count, std::uint64_t seed, double deviation = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<Scalar> numbers(static_cast<std::size_t>(count));
  for (Scalar& number : numbers) number = static_cast<Scalar>(normal(engine));
  return numbers;
}

/// A layer with random weights.
template <class LayerType>
struct RunningLayer {
  using Layer = LayerType;
  using Scalar = typename Layer::Scalar;

  Layer layer;
  PackedWeights<Layer> weights;

  explicit RunningLayer(const Layer& given)
      : layer(given), weights(pack(given, random_parameters(given))) {}

  static Parameters<Scalar> random_parameters(const Layer& layer) {
    Parameters parameters(layer);
    const std::vector<Scalar> numbers =
        normal_numbers<Scalar>(static_cast<Index>(parameters.values().size()), 7, 0.15);
    for (std::size_t i = 0; i < numbers.size(); ++i) parameters.values()[i] += numbers[i];
    return parameters;
  }

  Index model_dim() const { return layer.shape().model_dim; }

  std::vector<Scalar> input(Index tokens, std::uint64_t seed = 1) const {
    return normal_numbers<Scalar>(tokens * model_dim(), seed);
  }

  /// y of rows back to back.
  std::vector<Scalar> forward(const std::vector<Scalar>& x, const std::vector<Index>& lengths = {},
                              Index threads = 1, const std::vector<Index>& positions = {}) const {
    const Index tokens = static_cast<Index>(x.size()) / model_dim();
    Workspace workspace(layer, {.tokens = tokens,
                                .sequences = std::max<Index>(1, static_cast<Index>(lengths.size())),
                                .threads = threads});
    std::vector<Scalar> y(x.size());
    layer.forward(
        {.x = {x.data(), tokens, model_dim()}, .lengths = lengths, .positions = positions}, weights,
        workspace, {y.data(), tokens, model_dim()});
    return y;
  }

  /// Rows [first, first + count) of y.
  std::span<const Scalar> rows(const std::vector<Scalar>& y, Index first, Index count) const {
    return {y.data() + first * model_dim(), static_cast<std::size_t>(count * model_dim())};
  }
};

/// Every kind of stage, channels that fill no packet, groups of three heads.
inline auto causal_layer() {
  return RunningLayer(compose<float>(
      {.model_dim = 96, .query_heads = 6, .kv_heads = 2, .head_dim = 22, .value_dim = 13},
      ProjectionBias<at::Query, at::Key, at::Value, at::Output>{},
      QkNorm<RmsNorm<weight::OffsetFromOne>>{.eps = 1e-6}, Rope<>{.theta = 1e4, .rotary_dim = 8},
      Gate<at::Query, Headwise>{}, Gate<at::Value, HeadMean>{}, Gate<at::Sdpa>{},
      Activate<at::Sdpa, Tanh>{}, Causal{}, Gate<at::Output, Bias>{}));
}

/// A window, a whole-width norm behind the attention, constant logits, in double.
inline auto window_layer() {
  return RunningLayer(compose<double>(
      {.model_dim = 70, .query_heads = 4, .kv_heads = 4, .head_dim = 9},
      SlidingWindow{.window = 37}, Rope<pairing::Interleaved>{.theta = 1e4, .rotary_dim = 8},
      Gate<at::Sdpa, Constant>{},
      Normalize<at::Sdpa, RmsNorm<weight::Plain, over::Row>>{.eps = 1e-6},
      Gate<at::Sdpa, SharedHeads, Add, Silu>{}, Scale<at::Key>{.factor = 1.5}));
}

inline auto bidirectional_layer() {
  return RunningLayer(
      compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 1, .head_dim = 64},
                     Bidirectional{}, Gate<at::Key>{}, Gate<at::Sdpa, Headwise, Bias>{}));
}

}  // namespace gated_attention::test
