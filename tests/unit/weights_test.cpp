// SPDX-License-Identifier: MIT
#include "gated_attention/layer/gated_attention.hpp"
#include "unit/layer_support.hpp"

// Weights in fewer bits: a layer with packed bfloat16 gives the bits of the layer whose matrices were
// rounded to bfloat16 beforehand.

namespace gated_attention::layers {

/// A source of a user's: a row and its squares.
struct WithSquares {
  static constexpr bool is_gate_source = true;
  static constexpr Index features(Index model_dim) { return 2 * model_dim; }
  template <class Scalar>
  static void read(const Scalar* row, Index model_dim, Scalar* features) {
    for (Index i = 0; i < model_dim; ++i) {
      features[i] = row[i];
      features[model_dim + i] = row[i] * row[i];
    }
  }
};

namespace {

/// Everything that is packed: biases, gates from every source, norms, sinks.
template <class Scalar>
auto layer_of_everything(Index context_dim) {
  return compose<Scalar>({.model_dim = 30,
                          .query_heads = 6,
                          .kv_heads = 2,
                          .head_dim = 11,
                          .value_dim = 9,
                          .context_dim = context_dim},
                         ProjectionBias<at::Query, at::Key, at::Value, at::Output>{},
                         QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4, .rotary_dim = 6},
                         Gate<at::Query, Headwise, SharedHeads, Bias>{},
                         Gate<at::Key, FirstChannels<7>, Tanh>{}, Gate<at::Value, LowRank<3>>{},
                         Gate<at::Sdpa, HeadMean>{}, Gate<at::Sdpa, Headwise, WithSquares>{},
                         Gate<at::Sdpa, Constant, Silu>{}, LearnedSink{}, Gate<at::Output, Bias>{});
}

/// The parameters with every matrix rounded to Stored: what a layer multiplies by.
template <class Stored, class Scalar>
Parameters<Scalar> rounded(Parameters<Scalar> parameters) {
  for (const TensorInfo& tensor : parameters.tensors()) {
    const bool is_matrix = (tensor.name.ends_with(".weight") || tensor.name.ends_with(".down")) &&
                           !tensor.name.ends_with("_norm.weight");
    Scalar* const numbers = parameters[tensor.name].data();
    for (Index i = 0; i < tensor.count() && is_matrix; ++i)
      numbers[i] = detail::widened<Scalar>(detail::narrowed<Stored>(numbers[i]));
  }
  return parameters;
}

/// What a call with these packed weights gives.
template <class Layer, class Weights, class Scalar = typename Layer::Scalar>
std::vector<Scalar> forward(const Layer& layer, const Weights& weights,
                            const std::vector<Scalar>& x, const std::vector<Index>& lengths,
                            Index threads = 1) {
  const Index width = layer.shape().model_dim, tokens = static_cast<Index>(x.size()) / width;
  Workspace workspace(layer, {.tokens = tokens,
                              .sequences = static_cast<Index>(lengths.size()),
                              .threads = threads,
                              .context_tokens = layer.shape().is_cross() ? tokens : 0});
  Batch<Scalar> batch{.x = {x.data(), tokens, width}, .lengths = lengths};
  if (layer.shape().is_cross()) {
    batch.context = {x.data(), tokens, width};
    batch.context_lengths = lengths;
  }
  std::vector<Scalar> y(x.size());
  layer.forward(batch, weights, workspace, {y.data(), tokens, width});
  return y;
}

template <class Scalar, class Stored>
void check_weights() {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  for (const Index context_dim : {0, 30}) {
    const auto layer = layer_of_everything<Scalar>(context_dim);
    const Parameters<Scalar> parameters = drawn(Parameters<Scalar>(layer));
    const auto stored = pack(layer, parameters, stored_as<Stored>);
    const auto before = pack(layer, rounded<Stored>(parameters));
    const auto exact = pack(layer, parameters);
    std::mt19937_64 engine(3);
    for (const std::vector<Index>& lengths : {std::vector<Index>{1}, {5}, {70, 0, 1}, {13, 130}}) {
      Index tokens = 0;
      for (const Index length : lengths) tokens += length;
      const std::vector<Scalar> x = normal_numbers<Scalar>(tokens * 30, engine);
      const std::vector<Scalar> y = forward(layer, stored, x, lengths);
      EXPECT_EQ(y, forward(layer, before, x, lengths)) << tokens << " tokens";
      EXPECT_EQ(y, forward(layer, stored, x, lengths, 2)) << "on two threads";
      EXPECT_NE(y, forward(layer, exact, x, lengths)) << "nothing was rounded";
    }
    EXPECT_LT(stored.bytes(), exact.bytes());
  }
}

TEST(Weights, InFewerBitsGiveTheBitsOfMatricesRoundedBeforeInFloat) {
  check_weights<float, bfloat16>();
  check_weights<float, half>();
}
TEST(Weights, InFewerBitsGiveTheBitsOfMatricesRoundedBeforeInDouble) {
  check_weights<double, float>();
  check_weights<double, bfloat16>();
  check_weights<double, half>();
}

TEST(Weights, InTheLayersOwnScalarAreWhatPackGivesWithoutAType) {
  const auto layer = layer_of_everything<float>(0);
  const Parameters<float> parameters = drawn(Parameters<float>(layer));
  static_assert(std::is_same_v<decltype(pack(layer, parameters, stored_as<float>)),
                               decltype(pack(layer, parameters))>);
}

TEST(Weights, ThatWereRoundedAlreadyLoseNothing) {
  const auto layer = layer_of_everything<float>(0);
  const Parameters<float> parameters = rounded<bfloat16>(drawn(Parameters<float>(layer)));
  std::mt19937_64 engine(4);
  const std::vector<float> x = normal_numbers<float>(9 * 30, engine);
  EXPECT_EQ(forward(layer, pack(layer, parameters, stored_as<bfloat16>), x, {9}),
            forward(layer, pack(layer, parameters), x, {9}));
}

TEST(Weights, InFewerBitsAreAsMuchSmaller) {
  const auto layer = compose<float>(
      {.model_dim = 512, .query_heads = 8, .kv_heads = 2, .head_dim = 64}, Gate<at::Sdpa>{});
  const Parameters<float> parameters(layer);
  const Index whole = pack(layer, parameters).bytes();
  EXPECT_LE(2 * pack(layer, parameters, stored_as<bfloat16>).bytes(), whole + 4096);
  EXPECT_LE(2 * pack(layer, parameters, stored_as<half>).bytes(), whole + 4096);
}

}  // namespace
}  // namespace gated_attention::layers
