// SPDX-License-Identifier: MIT
// What a token's output has the same bits in, beyond the schedules that property/ draws: contexts so long that threads share
// a tile, concurrent callers, results, positions.
#include <atomic>
#include <chrono>
#include <thread>

#include "bitwise/extending_layer.hpp"

namespace gated_attention::test {
namespace {

/// The same layer with windows of its own: what a narrow one writes to a cache in time linear in its tokens, a wide one of
/// equal weights reads.
template <class Composition>
struct Windows {
  using Running = decltype(RunningLayer(std::declval<Composition>()(Index{}, Index{})));
  Running narrow, wide;

  Windows(const Composition& composition, Index kept, Index window)
      : narrow(composition(Index{0}, Index{1})), wide(composition(kept, window)) {}
};

/// extend of `tokens` behind what the cache holds, which it holds again afterwards.
template <class Running, class Cache>
Outputs<typename Running::Scalar> extend_and_return(const Running& running, Cache& cache,
                                                    const Tokens<typename Running::Scalar>& tokens,
                                                    const Run& run) {
  std::vector<Index> sizes;
  for (Index s = 0; s < cache.sequences(); ++s) sizes.push_back(cache.size(s));
  auto outputs = extend(running, cache, tokens, run);
  for (Index s = 0; s < cache.sequences(); ++s)
    cache.truncate(s, sizes[static_cast<std::size_t>(s)]);
  return outputs;
}

/// 2500 kept keys and a window over 9 restart segments: two sequences, of which the second is short.
template <class Stored>
void expect_same_in_pieces() {
  const Windows windows(
      [](Index kept, Index window) {
        return compose<float>({.model_dim = 32, .query_heads = 4, .kv_heads = 2, .head_dim = 64},
                              Rope<>{.theta = 1e4}, StreamingWindow{.kept = kept, .window = window},
                              Gate<at::Sdpa>{});
      },
      2500, 17000);
  using Layer = typename decltype(windows)::Running::Layer;
  ContiguousCache<Layer, Stored> cache(windows.narrow.layer, {.tokens = 20100, .sequences = 2});
  poison(cache);
  const Index long_context = 20000, short_context = 77;
  extend(windows.narrow, cache,
         {windows.narrow.input(long_context + short_context), {long_context, short_context}});
  for (const Index tokens : {1, 3, 40}) {
    const Tokens<float> more{windows.wide.input(tokens + 1, 9), {tokens, 1}};
    const auto alone = extend_and_return(windows.wide, cache, more, {.threads = 1});
    for (const Index threads : {2, 3, 7}) {
      const AttendDivision division =
          attend_division(windows.wide.layer, more.lengths, {long_context, short_context}, threads);
      EXPECT_EQ(division.threads, threads);
      EXPECT_GE(division.most_pieces, 11);
      const auto shared = extend_and_return(windows.wide, cache, more, {.threads = threads});
      EXPECT_TRUE(same_bits(alone.y, shared.y)) << tokens << " tokens on " << threads;
      EXPECT_TRUE(same_bits(alone.log_sum_exp, shared.log_sum_exp))
          << tokens << " tokens on " << threads;
    }
    if (tokens == 1) continue;
    // The first of them alone, whose tile is cut otherwise.
    const auto first = extend_and_return(
        windows.wide, cache, {{more.x.begin(), more.x.begin() + windows.wide.model_dim()}, {1, 0}},
        {.threads = 3});
    EXPECT_TRUE(same_bits(std::span<const float>(first.y), windows.wide.rows(alone.y, 0, 1)));
  }
}

TEST(ExtendBits, AreTheSameWhereThreadsShareATile) {
  expect_same_in_pieces<float>();
  expect_same_in_pieces<bfloat16>();
}

#if defined(_OPENMP)
/// Two threads that work on scores at the same time, once: the first waits for the second.
struct Meeting {
  static inline std::atomic<bool> armed{false};
  static inline std::atomic<int> arrived{0};

  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>&, const Packet<Scalar>& score) const {
    static thread_local bool here = false;
    if (armed && !here) {
      here = true;
      ++arrived;
      const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (arrived < 2 && std::chrono::steady_clock::now() < last) std::this_thread::yield();
    }
    return score;
  }
};

TEST(ExtendBits, OneTokenOfOneHeadIsSharedByThreads) {
  const Windows windows(
      [](Index, Index window) {
        return compose<float>({.model_dim = 8, .query_heads = 1, .kv_heads = 1, .head_dim = 256},
                              Score<Meeting>{}, SlidingWindow{.window = window});
      },
      0, 1 << 20);
  ContiguousCache cache(windows.narrow.layer, {.tokens = 18001});
  extend(windows.narrow, cache, {windows.narrow.input(18000), {18000}});
  const Tokens<float> token{windows.wide.input(1, 9), {1}};
  const auto alone = extend_and_return(windows.wide, cache, token, {.threads = 1});
  Meeting::armed = true;
  const auto shared = extend_and_return(windows.wide, cache, token, {.threads = 2});
  Meeting::armed = false;
  EXPECT_EQ(Meeting::arrived, 2);
  EXPECT_TRUE(same_bits(alone.y, shared.y));
}
#endif

/// A layer whose projections copy, at a context of 2^17: q, k, v and gate logits are those of x.
struct LongContext {
  static constexpr AttendShape heads{.query_heads = 2, .kv_heads = 1, .head_dim = 8};
  static constexpr Index context = 131072, more = 4, window = 131072;
  using Layer = typename CopyingLayer<float, SlidingWindow, Gate<at::Sdpa>>::Layer;

  CopyingLayer<float, SlidingWindow, Gate<at::Sdpa>> narrow{heads, SlidingWindow{.window = 1}, {}},
      wide{heads, SlidingWindow{.window = window}, {}};
  PackedWeights<Layer> weights = pack(wide.layer(), wide.parameters());
  Index width = wide.model_dim();
  std::vector<float> x = normal_numbers<float>((context + more) * width, 3);

  LongContext() {  // so that some keys weigh more than others
    for (Index t = context; t < context + more; ++t)
      for (Index c = 0; c < 16; ++c) x[static_cast<std::size_t>(t * width + c)] *= 4;
  }

  /// y's [more, 2·8] behind the context.
  template <class Cache>
  std::vector<float> extend(Cache cache, Index threads) const {
    poison(cache);
    for (Index t = 0; t < context; t += 8192) run(narrow.layer(), cache, t, 8192, 1);
    const std::vector<float> y = run(wide.layer(), cache, context, more, threads);
    std::vector<float> cut;
    for (Index t = 0; t < more; ++t)
      cut.insert(cut.end(), y.begin() + t * width, y.begin() + t * width + 16);
    return cut;
  }

  template <class Cache>
  std::vector<float> run(const Layer& layer, Cache& cache, Index first, Index tokens,
                         Index threads) const {
    Workspace workspace(layer, {.tokens = tokens, .threads = threads});
    std::vector<float> y(static_cast<std::size_t>(tokens * width));
    layer.extend({.x = {x.data() + first * width, tokens, width}}, weights, cache, workspace,
                 {y.data(), tokens, width});
    return y;
  }

  std::vector<float> attend() const {
    const Index keys = context + more;
    const auto view = [&](Index first, Index tokens, Index channel, Index count) {
      return HeadsView<const float>(x.data() + first * width + channel, tokens, count, 8, width, 8);
    };
    const Attend<float, SlidingWindow, Gate<at::Sdpa>> attend(heads,
                                                              SlidingWindow{.window = window});
    return run_attend(attend, {.q = view(context, more, 0, 2),
                               .k = view(0, keys, 16, 1),
                               .v = view(0, keys, 24, 1),
                               .gate_logits = view(context, more, 32, 2)});
  }

  /// The largest error in units of Σ p·|v|, keys and values rounded as they are stored.
  template <class Stored>
  double error(const std::vector<float>& y) const {
    const auto stored = [&](Index t, Index channel) {
      return detail::widened<double>(
          detail::narrowed<Stored>(x[static_cast<std::size_t>(t * width + channel)]));
    };
    double worst = 0;
    for (Index t = context; t < context + more; ++t)
      for (Index h = 0; h < 2; ++h) {
        const float* const row = x.data() + t * width;
        std::vector<double> score;
        for (Index s = t - window + 1; s <= t; ++s) {
          double product = 0;
          for (Index c = 0; c < 8; ++c)
            product += static_cast<double>(row[h * 8 + c]) * stored(s, 16 + c);
          score.push_back(product / std::sqrt(8.0));
        }
        const double highest = *std::max_element(score.begin(), score.end());
        double sum = 0, value[8] = {}, magnitude[8] = {};
        for (Index i = 0; i < window; ++i) {
          const double weight = std::exp(score[static_cast<std::size_t>(i)] - highest);
          sum += weight;
          for (Index c = 0; c < 8; ++c) {
            value[c] += weight * stored(t - window + 1 + i, 24 + c);
            magnitude[c] += weight * std::abs(stored(t - window + 1 + i, 24 + c));
          }
        }
        for (Index c = 0; c < 8; ++c) {
          const double gate = 1 / (1 + std::exp(-static_cast<double>(row[32 + h * 8 + c])));
          const double got = y[static_cast<std::size_t>((t - context) * 16 + h * 8 + c)];
          worst =
              std::max(worst, std::abs(got - gate * value[c] / sum) / (gate * magnitude[c] / sum));
        }
      }
    return worst;
  }
};

TEST(ExtendBits, AtAContextOf131072AreThoseOfAttendInEveryCache) {
  const LongContext given;
  const auto& layer = given.wide.layer();
  const std::vector<float> wanted = given.attend();
  EXPECT_LE(given.error<float>(wanted), 5e-6);  // scores of up to 20 round to 1e-6
  const Index tokens = given.context + given.more;
  EXPECT_TRUE(same_bits(wanted, given.extend(ContiguousCache(layer, {.tokens = tokens}), 1)));
  EXPECT_TRUE(same_bits(wanted, given.extend(RingCache(layer, {}), 3)));
  EXPECT_TRUE(same_bits(wanted, given.extend(PagedCache(layer, {.pages = tokens / 64 + 1}), 7)));
  EXPECT_EQ(attend_division(layer, {given.more}, {given.context}, 3).threads, 3);
  EXPECT_GE(attend_division(layer, {given.more}, {given.context}, 3).most_pieces, 64);
}

TEST(ExtendBits, AtAContextOf131072InFewerBitsAreNearTheRoundedKeys) {
  const LongContext given;
  const CacheLimits limits{.tokens = given.context + given.more};
  const auto y = given.extend(ContiguousCache(given.wide.layer(), limits, stored_as<bfloat16>), 2);
  EXPECT_LE(given.error<bfloat16>(y), 5e-6);
  EXPECT_GT(given.error<float>(y), 1e-4) << "they were not rounded";
}

/// Prefill and one-token steps on a cache of one's own.
template <class Running, class Cache>
std::vector<float> prefill_and_decode(const Running& running, Cache cache,
                                      const std::vector<float>& x, Index prefill) {
  const Index dim = running.model_dim(), tokens = static_cast<Index>(x.size()) / dim;
  Workspace workspace(running.layer, {.tokens = prefill, .threads = 1});
  std::vector<float> y(x.size());
  for (Index t = 0; t < tokens;) {
    const Index count = t == 0 ? prefill : 1;
    running.layer.extend({.x = {x.data() + t * dim, count, dim}}, running.weights, cache, workspace,
                         {y.data() + t * dim, count, dim});
    t += count;
  }
  return y;
}

TEST(ExtendBits, AreTheSameInConcurrentCallsOnOneLayer) {
  const auto running = RunningLayer(compose<float>(
      {.model_dim = 48, .query_heads = 6, .kv_heads = 2, .head_dim = 12}, QkNorm<>{.eps = 1e-6},
      Rope<>{.theta = 1e4}, SlidingWindow{.window = 40}, Gate<at::Sdpa>{}));
  const auto x = running.input(230);
  const auto wanted = running.forward(x);
  std::vector<std::vector<float>> y(4);
  std::vector<std::thread> callers;
  callers.emplace_back([&] {
    y[0] = prefill_and_decode(running, ContiguousCache(running.layer, {.tokens = 230}), x, 150);
  });
  callers.emplace_back([&] {
    y[1] = prefill_and_decode(running, ContiguousCache(running.layer, {.tokens = 230}), x, 1);
  });
  callers.emplace_back(
      [&] { y[2] = prefill_and_decode(running, RingCache(running.layer, {}), x, 170); });
  callers.emplace_back(
      [&] { y[3] = prefill_and_decode(running, PagedCache(running.layer, {.pages = 4}), x, 64); });
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<float>& own : y) EXPECT_TRUE(same_bits(wanted, own));
}

/// Every result of a layer, of forward or of extend in the given chunks.
template <class Running>
struct AllResults {
  using Scalar = typename Running::Scalar;

  const Running& running;
  Shape shape = running.layer.shape();
  Index tokens;
  std::vector<Scalar> y, attention, log_sum_exp, first_token, output_scores;

  AllResults(const Running& layer, Index count)
      : running(layer),
        tokens(count),
        y(size(shape.model_dim)),
        attention(size(shape.query_heads * shape.value_width())),
        log_sum_exp(size(shape.query_heads)),
        first_token(size(shape.query_heads)),
        output_scores(size(shape.model_dim)) {}

  std::size_t size(Index width) const { return static_cast<std::size_t>(tokens * width); }

  Results<Scalar> results(Index first, Index count) {
    const Index heads = shape.query_heads, width = shape.value_width();
    return {.attention = {attention.data() + first * heads * width, count, heads, width},
            .log_sum_exp = {log_sum_exp.data() + first * heads, count, heads},
            .first_token_attention = {first_token.data() + first * heads, count, heads},
            .gate_scores = {.output = {output_scores.data() + first * shape.model_dim, count, 1,
                                       shape.model_dim}}};
  }

  template <class Call>
  void run(const std::vector<Scalar>& x, const std::vector<Index>& chunks, const Call& call) {
    Workspace workspace(running.layer, {.tokens = tokens, .threads = 1});
    Index first = 0;
    for (const Index count : chunks) {
      const Index at = first * shape.model_dim;
      call(Batch<Scalar>{.x = {x.data() + at, count, shape.model_dim}}, workspace,
           MatrixView<Scalar>(y.data() + at, count, shape.model_dim), results(first, count));
      first += count;
    }
    ASSERT_EQ(first, tokens);
  }

  void expect_same(const AllResults& other) const {
    EXPECT_TRUE(same_bits(y, other.y));
    EXPECT_TRUE(same_bits(attention, other.attention));
    EXPECT_TRUE(same_bits(log_sum_exp, other.log_sum_exp));
    EXPECT_TRUE(same_bits(first_token, other.first_token));
    EXPECT_TRUE(same_bits(output_scores, other.output_scores));
  }
};

template <class Running, class Cache>
void expect_same_results(const Running& running, Cache cache) {
  const Index tokens = 500;
  const auto x = running.input(tokens);
  AllResults whole(running, tokens), chunked(running, tokens);
  whole.run(x, {tokens},
            [&](const auto& batch, auto& workspace, const auto& y, const auto& results) {
              running.layer.forward(batch, running.weights, workspace, y, results);
            });
  const auto extend = [&](const auto& batch, auto& workspace, const auto& y, const auto& results) {
    running.layer.extend(batch, running.weights, cache, workspace, y, results);
  };
  poison(cache);
  chunked.run(x, {1, 1, 63, 0, 300, 1, 134}, extend);
  whole.expect_same(chunked);
  cache.reset();
  chunked.run(x, {tokens}, extend);
  whole.expect_same(chunked);
}

TEST(ExtendBits, OfEveryResultAreThoseOfForward) {
  const auto compose_with = [](const auto& mask) {
    return RunningLayer(compose<float>(
        {.model_dim = 48, .query_heads = 6, .kv_heads = 2, .head_dim = 12, .value_dim = 7},
        Rope<>{.theta = 1e4}, mask, LearnedSink{}, Gate<at::Sdpa>{}, Gate<at::Output>{}));
  };
  const auto causal = compose_with(Causal{});
  expect_same_results(causal, ContiguousCache(causal.layer, {.tokens = 500}));
  expect_same_results(causal, PagedCache(causal.layer, {.pages = 8}));
  const auto window = compose_with(SlidingWindow{.window = 40});
  expect_same_results(window, RingCache(window.layer, {}));
  const auto streaming =
      compose_with(StreamingWindow{.kept = 3, .window = 40, .positions = KeyPositions::in_cache});
  expect_same_results(streaming, RingCache(streaming.layer, {}));
}

TEST(ExtendBits, FollowThePositionsThatAreGiven) {
  const auto running =
      RunningLayer(compose<float>({.model_dim = 32, .query_heads = 4, .kv_heads = 2, .head_dim = 8},
                                  Rope<>{.theta = 1e4}, Gate<at::Sdpa>{}));
  const Index tokens = 90, dim = running.model_dim();
  const auto x = running.input(tokens);
  std::vector<Index> positions;
  for (Index t = 0; t < tokens; ++t) positions.push_back((Index{1} << 20) + 3 * t);
  const auto wanted = running.forward(x, {}, 1, positions);
  EXPECT_FALSE(same_bits(wanted, running.forward(x)));
  ContiguousCache cache(running.layer, {.tokens = tokens});
  Workspace workspace(running.layer, {.tokens = tokens, .threads = 1});
  std::vector<float> y(x.size());
  for (Index t = 0; t < tokens;) {
    const Index count = std::min(t == 0 ? Index{70} : Index{1}, tokens - t);
    running.layer.extend({.x = {x.data() + t * dim, count, dim},
                          .positions = std::span(positions).subspan(
                              static_cast<std::size_t>(t), static_cast<std::size_t>(count))},
                         running.weights, cache, workspace, {y.data() + t * dim, count, dim});
    t += count;
  }
  EXPECT_TRUE(same_bits(wanted, y));
}

}  // namespace
}  // namespace gated_attention::test
