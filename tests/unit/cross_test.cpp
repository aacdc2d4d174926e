// SPDX-License-Identifier: MIT
#include "unit/layer_support.hpp"

// Stages on scores in whole layers, and keys and values from a context.

namespace gated_attention::layers {
namespace {

constexpr Shape self{
    .model_dim = 12, .query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5};
constexpr Shape cross{.model_dim = 12,
                      .query_heads = 4,
                      .kv_heads = 2,
                      .head_dim = 6,
                      .value_dim = 5,
                      .context_dim = 9};

/// Two streams, ragged on both sides: more than 128 keys in one sequence, none in another, one without
/// queries.
template <class Scalar>
struct Streams {
  std::vector<Index> lengths = {3, 2, 0, 6}, context_lengths = {140, 0, 4, 3};
  std::vector<Index> positions, context_positions;
  std::vector<Scalar> x, context;
  std::vector<std::vector<Scalar>> biases;
  std::vector<ScoreView<const Scalar>> views;

  Streams() {
    std::mt19937_64 engine(2);
    x = normal_numbers<Scalar>(11 * 12, engine);
    context = normal_numbers<Scalar>(147 * 9, engine);
    for (Index i = 0; i < 11; ++i) positions.push_back(100 - 3 * i);
    for (Index i = 0; i < 147; ++i) context_positions.push_back(2 * i + 1);
    for (std::size_t i = 0; i < 4; ++i)
      biases.push_back(normal_numbers<Scalar>(lengths[i] * context_lengths[i], engine));
    for (Index s = 0; s < 3; ++s) biases[3][at(3 + s)] = -std::numeric_limits<Scalar>::infinity();
    for (std::size_t i = 0; i < 4; ++i)
      views.emplace_back(biases[i].data(), 1, lengths[i], context_lengths[i]);
  }
  Batch<Scalar> batch() const {
    return {.x = {x.data(), 11, 12},
            .lengths = lengths,
            .context = {context.data(), 147, 9},
            .context_lengths = context_lengths};
  }
};

template <class Scalar>
void check_cross() {
  const Streams<Scalar> streams;
  const auto run = [&](const auto& layer, const Batch<Scalar>& batch) {
    check(layer, drawn(Parameters<Scalar>(layer)), batch);
  };
  Batch<Scalar> batch = streams.batch();
  run(compose<Scalar>(cross, Bidirectional{}, Gate<at::Sdpa>{}), batch);
  run(compose<Scalar>(cross, Gate<at::Query, Bias>{}, Gate<at::Key, Headwise>{}, Gate<at::Value>{},
                      Causal{}, ProjectionBias<at::Query, at::Key, at::Value, at::Output>{},
                      LearnedSink{}, Gate<at::Output>{}),
      batch);
  batch.positions = streams.positions;
  batch.context_positions = streams.context_positions;
  batch.score_bias = streams.views;
  run(compose<Scalar>(cross, QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 100}, Softcap{.cap = 2},
                      ScoreBias{}, Alibi{}, BidirectionalWindow{.left = 120, .right = 3},
                      Gate<at::Sdpa, LowRank<3>>{}, Gate<at::Key, FirstChannels<4>>{}),
      batch);
}

TEST(Cross, AContextOfItsOwnWidthIsTheReferenceInFloat) {
  check_cross<float>();
}
TEST(Cross, AContextOfItsOwnWidthIsTheReferenceInDouble) {
  check_cross<double>();
}

template <class Scalar>
void check_prepared() {
  const Streams<Scalar> streams;
  const auto layer =
      compose<Scalar>(cross, QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 100}, Bidirectional{},
                      Gate<at::Sdpa>{}, Gate<at::Value, Headwise>{});
  const auto weights = pack(layer, drawn(Parameters<Scalar>(layer)));
  Workspace workspace(layer, {.tokens = 11, .sequences = 4, .threads = 1, .context_tokens = 147});
  Batch<Scalar> batch = streams.batch();
  batch.context_positions = streams.context_positions;
  std::vector<Scalar> y(11 * 12), again(11 * 12);
  layer.forward(batch, weights, workspace, {y.data(), 11, 12});
  Context context(layer, {.tokens = 147, .sequences = 4});
  layer.prepare_context(batch, weights, workspace, context);
  EXPECT_EQ(context.sequences(), 4);
  EXPECT_EQ(context.keys(0), 140);
  EXPECT_EQ(context.keys(1), 0);
  batch.context = {};
  batch.context_lengths = batch.context_positions = {};
  Workspace small(layer, {.tokens = 11, .sequences = 4, .threads = 1});
  for (int call = 0; call < 2; ++call) {
    std::fill(again.begin(), again.end(), std::numeric_limits<Scalar>::quiet_NaN());
    layer.forward(batch, weights, context, small, {again.data(), 11, 12});
    EXPECT_EQ(y, again);
  }
}

TEST(Cross, APreparedContextHasTheBitsOfOneInTheBatchInFloat) {
  check_prepared<float>();
}
TEST(Cross, APreparedContextHasTheBitsOfOneInTheBatchInDouble) {
  check_prepared<double>();
}

TEST(Cross, TheGateReadsTheQueriesStream) {
  Shape shape = cross;
  shape.context_dim = shape.model_dim;
  const auto layer = compose<double>(shape, Bidirectional{}, Gate<at::Sdpa>{});
  const Parameters<double> parameters = drawn(Parameters<double>(layer));
  std::mt19937_64 engine(4);
  const std::vector<double> x = normal_numbers<double>(5 * 12, engine),
                            other = normal_numbers<double>(5 * 12, engine);
  const Batch<double> batch{.x = {x.data(), 5, 12}, .context = {other.data(), 5, 12}};
  const Given<double> given = check(layer, parameters, batch);
  // The same gate on the context's rows gives other scores.
  const reference::Result wrong = reference::forward(
      layer, parameters,
      Batch<double>{.x = {other.data(), 5, 12}, .context = {other.data(), 5, 12}});
  EXPECT_GT(relative_error(given.scores[3], wrong.gate_scores[3].values), 0.1);
}

TEST(Cross, MisuseIsRefusedWithBothNumbers) {
  const Streams<float> streams;
  const auto layer = compose<float>(cross, Bidirectional{});
  const auto weights = pack(layer, Parameters<float>(layer));
  Workspace workspace(layer, {.tokens = 11, .sequences = 4, .threads = 1, .context_tokens = 147});
  std::vector<float> y(11 * 12);
  const auto refused = [&](const Batch<float>& batch) {
    return message_of([&] { layer.forward(batch, weights, workspace, {y.data(), 11, 12}); });
  };
  Batch<float> batch = streams.batch();
  batch.context = {};
  EXPECT_EQ(refused(batch),
            "GatedAttention::forward: context has 0 columns, the layer's context_dim is 9");
  batch = streams.batch();
  batch.context_lengths = batch.context_lengths.first(3);
  EXPECT_EQ(refused(batch),
            "GatedAttention::forward: the context_lengths sum to 144, context has 147 rows");
  const std::vector<Index> three = {140, 4, 3}, negative = {150, -3, 0, 0};
  batch.context_lengths = three;
  EXPECT_EQ(refused(batch), "GatedAttention::forward: there are 4 sequences and 3 contexts");
  batch.context_lengths = negative;
  EXPECT_EQ(refused(batch),
            "GatedAttention::forward: one of the context_lengths is 150 behind a sum of 0, context "
            "has 147 rows");
  batch = streams.batch();
  batch.context_positions = streams.positions;
  EXPECT_EQ(refused(batch),
            "GatedAttention::forward: there are 11 positions, context has 147 rows");
  const Context<GatedAttention<float, Bidirectional>> context(layer,
                                                              {.tokens = 147, .sequences = 4});
  EXPECT_EQ(message_of([&] {
              layer.forward(streams.batch(), weights, context, workspace, {y.data(), 11, 12});
            }),
            "GatedAttention::forward: context has 9 columns, beside a prepared context it takes 0");
  Context small(layer, {.tokens = 100, .sequences = 4});
  EXPECT_EQ(message_of([&] { layer.prepare_context(streams.batch(), weights, workspace, small); }),
            "GatedAttention::prepare_context: 147 tokens in 4 sequences, the context was made for "
            "100 in 4");
  const auto alone = compose<float>(self, Bidirectional{});
  const auto own = pack(alone, Parameters<float>(alone));
  Workspace own_workspace(alone, {.tokens = 11, .sequences = 4, .threads = 1});
  EXPECT_EQ(message_of([&] {
              alone.forward(streams.batch(), own, own_workspace, {y.data(), 11, 12});
            }),
            "GatedAttention::forward: context has 9 columns, the layer's context_dim is 0");
}

/// Self-attention in whole layers: all stages at once, first-token attention through them, rows that
/// see nothing.
template <class Scalar, class Mask>
void check_self(const Mask& mask) {
  std::mt19937_64 engine(6);
  const std::vector<Index> lengths = {4, 0, 7}, prefixes = {2, 0, 5};
  const std::vector<Scalar> x = normal_numbers<Scalar>(11 * 12, engine);
  std::vector<Scalar> bias = normal_numbers<Scalar>(4 * 7 * 7, engine);
  for (Index s = 0; s < 7; ++s) bias[at(2 * 7 + s)] = -std::numeric_limits<Scalar>::infinity();
  bool seen[7];
  for (Index s = 0; s < 7; ++s) seen[s] = s != 3 && s != 0;
  const std::vector<ScoreView<const Scalar>> biases = {
      {bias.data(), 1, 4, 4}, {bias.data(), 4, 1, 0}, {bias.data(), 4, 7, 7}};
  const std::vector<ScoreView<const bool>> masks = {
      {seen, 1, 1, 4}, {seen, 1, 1, 0}, {seen, 1, 1, 7}};
  Batch<Scalar> batch{
      .x = {x.data(), 11, 12}, .lengths = lengths, .score_bias = biases, .boolean_mask = masks};
  if (std::is_same_v<Mask, PrefixCausal>) batch.prefixes = prefixes;
  const auto plain =
      compose<Scalar>(self, mask, ScoreBias{}, Softcap{.cap = 3}, BooleanMask{}, Gate<at::Sdpa>{});
  const auto sunk =
      compose<Scalar>(self, Alibi{}, BooleanMask{}, ScoreBias{}, SoftmaxScale{.scale = 0.7}, mask,
                      LearnedSink{}, Gate<at::Sdpa, Headwise>{});
  check(plain, drawn(Parameters<Scalar>(plain)), batch);
  check(sunk, drawn(Parameters<Scalar>(sunk)), batch);
}

template <class Scalar>
void check_self_masks() {
  check_self<Scalar>(Causal{});
  check_self<Scalar>(PrefixCausal{});
  check_self<Scalar>(CausalTopLeft{});
  check_self<Scalar>(BidirectionalWindow{.left = 1, .right = 2});
}

TEST(ScoresInALayer, AreTheReferenceInFloat) {
  check_self_masks<float>();
}
TEST(ScoresInALayer, AreTheReferenceInDouble) {
  check_self_masks<double>();
}

}  // namespace
}  // namespace gated_attention::layers
