// SPDX-License-Identifier: MIT
// A token's output has the same bits whatever runs beside it.
#include <thread>

#include "bitwise/running_layer.hpp"

namespace gated_attention::test {
namespace {

/// 300 tokens: several softmax steps, tiles and blocks, and a rest in each.
constexpr Index tokens = 300;

template <class Running>
void expect_same_on_threads(const Running& running) {
  // Enough work that each of the four steps wakes its threads.
  const auto x = running.input(900);
  const std::vector<Index> lengths = {70, 0, 130, 1, 699};
  const auto alone = running.forward(x), batch = running.forward(x, lengths);
  for (Index threads = 2; threads <= 7; ++threads) {
    EXPECT_TRUE(same_bits(alone, running.forward(x, {}, threads))) << threads << " threads";
    EXPECT_TRUE(same_bits(batch, running.forward(x, lengths, threads))) << threads << " threads";
  }
}

TEST(ForwardBits, DoNotDependOnThreads) {
  expect_same_on_threads(causal_layer());
  expect_same_on_threads(window_layer());
  expect_same_on_threads(bidirectional_layer());
}

TEST(ForwardBits, DoNotDependOnTheRun) {
  const auto running = causal_layer();
  const auto x = running.input(900);
  const auto first = running.forward(x, {}, 4);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(same_bits(first, running.forward(x, {}, 4)));
}

template <class Running>
void expect_same_alone_and_in_a_batch(const Running& running) {
  using Scalar = typename Running::Scalar;
  for (const Index length : {Index{1}, Index{5}, Index{64}, Index{65}, Index{131}}) {
    const auto own = running.input(length, 100);
    const auto alone = running.forward(own);
    for (const std::vector<Index>& around :
         {std::vector<Index>{0, 0}, {1, 0}, {0, 1}, {3, 200}, {63, 1}, {200, 7}, {64, 64}}) {
      std::vector<Scalar> x = running.input(around[0], 5);
      x.insert(x.end(), own.begin(), own.end());
      const auto behind = running.input(around[1], 6);
      x.insert(x.end(), behind.begin(), behind.end());
      const auto y = running.forward(x, {around[0], 0, length, 0, around[1]});
      EXPECT_TRUE(same_bits(std::span<const Scalar>(alone), running.rows(y, around[0], length)))
          << length << " tokens between " << around[0] << " and " << around[1];
    }
  }
}

TEST(ForwardBits, AreTheSameAloneAndInABatch) {
  expect_same_alone_and_in_a_batch(causal_layer());
  expect_same_alone_and_in_a_batch(window_layer());
  expect_same_alone_and_in_a_batch(bidirectional_layer());
}

// ml-explore/mlx#3573; ggml-org/llama.cpp#4479; openvino#30482; pytorch/pytorch#176091; llama.cpp#22956
template <class Running>
void expect_same_when_truncated(const Running& running) {
  using Scalar = typename Running::Scalar;
  const auto x = running.input(200);
  const auto whole = running.forward(x);
  std::vector<Index> lengths(40);
  for (Index t = 1; t <= 40; ++t) lengths[static_cast<std::size_t>(t - 1)] = t;
  lengths.insert(lengths.end(), {63, 64, 65, 127, 128, 129, 193});
  for (const Index t : lengths) {
    const auto cut = running.rows(x, 0, t);
    const auto y = running.forward(std::vector<Scalar>(cut.begin(), cut.end()));
    EXPECT_TRUE(same_bits(std::span<const Scalar>(y), running.rows(whole, 0, t))) << "T = " << t;
  }
}

TEST(ForwardBits, OfARowDoNotDependOnLaterTokens) {
  expect_same_when_truncated(causal_layer());
  expect_same_when_truncated(window_layer());
}

/// Rows that do not see token `bad` keep their bits when it is not finite; rows that see it do not.
template <class Running>
void expect_unseen(const Running& running, Index bad, Index first_seeing, Index last_seeing) {
  using Scalar = typename Running::Scalar;
  auto x = running.input(tokens);
  const auto clean = running.forward(x);
  for (const Scalar value : {nan<Scalar>, infinity<Scalar>, -infinity<Scalar>}) {
    std::fill_n(x.begin() + bad * running.model_dim(), running.model_dim(), value);
    const auto y = running.forward(x);
    EXPECT_TRUE(same_bits(running.rows(clean, 0, first_seeing), running.rows(y, 0, first_seeing)))
        << value << " in token " << bad;
    EXPECT_TRUE(same_bits(running.rows(clean, last_seeing + 1, tokens - last_seeing - 1),
                          running.rows(y, last_seeing + 1, tokens - last_seeing - 1)))
        << value << " in token " << bad;
    if (!std::isnan(value)) continue;
    for (Index t = first_seeing; t <= last_seeing; ++t)
      EXPECT_TRUE(std::isnan(running.rows(y, t, 1)[0])) << "row " << t << " sees token " << bad;
  }
}

TEST(ForwardBits, KeepClearOfNotFiniteTokensBehindTheMask) {
  const auto causal = causal_layer();
  for (const Index bad :
       {1, 2, 3, 4, 5, 6, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 255, 299})
    expect_unseen(causal, bad, bad, tokens - 1);
}

TEST(ForwardBits, KeepClearOfNotFiniteTokensOutsideTheWindow) {
  const auto window = window_layer();
  for (const Index bad :
       {0, 1, 2, 3, 7, 8, 26, 27, 28, 63, 64, 65, 91, 92, 127, 128, 129, 200, 262})
    expect_unseen(window, bad, bad, bad + 36);
}

template <class Running>
void expect_workspace_content_is_meaningless(const Running& running) {
  using Scalar = typename Running::Scalar;
  const auto x = running.input(tokens);
  const std::vector<Index> lengths = {100, 0, 200};
  const auto wanted = running.forward(x, lengths);
  for (const Index threads : {Index{1}, Index{3}}) {
    const Limits limits{.tokens = tokens + 50, .sequences = 5, .threads = threads};
    const detail::AlignedBytes memory(running.layer.workspace_bytes(limits));
    for (const Scalar content :
         {nan<Scalar>, infinity<Scalar>, Scalar(1e30), Scalar(-1e30), Scalar(0)}) {
      Workspace workspace(running.layer, limits,
                          {memory.data(), static_cast<std::size_t>(memory.size())});
      std::fill_n(reinterpret_cast<Scalar*>(memory.data()),
                  memory.size() / static_cast<Index>(sizeof(Scalar)), content);
      std::vector<Scalar> y(x.size(), nan<Scalar>);
      running.layer.forward({.x = {x.data(), tokens, running.model_dim()}, .lengths = lengths},
                            running.weights, workspace, {y.data(), tokens, running.model_dim()});
      EXPECT_TRUE(same_bits(wanted, y)) << "workspace full of " << content;
    }
  }
}

// google/gemma.cpp#608: what was left in the scratch enters the softmax
TEST(ForwardBits, DoNotDependOnWhatTheWorkspaceHolds) {
  expect_workspace_content_is_meaningless(causal_layer());
  expect_workspace_content_is_meaningless(window_layer());
  expect_workspace_content_is_meaningless(bidirectional_layer());
}

// pytorch/pytorch#187504, #187506; ROCm/pytorch#3230; torch-spyre#4331; FlagGems#5896: strides taken for packed
template <class Running>
void expect_strides_are_followed(const Running& running) {
  using Scalar = typename Running::Scalar;
  const Index dim = running.model_dim(), x_stride = dim + 3, y_stride = dim + 5;
  const auto x = running.input(tokens);
  const auto wanted = running.forward(x);
  std::vector<Scalar> wide_x(static_cast<std::size_t>(tokens * x_stride), nan<Scalar>);
  std::vector<Scalar> wide_y(static_cast<std::size_t>(tokens * y_stride), Scalar(-7));
  for (Index t = 0; t < tokens; ++t)
    std::copy_n(x.begin() + t * dim, dim, wide_x.begin() + t * x_stride);
  Workspace workspace(running.layer, {.tokens = tokens, .threads = 2});
  running.layer.forward({.x = {wide_x.data(), tokens, dim, x_stride}}, running.weights, workspace,
                        {wide_y.data(), tokens, dim, y_stride});
  for (Index t = 0; t < tokens; ++t) {
    const std::span<const Scalar> row(wide_y.data() + t * y_stride, static_cast<std::size_t>(dim));
    EXPECT_TRUE(same_bits(running.rows(wanted, t, 1), row)) << "row " << t;
    for (Index gap = dim; gap < y_stride; ++gap)
      EXPECT_EQ(wide_y[static_cast<std::size_t>(t * y_stride + gap)], Scalar(-7))
          << "behind row " << t;
  }
}

TEST(ForwardBits, AreTheSameForRowsWithGaps) {
  expect_strides_are_followed(causal_layer());
  expect_strides_are_followed(window_layer());
}

TEST(ForwardBits, AreTheSameInPlace) {
  const auto running = causal_layer();
  const auto x = running.input(tokens);
  const auto wanted = running.forward(x);
  auto both = x;
  Workspace workspace(running.layer, {.tokens = tokens, .threads = 2});
  running.layer.forward({.x = {both.data(), tokens, running.model_dim()}}, running.weights,
                        workspace, {both.data(), tokens, running.model_dim()});
  EXPECT_TRUE(same_bits(wanted, both));
}

TEST(ForwardBits, AreTheSameSideBySideInOneMatrix) {
  const auto running = causal_layer();
  const Index dim = running.model_dim();
  const auto x = running.input(tokens);
  std::vector<float> both(static_cast<std::size_t>(tokens * 2 * dim));
  for (Index t = 0; t < tokens; ++t)
    std::copy_n(x.begin() + t * dim, dim, both.begin() + t * 2 * dim);
  Workspace workspace(running.layer, {.tokens = tokens, .threads = 1});
  running.layer.forward({.x = {both.data(), tokens, dim, 2 * dim}}, running.weights, workspace,
                        {both.data() + dim, tokens, dim, 2 * dim});
  const auto wanted = running.forward(x);
  for (Index t = 0; t < tokens; ++t)
    EXPECT_TRUE(same_bits(
        running.rows(wanted, t, 1),
        std::span<const float>(both.data() + (2 * t + 1) * dim, static_cast<std::size_t>(dim))));
}

TEST(ForwardBits, DoNotDependOnTheResultsAskedFor) {
  const auto running = causal_layer();
  const Shape shape = running.layer.shape();
  const Index width = shape.value_width();
  const auto x = running.input(tokens);
  const auto wanted = running.forward(x);
  std::vector<float> attention(static_cast<std::size_t>(tokens * shape.query_heads * width));
  std::vector<float> log_sum_exp(static_cast<std::size_t>(tokens * shape.query_heads));
  std::vector<float> query(log_sum_exp.size()), value(static_cast<std::size_t>(tokens * width)),
      sdpa(attention.size()), output(x.size());
  std::vector<float> first_token(log_sum_exp.size());
  const Results<float> all{.attention = {attention.data(), tokens, shape.query_heads, width},
                           .log_sum_exp = {log_sum_exp.data(), tokens, shape.query_heads},
                           .first_token_attention = {first_token.data(), tokens, shape.query_heads},
                           .gate_scores = {.query = {query.data(), tokens, shape.query_heads, 1},
                                           .value = {value.data(), tokens, 1, width},
                                           .sdpa = {sdpa.data(), tokens, shape.query_heads, width},
                                           .output = {output.data(), tokens, 1, shape.model_dim}}};
  std::vector<Results<float>> asked(7);
  asked[0].attention = all.attention;
  asked[1].log_sum_exp = all.log_sum_exp;
  asked[2].gate_scores.query = all.gate_scores.query;
  asked[3].gate_scores.value = all.gate_scores.value;
  asked[4].gate_scores.sdpa = all.gate_scores.sdpa;
  asked[5].gate_scores.output = all.gate_scores.output;
  asked[6] = all;
  Workspace workspace(running.layer, {.tokens = tokens, .threads = 1});
  for (std::size_t i = 0; i < asked.size(); ++i) {
    std::vector<float> y(x.size());
    running.layer.forward({.x = {x.data(), tokens, shape.model_dim}}, running.weights, workspace,
                          {y.data(), tokens, shape.model_dim}, asked[i]);
    EXPECT_TRUE(same_bits(wanted, y)) << "results " << i;
  }
}

TEST(ForwardBits, AreTheSameInConcurrentCallsOnOneLayer) {
  const auto running = causal_layer();
  const auto x = running.input(150);
  const auto wanted = running.forward(x);
  std::vector<std::vector<float>> y(4, std::vector<float>(x.size()));
  std::vector<std::thread> callers;
  for (std::vector<float>& own : y)
    callers.emplace_back([&running, &x, &own] {
      Workspace workspace(running.layer, {.tokens = 150, .threads = 1});
      for (int i = 0; i < 10; ++i)
        running.layer.forward({.x = {x.data(), 150, running.model_dim()}}, running.weights,
                              workspace, {own.data(), 150, running.model_dim()});
    });
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<float>& own : y) EXPECT_TRUE(same_bits(wanted, own));
}

TEST(ForwardBits, OfLongSequencesDoNotDependOnTilesAndThreads) {
  // Past 2048 keys the softmax restarts and its parts are merged.
  const auto running = RunningLayer(
      compose<float>({.model_dim = 32, .query_heads = 2, .kv_heads = 1, .head_dim = 16}, Causal{},
                     Gate<at::Sdpa>{}));
  const auto x = running.input(4200);
  const auto whole = running.forward(x);
  EXPECT_TRUE(same_bits(whole, running.forward(x, {}, 3)));
  for (const Index t : {2047, 2048, 2049, 2113, 4096, 4097}) {
    const auto cut = running.rows(x, 0, t);
    const auto y = running.forward(std::vector<float>(cut.begin(), cut.end()));
    EXPECT_TRUE(same_bits(std::span<const float>(y), running.rows(whole, 0, t))) << "T = " << t;
  }
}

}  // namespace
}  // namespace gated_attention::test
