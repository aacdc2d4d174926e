// SPDX-License-Identifier: MIT
// On one thread a call allocates nothing; a workspace is as large as it says and linear in tokens.
#include "alloc/counted_allocations.hpp"
#include "bitwise/running_layer.hpp"

namespace gated_attention::test {
namespace {

TEST(Allocation, IsCounted) {
  const void* volatile kept = nullptr;  // what nobody looks at need not be allocated
  EXPECT_GE(allocations_of([&] {
              const std::vector<float> some(1000, 1.0F);
              kept = some.data();
            }),
            1);
  EXPECT_GE(allocations_of([&] {
              const detail::AlignedBytes some(1000);
              kept = some.data();
            }),
            1);
}

template <class Running>
void expect_no_allocation(const Running& running) {
  using Scalar = typename Running::Scalar;
  const Index tokens = 150;
  const auto x = running.input(tokens);
  const std::vector<Index> lengths = {100, 0, 50}, positions(tokens, 3);
  std::vector<Scalar> y(x.size());
  std::vector<Scalar> log_sum_exp(
      static_cast<std::size_t>(tokens * running.layer.shape().query_heads));
  Workspace workspace(running.layer, {.tokens = tokens, .sequences = 3, .threads = 1});
  const MatrixView<Scalar> to(y.data(), tokens, running.model_dim());
  const Batch<Scalar> batch{.x = {x.data(), tokens, running.model_dim()}};
  EXPECT_EQ(allocations_of([&] { running.layer.forward(batch, running.weights, workspace, to); }),
            0)
      << "first call";
  EXPECT_EQ(allocations_of([&] {
              Batch<Scalar> ragged = batch;
              ragged.lengths = lengths;
              ragged.positions = positions;
              running.layer.forward(
                  ragged, running.weights, workspace, to,
                  {.log_sum_exp = {log_sum_exp.data(), tokens, running.layer.shape().query_heads}});
            }),
            0)
      << "ragged";
}

TEST(Allocation, NoneInForwardOnOneThread) {
  expect_no_allocation(causal_layer());
  expect_no_allocation(window_layer());
  expect_no_allocation(bidirectional_layer());
}

template <class Scalar>
void expect_no_allocation_in_attend() {
  const Attend<Scalar, SlidingWindow, Gate<at::Sdpa, Headwise>,
               Normalize<at::Sdpa, RmsNorm<weight::Weightless>>, Scale<at::Sdpa>>
      attend({.query_heads = 4, .kv_heads = 2, .head_dim = 20}, SlidingWindow{.window = 100},
             Normalize<at::Sdpa, RmsNorm<weight::Weightless>>{.eps = 1e-6},
             Scale<at::Sdpa>{.factor = 2});
  const auto numbers = normal_numbers<Scalar>(200 * 80, 1);
  std::vector<Scalar> out(200 * 80);
  AttendWorkspace workspace(attend, {.tokens = 200, .keys = 200, .threads = 1});
  EXPECT_EQ(allocations_of([&] {
              attend({.q = {numbers.data(), 200, 4, 20},
                      .k = {numbers.data(), 200, 2, 20},
                      .v = {numbers.data(), 200, 2, 20},
                      .gate_logits = {numbers.data(), 200, 4, 1}},
                     workspace, {out.data(), 200, 4, 20});
            }),
            0);
}

/// Two streams, prepared in the call and before it, prefixes, and every kind of stage on scores.
template <class Scalar>
void expect_no_allocation_over_two_streams() {
  const auto layer = compose<Scalar>(
      {.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 10, .context_dim = 30},
      PrefixCausal{}, Softcap{.cap = 5}, Alibi{}, ScoreBias{}, BooleanMask{}, LearnedSink{},
      SoftmaxScale{.scale = 0.3}, Gate<at::Sdpa, LowRank<2>>{}, Gate<at::Key, FirstChannels<5>>{});
  const auto weights = pack(layer, Parameters<Scalar>(layer));
  const std::vector<Scalar> numbers = normal_numbers<Scalar>(200 * 30, 1);
  const bool all[200] = {true};
  const std::vector<Index> lengths = {3, 17}, context_lengths = {150, 50}, prefixes = {9, 0};
  std::vector<ScoreView<const Scalar>> biases;
  std::vector<ScoreView<const bool>> masks;
  for (const Index keys : context_lengths) {
    biases.emplace_back(numbers.data(), 1, 1, keys);
    masks.emplace_back(all, 1, 1, keys);
  }
  Batch<Scalar> batch{.x = {numbers.data(), 20, 24},
                      .lengths = lengths,
                      .context = {numbers.data(), 200, 30},
                      .context_lengths = context_lengths,
                      .prefixes = prefixes,
                      .score_bias = biases,
                      .boolean_mask = masks};
  std::vector<Scalar> y(20 * 24);
  Workspace workspace(layer, {.tokens = 20, .sequences = 2, .threads = 1, .context_tokens = 200});
  Context context(layer, {.tokens = 200, .sequences = 2});
  const MatrixView<Scalar> to(y.data(), 20, 24);
  EXPECT_EQ(allocations_of([&] { layer.forward(batch, weights, workspace, to); }), 0);
  EXPECT_EQ(allocations_of([&] { layer.prepare_context(batch, weights, workspace, context); }), 0);
  batch.context = {};
  batch.context_lengths = {};
  EXPECT_EQ(allocations_of([&] { layer.forward(batch, weights, context, workspace, to); }), 0);
}

TEST(Allocation, NoneOverTwoStreamsOnOneThread) {
  expect_no_allocation_over_two_streams<float>();
  expect_no_allocation_over_two_streams<double>();
}

TEST(Allocation, NoneInAttendOnOneThread) {
  expect_no_allocation_in_attend<float>();
  expect_no_allocation_in_attend<double>();
}

template <class Running>
void expect_linear(const Running& running, Index sequences) {
  const auto bytes = [&](Index tokens) {
    return running.layer.workspace_bytes({.tokens = tokens, .sequences = sequences, .threads = 2});
  };
  // Scratch that is bounded in tokens is there from 512 on: equal steps from then on, but for whole tiles.
  const double step = static_cast<double>(bytes(2048) - bytes(1024));
  EXPECT_NEAR(static_cast<double>(bytes(3072) - bytes(2048)), step, step / 1000);
  EXPECT_NEAR(static_cast<double>(bytes(1024 * 33) - bytes(1024 * 32)), step, step / 1000);
  EXPECT_LE(bytes(16384), 2 * bytes(8192));
  EXPECT_LE(bytes(512), bytes(1024));
}

TEST(WorkspaceBytes, AreLinearInTokens) {
  expect_linear(causal_layer(), 1);
  expect_linear(causal_layer(), 17);
  expect_linear(window_layer(), 4);
  expect_linear(
      RunningLayer(compose<float>(
          {.model_dim = 256, .query_heads = 4, .kv_heads = 2, .head_dim = 128}, Gate<at::Sdpa>{})),
      1);
}

// N = 8192, 16 query heads, 4 kv heads, head_dim 128
TEST(WorkspaceBytes, OfAttendsOwnPartAreFew) {
  const Index tokens = 8192, dim = 128, scalar = 4;
  const Attend<float, Causal, Gate<at::Sdpa>> attend(
      {.query_heads = 16, .kv_heads = 4, .head_dim = dim});
  for (const Index threads : {1, 2, 8, 32}) {
    const Index packed = tokens * 4 * 2 * dim * scalar;
    const Index own =
        attend.workspace_bytes({.tokens = tokens, .keys = tokens, .threads = threads}) - packed;
    EXPECT_GE(own, 0);
    EXPECT_LE(own, Index{64} << 20) << threads << " threads";
  }
  const auto layer = compose<float>(
      {.model_dim = 64, .query_heads = 16, .kv_heads = 4, .head_dim = dim}, Gate<at::Sdpa>{});
  const Index columns = (16 + 4 + 4 + 16) * dim, blocks = 4 * 2 * dim, output = 16 * dim;
  const Index own = layer.workspace_bytes({.tokens = tokens, .threads = 2}) -
                    tokens * (columns + blocks + output) * scalar;
  EXPECT_GE(own, 0);
  EXPECT_LE(own, Index{64} << 20);
}

// Offsets beyond 32 bits, and beyond 64.
TEST(WorkspaceBytes, AreCountedInSixtyFourBits) {
  const auto layer = compose<float>(
      {.model_dim = 64, .query_heads = 16, .kv_heads = 4, .head_dim = 128}, Gate<at::Sdpa>{});
  const auto bytes = [&](Index tokens) {
    return layer.workspace_bytes({.tokens = tokens, .threads = 1});
  };
  const double step = static_cast<double>(bytes(Index{1} << 31) - bytes(Index{1} << 30));
  EXPECT_NEAR(step / static_cast<double>((Index{1} << 20) * (bytes(4096) - bytes(3072))), 1, 1e-3);
  EXPECT_THROW(static_cast<void>(bytes(Index{1} << 58)), ShapeError);
  EXPECT_THROW(static_cast<void>(bytes(std::numeric_limits<Index>::max())), ShapeError);
}

template <class Running>
void expect_exact(const Running& running) {
  const Limits limits{.tokens = 77, .sequences = 3, .threads = 2};
  const Index needed = running.layer.workspace_bytes(limits);
  const detail::AlignedBytes memory(needed + 64);
  const auto span = [&](Index bytes) {
    return std::span<std::byte>(memory.data(), static_cast<std::size_t>(bytes));
  };
  try {
    Workspace workspace(running.layer, limits, span(needed - 1));
    ADD_FAILURE() << "one byte less was accepted";
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(needed)), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(needed - 1)), std::string::npos) << text;
  }
  std::fill_n(memory.data(), needed + 64, std::byte{0x5a});
  Workspace workspace(running.layer, limits, span(needed));
  const auto x = running.input(77);
  auto y = x;
  const std::vector<Index> lengths = {70, 0, 7};
  running.layer.forward({.x = {x.data(), 77, running.model_dim()}, .lengths = lengths},
                        running.weights, workspace, {y.data(), 77, running.model_dim()});
  EXPECT_TRUE(same_bits(y, running.forward(x, lengths)));
  for (Index i = needed; i < needed + 64; ++i)
    EXPECT_EQ(memory.data()[i], std::byte{0x5a}) << "behind the workspace";
}

TEST(WorkspaceBytes, AreExact) {
  expect_exact(causal_layer());
  expect_exact(window_layer());
  expect_exact(bidirectional_layer());
}

}  // namespace
}  // namespace gated_attention::test
