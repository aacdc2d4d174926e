// SPDX-License-Identifier: MIT
// Caches: slots that hold nothing, rings that are written over too soon, positions that follow the slot, counters that layers
// share, keys that are rotated again, tokens that depend on what runs with them, pages that two sequences write to.
#include <algorithm>
#include <numeric>

#include "bitwise/extending_layer.hpp"

namespace gated_attention::test {
namespace {

constexpr AttendShape one{.query_heads = 1, .kv_heads = 1, .head_dim = 1};

template <class Scalar>
using RowList = std::vector<std::vector<Scalar>>;

/// Appends rows to a sequence of a cache, in chunks of the given lengths or at once; y's first channels.
template <class Copying, class Cache>
std::vector<typename Copying::Scalar> append(const Copying& copying, Cache& cache,
                                             const RowList<typename Copying::Scalar>& rows,
                                             std::vector<Index> chunks = {}, Index sequence = 0) {
  using Scalar = typename Copying::Scalar;
  const std::vector<Scalar> x = copying.rows(rows);
  const Index dim = copying.model_dim(), tokens = static_cast<Index>(rows.size());
  if (chunks.empty()) chunks = {tokens};
  Workspace workspace(copying.layer(),
                      {.tokens = tokens, .sequences = cache.sequences(), .threads = 1});
  const auto weights = pack(copying.layer(), copying.parameters());
  std::vector<Scalar> y(x.size()), cut;
  Index first = 0;
  for (const Index count : chunks) {
    std::vector<Index> lengths(static_cast<std::size_t>(cache.sequences()));
    lengths[static_cast<std::size_t>(sequence)] = count;
    copying.layer().extend({.x = {x.data() + first * dim, count, dim}, .lengths = lengths}, weights,
                           cache, workspace, {y.data() + first * dim, count, dim});
    first += count;
  }
  EXPECT_EQ(first, tokens);
  for (Index t = 0; t < tokens; ++t)
    cut.insert(cut.end(), y.begin() + t * dim, y.begin() + t * dim + copying.width());
  return cut;
}

/// q = k = 0, so that all logits are equal.
template <class Scalar = float>
RowList<Scalar> equal_logits(const std::vector<Scalar>& values) {
  RowList<Scalar> rows;
  for (const Scalar value : values) rows.push_back({0, 0, value});
  return rows;
}

/// 0, 1, …, count − 1
std::vector<float> counted(Index count) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  return numbers;
}

template <class Cache>
void fill_everything(Cache& cache, float number) {
  float* const memory = reinterpret_cast<float*>(cache.blocks(0).base);
  std::fill_n(memory, cache.bytes() / 4, number);
}

// Dao-AILab/flash-attention#1745, #2374; vllm-project/vllm#936; ggml-org/llama.cpp#3523: 0·NaN of slots that hold no key
template <class Cache>
void expect_empty_slots_mean_nothing(Cache cache) {
  const auto copying = copying_layer<float>(one, SlidingWindow{.window = 8});
  for (const float content : {nan<float>, infinity<float>, -infinity<float>, 1e30F, 0.0F}) {
    fill_everything(cache, content);
    const auto y = append(copying, cache, equal_logits<float>({1, 2, 3}));
    expect_near(y, {1, 1.5, 2}, 1e-6);
    EXPECT_TRUE(differs(y, {1, 1.5, 6.0 / 8}, 1e-3)) << "zeros of empty slots count";
    cache.reset();
  }
  // The same where tokens have been there.
  append(copying, cache, equal_logits<float>(std::vector<float>(8, nan<float>)));
  cache.truncate(0, 0);
  expect_near(append(copying, cache, equal_logits<float>({1, 2, 3}), {1, 2}), {1, 1.5, 2}, 1e-6);
  append(copying, cache, {{0, nan<float>, infinity<float>}, {0, -infinity<float>, nan<float>}});
  cache.truncate(0, 3);
  expect_near(append(copying, cache, equal_logits<float>({6})), {3}, 1e-6);
}

TEST(CacheBug, EmptySlotsNeverEnter) {
  const auto copying = copying_layer<float>(one, SlidingWindow{.window = 8});
  const auto& layer = copying.layer();
  const auto in_every_cache = [&](auto stored) {
    expect_empty_slots_mean_nothing(ContiguousCache(layer, {.tokens = 8}, stored));
    expect_empty_slots_mean_nothing(RingCache(layer, {.tokens = 8}, stored));
    expect_empty_slots_mean_nothing(PagedCache(layer, {.pages = 1}, stored));
  };
  in_every_cache(stored_as<float>);
  in_every_cache(stored_as<bfloat16>);
  in_every_cache(stored_as<half>);
  in_every_cache(stored_as<std::int8_t>);
}

TEST(CacheBug, ATokenThatHasLeftTheWindowNeverEnters) {
  const auto copying = copying_layer<float>(one, SlidingWindow{.window = 2});
  RingCache cache(copying.layer(), {});
  const auto y =
      append(copying, cache, {{0, nan<float>, infinity<float>}, {0, 0, 1}, {0, 0, 2}, {0, 0, 4}},
             {1, 1, 1, 1});
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(y[2], 1.5F);
  EXPECT_EQ(y[3], 3.0F);
}

// Lightning-AI/litgpt#2182
TEST(CacheBug, AChunkLongerThanTheRingWritesOverNoKeyThatIsSeen) {
  const auto copying = copying_layer<float>(one, SlidingWindow{.window = 3});
  RingCache ring(copying.layer(), {.tokens = 3});
  const auto y = append(copying, ring, equal_logits(counted(7)), {5, 1, 1});
  expect_near(y, {0, 0.5, 1, 2, 3, 4, 5}, 1e-6);
  EXPECT_TRUE(differs(y, {0, 0.5, 1, 3.5, 3, 4, 5}, 1e-3));

  // The ring holds two blocks of 64: 700 tokens at once go round it more than five times.
  const Index tokens = 700, held = 128;
  ring.reset();
  const auto many = append(copying, ring, equal_logits(counted(tokens + 2)), {tokens, 1, 1});
  std::vector<double> right, faulty;
  for (Index t = 0; t < tokens + 2; ++t) {
    double sum = 0, overwritten = 0;
    const Index first = std::max<Index>(t - 2, 0);
    for (Index s = first; s <= t; ++s) {
      sum += static_cast<double>(s);
      // what stands in the slot of s once the whole chunk is written
      const Index last = t < tokens ? tokens - 1 : t;
      overwritten += static_cast<double>(s + (last - s) / held * held);
    }
    right.push_back(sum / static_cast<double>(t + 1 - first));
    faulty.push_back(overwritten / static_cast<double>(t + 1 - first));
  }
  expect_near(many, right, 1e-4);
  EXPECT_TRUE(differs(many, faulty, 100));
}

// The kin: kept tokens are no part of the ring.
TEST(CacheBug, KeptTokensStayWhenTheRingGoesRound) {
  const auto copying = copying_layer<float>(one, StreamingWindow{.kept = 2, .window = 2});
  RingCache ring(copying.layer(), {});
  auto values = counted(300);
  values[0] = 1000;
  for (const std::vector<Index>& chunks : {std::vector<Index>{300}, {1, 298, 1}, {150, 150}}) {
    const auto y = append(copying, ring, equal_logits(values), chunks);
    expect_near<float>({y[0], y[1], y[2], y[3], y[299]},
                       {1000, 500.5, 1003.0 / 3, 1006.0 / 4, (1000 + 1 + 298 + 299) / 4.0}, 1e-3);
    EXPECT_TRUE(differs<float>({y[299]}, {(298 + 299) / 2.0}, 1)) << "kept tokens were lost";
    ring.reset();
  }
}

/// Σ softmax(cos(p_t − p_s)/√2)·v_s of q = k = (1, 0) that turn by 1 a position, over the last `window` keys.
std::vector<double> rotated_means(const std::vector<Index>& positions, Index window) {
  std::vector<double> y;
  for (Index t = 0; t < static_cast<Index>(positions.size()); ++t) {
    double sum = 0, value = 0;
    for (Index s = std::max<Index>(t - window + 1, 0); s <= t; ++s) {
      const Index distance =
          positions[static_cast<std::size_t>(t)] - positions[static_cast<std::size_t>(s)];
      const double weight = std::exp(std::cos(static_cast<double>(distance)) / std::sqrt(2.0));
      sum += weight;
      value += weight * static_cast<double>(s);
    }
    y.push_back(value / sum);
  }
  return y;
}

/// Values 0, 1, … of two channels under q = k = (1, 0); y's first channel of each row.
template <class Copying, class Cache>
std::vector<float> append_turning(const Copying& copying, Cache& cache, Index tokens,
                                  const std::vector<Index>& chunks) {
  RowList<float> rows;
  for (Index t = 0; t < tokens; ++t) rows.push_back({1, 0, 1, 0, static_cast<float>(t), 0});
  const auto y = append(copying, cache, rows, chunks);
  std::vector<float> first;
  for (std::size_t t = 0; t < rows.size(); ++t) first.push_back(y[2 * t]);
  return first;
}

constexpr AttendShape turning{.query_heads = 1, .kv_heads = 1, .head_dim = 2};

// rajveer43/VeloxQuant-MLX#389; warpfront/hipfire#391; scouzi1966/maclocal-api#92
TEST(CacheBug, BehindAnEvictionPositionsAreAbsolute) {
  const auto copying =
      copying_layer<float>(turning, Rope<>{.theta = 1e4}, SlidingWindow{.window = 4});
  RingCache ring(copying.layer(), {.tokens = 4});
  const Index slots = 128;  // of the ring: two blocks
  for (const Index tokens : {Index{10}, Index{300}}) {
    const Index round = tokens == 10 ? 4 : slots;  // of a ring of keys, and of one of blocks
    std::vector<Index> absolute(static_cast<std::size_t>(tokens)), by_slot;
    std::iota(absolute.begin(), absolute.end(), Index{0});
    for (const Index position : absolute) by_slot.push_back(position % round);
    const auto y = append_turning(copying, ring, tokens, std::vector<Index>(absolute.size(), 1));
    expect_near(y, rotated_means(absolute, 4), 2e-4);
    EXPECT_TRUE(differs(y, rotated_means(by_slot, 4), 1e-2));
    ring.reset();
  }
  // positions 6 … 9 of ten, to the last bits
  const auto y = append_turning(copying, ring, 10, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  RowList<float> rows;
  for (Index t = 0; t < 10; ++t) rows.push_back({1, 0, 1, 0, static_cast<float>(t), 0});
  const auto whole = copying.forward(rows);
  for (std::size_t t = 6; t < 10; ++t) EXPECT_NEAR(y[t], whole[2 * t], 1e-6) << t;
}

// fla-org/flash-linear-attention#766: layer 0 advanced the counter that layer 1 wrote by
TEST(CacheBug, LayersDoNotShareACounter) {
  const auto copying = copying_layer<float>(one, Causal{});
  ContiguousCache lower(copying.layer(), {.tokens = 3}), upper(copying.layer(), {.tokens = 3});
  fill_everything(lower, 0);
  fill_everything(upper, 0);
  std::vector<float> y;
  for (const float value : {2.0F, 4.0F, 6.0F}) {
    const auto between = append(copying, lower, equal_logits<float>({value}));
    EXPECT_EQ(upper.size() + 1, lower.size());
    y.push_back(append(copying, upper, equal_logits<float>(between))[0]);
    EXPECT_EQ(upper.size(), lower.size());
  }
  expect_near(y, {2, 2.5, 3}, 1e-6);
  EXPECT_TRUE(differs(y, {1, 5.0 / 3, 2.25}, 1e-3)) << "a slot was skipped";
}

/// The stored key of a token as floats.
template <class Cache>
std::vector<float> stored_key(const Cache& cache, Index token, Index dim) {
  const float* const block = cache.blocks(0).template block<const float>(0, token / block_keys);
  std::vector<float> key;
  for (Index c = 0; c < dim; ++c) key.push_back(block[c * block_keys + token % block_keys]);
  return key;
}

// NeuraLegion/shainet#110: cached keys were rotated again at each step
template <class Mask>
void expect_keys_stay(const Mask& mask, bool ring) {
  const auto copying = copying_layer<float>(turning, Rope<>{.theta = 1e4}, mask);
  const auto decode = [&](auto cache) {
    append_turning(copying, cache, 2, {1, 1});
    const auto first = stored_key(cache, 0, 2), second = stored_key(cache, 1, 2);
    expect_near(first, {1, 0}, 0);
    expect_near(second, {std::cos(1.0), std::sin(1.0)}, 1e-7);
    for (Index step = 0; step < 200; ++step) {
      append_turning(copying, cache, 1, {1});
      ASSERT_TRUE(same_bits(first, stored_key(cache, 0, 2))) << step;
      ASSERT_TRUE(same_bits(second, stored_key(cache, 1, 2))) << step;
    }
    EXPECT_TRUE(differs(stored_key(cache, 1, 2), {std::cos(4.0), std::sin(4.0)}, 1e-3))
        << "rotated at each of three steps";
  };
  if constexpr (std::is_same_v<Mask, StreamingWindow>)
    if (ring) return decode(RingCache(copying.layer(), {}));
  decode(ContiguousCache(copying.layer(), {.tokens = 300}));
  decode(PagedCache(copying.layer(), {.pages = 5}));
}

TEST(CacheBug, StoredKeysAreNeverRotatedAgain) {
  expect_keys_stay(Causal{}, false);
  for (const KeyPositions positions : {KeyPositions::absolute, KeyPositions::in_cache})
    for (const bool ring : {false, true})
      expect_keys_stay(StreamingWindow{.kept = 2, .window = 3, .positions = positions}, ring);
}

// ml-explore/mlx#3452: a sink changed what one query gave beside many
TEST(CacheBug, ASinkCountsTheSameForATokenAloneAndAsTheLastOf34) {
  auto copying = copying_layer<float>(one, SlidingWindow{.window = 1}, LearnedSink{});
  std::vector<float> values(34, 7.0F);
  values.back() = 2;
  RingCache together(copying.layer(), {}), alone(copying.layer(), {}), last(copying.layer(), {});
  const auto all = append(copying, together, equal_logits(values));
  const auto ones = append(copying, alone, equal_logits(values), std::vector<Index>(34, 1));
  const auto only = append(copying, last, equal_logits<float>({2}));
  EXPECT_EQ(all.back(), 1.0F);
  EXPECT_TRUE(differs<float>({all.back()}, {2}, 0.5)) << "the sink was left out";
  EXPECT_TRUE(same_bits(all, ones));
  EXPECT_TRUE(same_bits({all.back()}, only));
}

// google/gemma.cpp#608
TEST(CacheBug, ScratchThatIsStaleEntersNoSoftmax) {
  const auto running = RunningLayer(
      compose<float>({.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 6},
                     Rope<>{.theta = 1e4}, SlidingWindow{.window = 50}, Gate<at::Sdpa>{}));
  const Index tokens = 300, dim = 24;  // more than twice what the ring holds
  const auto x = running.input(tokens), wanted = running.forward(x);
  const Limits limits{.tokens = 1, .threads = 1};
  const detail::AlignedBytes memory(running.layer.workspace_bytes(limits));
  Workspace<decltype(running)::Layer> workspace(
      running.layer, limits, {memory.data(), static_cast<std::size_t>(memory.size())});
  for (const float content : {nan<float>, 1e30F, 0.0F}) {
    RingCache ring(running.layer, {});
    fill_everything(ring, content);
    std::vector<float> y(x.size());
    for (Index t = 0; t < tokens; ++t) {
      std::fill_n(reinterpret_cast<float*>(memory.data()), memory.size() / 4, content);
      running.layer.extend({.x = {x.data() + t * dim, 1, dim}}, running.weights, ring, workspace,
                           {y.data() + t * dim, 1, dim});
    }
    EXPECT_TRUE(same_bits(wanted, y)) << "full of " << content;
  }
}

// ml-explore/mlx#3573; ggml-org/llama.cpp#4479, #22956; openvinotoolkit/openvino#30482; pytorch/pytorch#176091
TEST(CacheBug, ATokenDoesNotDependOnHowManyComeWithIt) {
  const auto running = RunningLayer(
      compose<float>({.model_dim = 36, .query_heads = 6, .kv_heads = 2, .head_dim = 10},
                     Rope<>{.theta = 1e4}, Gate<at::Sdpa>{}));
  for (const Index past : {0, 31, 32, 33, 63, 64, 100, 127, 128}) {
    ContiguousCache cache(running.layer, {.tokens = past + 40});
    poison(cache);
    extend(running, cache, {running.input(past, 4), {past}});
    const auto x = running.input(40, 5);
    const auto all = extend(running, cache, {x, {40}});
    for (Index t = 1; t <= 40; ++t) {
      cache.truncate(0, past);
      const auto rows = running.rows(x, 0, t);
      const auto y = extend(running, cache, {{rows.begin(), rows.end()}, {t}});
      EXPECT_TRUE(same_bits(std::span<const float>(y.y), running.rows(all.y, 0, t)))
          << past << " keys before " << t << " tokens";
    }
  }
}

// flash-attention#282, #517; ml-explore/mlx#2835; microsoft/onnxruntime#29020; transformers#39408: two queries, five keys
TEST(CacheBug, ALaterChunkIsAnchoredAtTheLastKey) {
  const auto causal = copying_layer<float>(one, Causal{});
  ContiguousCache cache(causal.layer(), {.tokens = 5});
  append(causal, cache, equal_logits(counted(3)));
  const auto y = append(causal, cache, equal_logits<float>({3, 4}));
  expect_near(y, {1.5, 2}, 1e-6);
  EXPECT_TRUE(differs(y, {0, 0.5}, 1e-3));
  const auto window = copying_layer<float>(one, SlidingWindow{.window = 3});
  for (const std::vector<Index>& chunks : {std::vector<Index>{1, 1, 1, 1, 1}, {2, 3}, {4, 1}}) {
    RingCache ring(window.layer(), {});
    const auto steps = append(window, ring, equal_logits(counted(5)), chunks);
    expect_near(steps, {0, 0.5, 1, 2, 3}, 1e-6);
    EXPECT_TRUE(differs(steps, {0, 0.5, 1, 1.5, 2.5}, 1e-3));
  }
}

// A page that two sequences share is copied before either writes to it.
TEST(CacheBug, AForkAndItsOriginalDoNotSeeEachOther) {
  const auto copying = copying_layer<float>(one, Causal{});
  for (const bool fork_first : {false, true}) {
    PagedCache cache(copying.layer(), {.pages = 3, .sequences = 2});
    append(copying, cache, equal_logits<float>({1, 2, 3}));
    cache.fork(0, 1, 2);
    const auto write_fork = [&] {
      return append(copying, cache, equal_logits<float>({60}), {}, 1)[0];
    };
    const auto write_original = [&] {
      return append(copying, cache, equal_logits<float>({10}), {}, 0)[0];
    };
    const float before = fork_first ? write_fork() : write_original();
    const float after = fork_first ? write_original() : write_fork();
    const float fork = fork_first ? before : after, original = fork_first ? after : before;
    EXPECT_NEAR(fork, 21, 1e-5) << "of {1, 2, 60}";
    EXPECT_NEAR(original, 4, 1e-5) << "of {1, 2, 3, 10}, not of {1, 2, 60, 10}: 18.25";
    cache.truncate(1, 2);
    EXPECT_NEAR(append(copying, cache, equal_logits<float>({9}), {}, 1)[0], 4, 1e-5);
    EXPECT_NEAR(append(copying, cache, equal_logits<float>({4}), {}, 0)[0], 4, 1e-5)
        << "of {1, 2, 3, 10, 4}, not of {1, 2, 9, 10, 4}: 5.2";
  }
}

}  // namespace
}  // namespace gated_attention::test
