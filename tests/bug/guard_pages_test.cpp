// SPDX-License-Identifier: MIT
// Head dims that fill no packet, with pages that may not be touched right before and behind every buffer.
// flashinfer#4299, vllm#40745, pytorch#110505.
#include "bug/guard_pages.hpp"

#include "bitwise/running_layer.hpp"

namespace gated_attention::test {
namespace {

constexpr Index head_dims[] = {1, 3, 6, 7, 72, 80};

template <class Scalar>
void expect_forward_inside(Index head_dim, typename GuardedNumbers<Scalar>::Near near) {
  using Guarded = GuardedNumbers<Scalar>;
  const Index value_dim = head_dim == 1 ? 5 : head_dim - 1, dim = 2 * head_dim + 1;
  const RunningLayer running(compose<Scalar>(
      {.model_dim = dim,
       .query_heads = 4,
       .kv_heads = 2,
       .head_dim = head_dim,
       .value_dim = value_dim},
      ProjectionBias<at::Query, at::Output>{}, QkNorm<>{.eps = 1e-6}, Gate<at::Query, Bias>{},
      Gate<at::Sdpa>{}, Normalize<at::Sdpa, RmsNorm<weight::Plain, over::Row>>{.eps = 1e-6},
      Gate<at::Output>{}));
  for (const Index tokens : {1, 7, 67}) {
    const std::vector<Scalar> x = running.input(tokens);
    const Guarded guarded(x, near), y(std::vector<Scalar>(x.size()), near);
    const Guarded attention(std::vector<Scalar>(static_cast<std::size_t>(tokens * 4 * value_dim)),
                            near);
    const Guarded scores(std::vector<Scalar>(static_cast<std::size_t>(tokens * 4 * value_dim)),
                         near);
    const Guarded output_scores(std::vector<Scalar>(x.size()), near);
    const Guarded log_sum_exp(std::vector<Scalar>(static_cast<std::size_t>(tokens * 4)), near);
    const Limits limits{.tokens = tokens, .threads = 1};
    const Index needed = running.layer.workspace_bytes(limits);
    const GuardedNumbers<std::byte> memory(std::vector<std::byte>(static_cast<std::size_t>(needed)),
                                           near == Guarded::Near::first_page
                                               ? GuardedNumbers<std::byte>::Near::first_page
                                               : GuardedNumbers<std::byte>::Near::last_page);
    Workspace workspace(running.layer, limits, {memory.data(), static_cast<std::size_t>(needed)});
    running.layer.forward({.x = {guarded.data(), tokens, dim}}, running.weights, workspace,
                          {y.data(), tokens, dim},
                          {.attention = {attention.data(), tokens, 4, value_dim},
                           .log_sum_exp = {log_sum_exp.data(), tokens, 4},
                           .gate_scores = {.sdpa = {scores.data(), tokens, 4, value_dim},
                                           .output = {output_scores.data(), tokens, 1, dim}}});
    const std::vector<Scalar> wanted = running.forward(x);
    EXPECT_TRUE(same_bits(std::span<const Scalar>(wanted),
                          std::span<const Scalar>(y.data(), wanted.size())))
        << "head_dim " << head_dim << ", " << tokens << " tokens";
  }
}

TEST(GuardPages, ForwardStaysInsideItsBuffers) {
  for (const Index head_dim : head_dims) {
    expect_forward_inside<float>(head_dim, GuardedNumbers<float>::Near::first_page);
    expect_forward_inside<float>(head_dim, GuardedNumbers<float>::Near::last_page);
    expect_forward_inside<double>(head_dim, GuardedNumbers<double>::Near::first_page);
    expect_forward_inside<double>(head_dim, GuardedNumbers<double>::Near::last_page);
  }
}

template <class Scalar, class... Stages>
void expect_attend_inside(Index head_dim, Index logit_width,
                          typename GuardedNumbers<Scalar>::Near near) {
  using Guarded = GuardedNumbers<Scalar>;
  const Attend<Scalar, SlidingWindow, Stages...> attend(
      {.query_heads = 4, .kv_heads = 2, .head_dim = head_dim}, SlidingWindow{.window = 50});
  for (const Index tokens : {1, 5, 70}) {
    const Index keys = tokens + 60;
    const Guarded q(normal_numbers<Scalar>(tokens * 4 * head_dim, 1), near);
    const Guarded k(normal_numbers<Scalar>(keys * 2 * head_dim, 2), near);
    const Guarded v(normal_numbers<Scalar>(keys * 2 * head_dim, 3), near);
    const Guarded logits(normal_numbers<Scalar>(tokens * 4 * logit_width, 4), near);
    const std::size_t size = static_cast<std::size_t>(tokens * 4 * head_dim);
    const Guarded out(std::vector<Scalar>(size), near), attention(std::vector<Scalar>(size), near);
    AttendWorkspace workspace(attend, {.tokens = tokens, .keys = keys, .threads = 1});
    const AttendBatch<Scalar> batch{.q = {q.data(), tokens, 4, head_dim},
                                    .k = {k.data(), keys, 2, head_dim},
                                    .v = {v.data(), keys, 2, head_dim},
                                    .gate_logits = {logits.data(), tokens, 4, logit_width}};
    attend(batch, workspace, {out.data(), tokens, 4, head_dim},
           {.attention = {attention.data(), tokens, 4, head_dim}});
    EXPECT_TRUE(same_bits(std::span<const Scalar>(run_attend(attend, batch)),
                          std::span<const Scalar>(out.data(), size)))
        << "head_dim " << head_dim << ", " << tokens << " tokens";
  }
}

TEST(GuardPages, AttendStaysInsideItsBuffers) {
  for (const Index head_dim : head_dims) {
    using Float = GuardedNumbers<float>::Near;
    using Double = GuardedNumbers<double>::Near;
    expect_attend_inside<float, Gate<at::Sdpa>>(head_dim, head_dim, Float::first_page);
    expect_attend_inside<float, Gate<at::Sdpa>>(head_dim, head_dim, Float::last_page);
    expect_attend_inside<double, Gate<at::Sdpa>>(head_dim, head_dim, Double::first_page);
    expect_attend_inside<double, Gate<at::Sdpa>>(head_dim, head_dim, Double::last_page);
    expect_attend_inside<float, Gate<at::Sdpa, Headwise>>(head_dim, 1, Float::first_page);
    expect_attend_inside<float, Gate<at::Sdpa, Headwise>>(head_dim, 1, Float::last_page);
  }
}

/// A context, and views over the scores whose last row ends where its memory ends.
template <class Scalar>
void expect_streams_and_scores_inside(Index head_dim, typename GuardedNumbers<Scalar>::Near near) {
  using Guarded = GuardedNumbers<Scalar>;
  const Index dim = 2 * head_dim + 1, context_dim = head_dim + 2;
  const auto layer = compose<Scalar>({.model_dim = dim,
                                      .query_heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = head_dim,
                                      .context_dim = context_dim},
                                     Bidirectional{}, ScoreBias{}, BooleanMask{}, Alibi{},
                                     LearnedSink{}, Gate<at::Sdpa, FirstChannels<1>>{});
  const auto weights = pack(layer, RunningLayer<decltype(layer)>::random_parameters(layer));
  for (const Index keys : {1, 7, 67, 130}) {
    const Index tokens = 5;
    const std::vector<Scalar> x = normal_numbers<Scalar>(tokens * dim, 1),
                              context = normal_numbers<Scalar>(keys * context_dim, 2),
                              bias = normal_numbers<Scalar>(4 * tokens * keys, 3);
    std::vector<std::byte> seen(static_cast<std::size_t>(tokens * keys), std::byte{1});
    for (std::size_t i = 0; i < seen.size(); i += 3) seen[i] = std::byte{0};
    const auto run = [&](const Scalar* some_context, const Scalar* some_bias,
                         const std::byte* some_mask) {
      const ScoreView<const Scalar> bias_view(some_bias, 4, tokens, keys);
      const ScoreView<const bool> mask_view(reinterpret_cast<const bool*>(some_mask), 1, tokens,
                                            keys);
      std::vector<Scalar> y(x.size());
      Workspace workspace(layer, {.tokens = tokens, .threads = 1, .context_tokens = keys});
      layer.forward({.x = {x.data(), tokens, dim},
                     .context = {some_context, keys, context_dim},
                     .score_bias = {&bias_view, 1},
                     .boolean_mask = {&mask_view, 1}},
                    weights, workspace, {y.data(), tokens, dim});
      return y;
    };
    const Guarded guarded_context(context, near), guarded_bias(bias, near);
    const GuardedNumbers<std::byte> guarded_mask(
        seen, near == Guarded::Near::first_page ? GuardedNumbers<std::byte>::Near::first_page
                                                : GuardedNumbers<std::byte>::Near::last_page);
    EXPECT_TRUE(same_bits(run(context.data(), bias.data(), seen.data()),
                          run(guarded_context.data(), guarded_bias.data(), guarded_mask.data())))
        << "head_dim " << head_dim << ", " << keys << " keys";
  }
}

TEST(GuardPages, StreamsAndScoresStayInsideTheirBuffers) {
  for (const Index head_dim : head_dims) {
    expect_streams_and_scores_inside<float>(head_dim, GuardedNumbers<float>::Near::first_page);
    expect_streams_and_scores_inside<float>(head_dim, GuardedNumbers<float>::Near::last_page);
    expect_streams_and_scores_inside<double>(head_dim, GuardedNumbers<double>::Near::last_page);
  }
}

}  // namespace
}  // namespace gated_attention::test
