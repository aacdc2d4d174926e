// SPDX-License-Identifier: MIT
#include "gated_attention/layer/describe.hpp"
#include "gated_attention/layer/gated_attention.hpp"
#include "unit/layer_support.hpp"

// StreamingWindow: the first keys for ever, and a window, in layers.

namespace gated_attention::layers {
namespace {

constexpr Shape shape{
    .model_dim = 14, .query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5};

constexpr KeyPositions both_positions[] = {KeyPositions::absolute, KeyPositions::in_cache};

/// x and, for the stages that read them, a bias and a mask for each sequence.
template <class Scalar>
struct Input {
  std::vector<Index> lengths, positions;
  std::vector<Scalar> x;
  std::vector<std::vector<Scalar>> biases;
  std::vector<ScoreView<const Scalar>> bias_views;

  explicit Input(const std::vector<Index>& sequence_lengths, bool biased = false)
      : lengths(sequence_lengths) {
    std::mt19937_64 engine(17);
    for (const Index length : lengths) {
      const std::vector<Scalar> rows = normal_numbers<Scalar>(length * shape.model_dim, engine);
      x.insert(x.end(), rows.begin(), rows.end());
      if (!biased) continue;
      biases.push_back(normal_numbers<Scalar>(length * length, engine));
      for (std::size_t i = 1; i < biases.back().size(); i += 3)
        biases.back()[i] = -std::numeric_limits<Scalar>::infinity();
      bias_views.push_back({biases.back().data(), 1, length, length});
    }
  }

  Index tokens() const { return static_cast<Index>(x.size()) / shape.model_dim; }
  Batch<Scalar> batch() const {
    return {.x = {x.data(), tokens(), shape.model_dim},
            .lengths = lengths,
            .positions = positions,
            .score_bias = bias_views};
  }
};

/// Layers that differ in what the second copy of the queries goes through.
template <class Scalar>
auto turned(const StreamingWindow& mask) {
  return compose<Scalar>(shape, Rope<>{.theta = 100}, mask);
}
template <class Scalar>
auto gated(const StreamingWindow& mask) {
  return compose<Scalar>(shape, ProjectionBias<at::Query, at::Key>{}, Gate<at::Query, HeadMean>{},
                         QkNorm<>{.eps = 1e-6}, Gate<at::Query, Headwise, Bias>{},
                         Rope<pairing::Interleaved>{.theta = 50, .rotary_dim = 4, .first_dim = 2},
                         Normalize<at::Query, RmsNorm<weight::Plain, over::Row>>{.eps = 1e-6},
                         Gate<at::Key>{}, mask, Gate<at::Sdpa>{}, Gate<at::Output>{});
}
template <class Scalar>
auto scored(const StreamingWindow& mask) {
  return compose<Scalar>(shape, Alibi{}, Softcap{.cap = 3}, ScoreBias{}, mask, LearnedSink{},
                         Rope<>{.theta = 1e4, .rotary_dim = 2}, Gate<at::Sdpa, Headwise>{});
}

template <class Scalar, class Compose>
void check_windows(const Compose& composed, const Input<Scalar>& input,
                   const std::vector<Index>& kept_keys, const std::vector<Index>& windows) {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  for (const KeyPositions positions : both_positions)
    for (const Index kept : kept_keys)
      for (const Index window : windows) {
        const auto layer =
            composed(StreamingWindow{.kept = kept, .window = window, .positions = positions});
        SCOPED_TRACE(describe(layer) + ", " + std::to_string(input.tokens()) + " tokens");
        check(layer, drawn(Parameters<Scalar>(layer)), input.batch());
      }
}

template <class Scalar>
void check_all_windows() {
  for (const Index tokens : {1, 2, 65, 129})
    check_windows<Scalar>(turned<Scalar>, Input<Scalar>({tokens}), {0, 1, 5, 64, 70, 200},
                          {1, 2, 7, 64, 100, 300});
  const Input<Scalar> long_one({400}), ragged({70, 0, 1, 150}), biased({150, 3}, true);
  for (const Index kept : {1, 70})
    for (const Index window : {1, 33, 200})
      check_windows<Scalar>(turned<Scalar>, long_one, {kept}, {window});
  check_windows<Scalar>(gated<Scalar>, ragged, {0, 5, 64, 70}, {1, 20, 64});
  check_windows<Scalar>(scored<Scalar>, biased, {0, 1, 64, 70}, {1, 20, 140});
  Input<Scalar> moved({40, 30});
  for (Index t = 0; t < 70; ++t) moved.positions.push_back(1000 + 3 * t);
  check_windows<Scalar>(gated<Scalar>, moved, {4}, {9});
}

TEST(StreamingWindow, IsTheReferenceInFloat) {
  check_all_windows<float>();
}
TEST(StreamingWindow, IsTheReferenceInDouble) {
  check_all_windows<double>();
}

TEST(StreamingWindow, IsTheReferenceAcrossRestarts) {
  const Input<double> plain({2200}), biased({2100}, true);
  check_windows<double>(turned<double>, plain, {2070}, {30});
  check_windows<double>(scored<double>, biased, {70}, {2060});
  check_windows<float>(gated<float>, Input<float>({2200}), {5}, {500});
}

TEST(StreamingWindow, OverAContextIsTheReference) {
  Shape cross = shape;
  cross.context_dim = 9;
  std::mt19937_64 engine(4);
  const std::vector<double> x = normal_numbers<double>(50 * shape.model_dim, engine),
                            context = normal_numbers<double>(180 * 9, engine);
  const std::vector<Index> lengths = {30, 20}, context_lengths = {170, 10};
  for (const KeyPositions positions : both_positions) {
    const auto layer = compose<double>(
        cross, Rope<>{.theta = 100}, Gate<at::Query>{},
        StreamingWindow{.kept = 6, .window = 12, .positions = positions}, Gate<at::Sdpa>{});
    check(layer, drawn(Parameters<double>(layer)),
          {.x = {x.data(), 50, shape.model_dim},
           .lengths = lengths,
           .context = {context.data(), 180, 9},
           .context_lengths = context_lengths});
  }
}

/// The outputs of forward.
template <class Layer, class Scalar = typename Layer::Scalar>
std::vector<Scalar> forward(const Layer& layer, const Batch<Scalar>& batch) {
  const auto weights = pack(layer, drawn(Parameters<Scalar>(layer)));
  Workspace workspace(
      layer, {.tokens = batch.x.rows(), .sequences = sequences_of(batch.lengths), .threads = 1});
  std::vector<Scalar> y(at(batch.x.rows() * shape.model_dim));
  layer.forward(batch, weights, workspace, {y.data(), batch.x.rows(), shape.model_dim});
  return y;
}

template <class Scalar>
void check_special_cases() {
  const Input<Scalar> input({300, 40});
  const auto with = [&](const auto& mask) {
    return forward(compose<Scalar>(shape, QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 100},
                                   Gate<at::Query>{}, mask, Alibi{}, Gate<at::Sdpa>{}),
                   input.batch());
  };
  const std::vector<Scalar> causal = with(Causal{});
  for (const KeyPositions positions : both_positions) {
    for (const Index window : {1, 33, 130})
      EXPECT_EQ(with(StreamingWindow{.kept = 0, .window = window, .positions = positions}),
                with(SlidingWindow{.window = window}))
          << window;
    for (const Index kept : {0, 5, 300, 1000})
      for (const Index window : {300, 4000})
        EXPECT_EQ(with(StreamingWindow{.kept = kept, .window = window, .positions = positions}),
                  causal)
            << kept << " " << window;
  }
  // Every key that is not of the window is a kept one, at the distance that it has.
  const std::vector<Scalar> all_kept = with(StreamingWindow{.kept = 300, .window = 10});
  EXPECT_LE(relative_error(all_kept, {causal.begin(), causal.end()}), tolerance<Scalar>());
}

TEST(StreamingWindow, WithoutKeptKeysOrWithAWideWindowHasTheBitsOfTheOtherMasks) {
  check_special_cases<float>();
  check_special_cases<double>();
}

/// Tokens that the last of n sees, by the words of the mask.
std::vector<Index> seen(Index n, Index kept, Index window) {
  std::vector<Index> tokens;
  for (Index t = 0; t < n; ++t)
    if (t < kept || t >= n - window) tokens.push_back(t);
  return tokens;
}

/// In-cache positions are those of a sequence from which the tokens between the runs were taken out;
/// absolute ones are the tokens' own.
template <class... Stages>
void check_gap(const Stages&... stages) {
  const Input<double> input({200});
  const auto kept_apart = compose<double>(shape, stages..., Causal{});
  for (const Index kept : {1, 5, 64})
    for (const Index window : {1, 7, 64, 70}) {
      const Index n = 200;
      std::vector<double> x;
      std::vector<Index> tokens = seen(n, kept, window);
      for (const Index t : tokens)
        x.insert(x.end(), input.x.begin() + t * shape.model_dim,
                 input.x.begin() + (t + 1) * shape.model_dim);
      const Index rows = static_cast<Index>(tokens.size());
      const auto last = [&](const std::vector<double>& y) {
        return std::vector<double>(y.end() - shape.model_dim, y.end());
      };
      for (const KeyPositions positions : both_positions) {
        const auto layer = compose<double>(
            shape, stages...,
            StreamingWindow{.kept = kept, .window = window, .positions = positions});
        Batch<double> batch{.x = {x.data(), rows, shape.model_dim}};
        if (positions == KeyPositions::absolute) batch.positions = tokens;
        EXPECT_LE(
            relative_error(last(forward(layer, input.batch())), last(forward(kept_apart, batch))),
            1e-12)
            << kept << " kept, window " << window;
      }
    }
}

TEST(StreamingWindow, SeesWhatIsLeftWhenTheGapIsTakenOut) {
  check_gap(Rope<>{.theta = 100}, Gate<at::Sdpa>{});
  check_gap(QkNorm<>{.eps = 1e-6}, Gate<at::Query>{}, Rope<>{.theta = 10, .rotary_dim = 4},
            Gate<at::Sdpa>{});
}

TEST(StreamingWindow, AtInCachePositionsAlibiTooCountsOnlyTheKeysThatAreSeen) {
  const Input<double> input({200});
  const std::vector<Index> tokens = seen(200, 5, 30);
  std::vector<double> x;
  for (const Index t : tokens)
    x.insert(x.end(), input.x.begin() + t * shape.model_dim,
             input.x.begin() + (t + 1) * shape.model_dim);
  const auto last = [](const std::vector<double>& y) {
    return std::vector<double>(y.end() - shape.model_dim, y.end());
  };
  const Batch<double> close_up{.x = {x.data(), 35, shape.model_dim}};
  const std::vector<double> wanted = last(forward(compose<double>(shape, Alibi{}), close_up));
  const auto with = [&](KeyPositions positions) {
    const StreamingWindow mask{.kept = 5, .window = 30, .positions = positions};
    return last(forward(compose<double>(shape, Alibi{}, mask), input.batch()));
  };
  EXPECT_LE(relative_error(with(KeyPositions::in_cache), wanted), 1e-12);
  EXPECT_GT(relative_error(with(KeyPositions::absolute), wanted), 1e-3);
}

TEST(StreamingWindow, IsDescribedWithBothNumbers) {
  const auto text = [](const StreamingWindow& mask) {
    const std::string sentence = describe(compose<float>(shape, mask));
    return sentence.substr(sentence.find("; ") + 2);
  };
  EXPECT_EQ(text({.kept = 4, .window = 512}), "sliding window of 512 behind the first 4 keys");
  EXPECT_EQ(text({.kept = 4, .window = 512, .positions = KeyPositions::in_cache}),
            "sliding window of 512 behind the first 4 keys, positions in the cache");
}

TEST(StreamingWindow, WithNumbersThatMakeNoSenseIsRefused) {
  const auto made = [](Index kept, Index window) {
    return message_of(
        [&] { compose<float>(shape, StreamingWindow{.kept = kept, .window = window}); });
  };
  EXPECT_EQ(made(4, 0), "StreamingWindow: window is 0, the least is 1");
  EXPECT_EQ(made(-1, 4), "StreamingWindow: kept is -1, the least is 0");
}

}  // namespace
}  // namespace gated_attention::layers
