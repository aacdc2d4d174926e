// SPDX-License-Identifier: MIT
#include <thread>

#include "gated_attention/layer/gated_attention.hpp"
#include "unit/layer_support.hpp"

// Keys and values from a context: prepared once, beside the gate's own stream, and misuse. (Every mask, score stage and
// gate over two streams against the reference: tests/cover.)

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

  Streams() {
    std::mt19937_64 engine(2);
    x = normal_numbers<Scalar>(11 * 12, engine);
    context = normal_numbers<Scalar>(147 * 9, engine);
    for (Index i = 0; i < 11; ++i) positions.push_back(100 - 3 * i);
    for (Index i = 0; i < 147; ++i) context_positions.push_back(2 * i + 1);
  }
  Batch<Scalar> batch() const {
    return {.x = {x.data(), 11, 12},
            .lengths = lengths,
            .context = {context.data(), 147, 9},
            .context_lengths = context_lengths};
  }
};

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
  // Several callers at a time, who share the context.
  std::vector<std::vector<Scalar>> own(3, std::vector<Scalar>(11 * 12));
  std::vector<std::thread> callers;
  for (std::vector<Scalar>& to : own)
    callers.emplace_back([&] {
      Workspace workspace_of_its_own(layer, {.tokens = 11, .sequences = 4, .threads = 1});
      for (int call = 0; call < 5; ++call)
        layer.forward(batch, weights, context, workspace_of_its_own, {to.data(), 11, 12});
    });
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<Scalar>& to : own) EXPECT_EQ(y, to);
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
  batch = streams.batch();
  std::vector<float> shared = streams.context;
  batch.context = {shared.data(), 147, 9};
  EXPECT_EQ(message_of([&] {
              layer.forward(batch, weights, workspace, {shared.data() + 4, 11, 12});
            }),
            "GatedAttention::forward: y overlaps context 4 elements behind its start: y must be "
            "context itself or lie apart from it");
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

}  // namespace
}  // namespace gated_attention::layers
