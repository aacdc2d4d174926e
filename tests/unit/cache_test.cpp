// SPDX-License-Identifier: MIT
// The caches by themselves: sizes, capacities, pages; truncate and fork against a run that never went further; what a ring
// has lost.
#include "gated_attention/cache/cache.hpp"

#include "bitwise/extending_layer.hpp"

namespace gated_attention::test {
namespace {

auto causal() {
  return RunningLayer(
      compose<float>({.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 6},
                     Rope<>{.theta = 1e4}, Gate<at::Sdpa>{}));
}

auto windowed(Index window, Index kept = 0) {
  return RunningLayer(compose<float>(
      {.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 6}, Rope<>{.theta = 1e4},
      StreamingWindow{.kept = kept, .window = window}, Gate<at::Sdpa>{}));
}

template <class Running>
using LayerOf = typename Running::Layer;

TEST(Cache, BeginsEmptyAndCountsWhatItIsGiven) {
  const auto running = causal();
  ContiguousCache cache(running.layer, {.tokens = 100, .sequences = 3});
  EXPECT_EQ(cache.sequences(), 3);
  EXPECT_EQ(cache.shape(), running.layer.shape());
  EXPECT_EQ(cache.capacity(2), 100);
  const Index block = KeyValueLayout<float>{6, 6}.bytes();
  EXPECT_EQ(cache.bytes(), 3 * 2 * 2 * block) << "three sequences, two heads, two blocks";
  extend(running, cache, {running.input(12), {5, 0, 7}});
  EXPECT_EQ(cache.size(), 5);
  EXPECT_EQ(cache.size(1), 0);
  EXPECT_EQ(cache.size(2), 7);
  EXPECT_EQ(cache.capacity(2), 100);
  cache.reset(0);
  EXPECT_EQ(cache.size(0), 0);
  EXPECT_EQ(cache.size(2), 7);
  cache.reset();
  EXPECT_EQ(cache.size(2), 0);
  EXPECT_EQ((ContiguousCache(running.layer, {.tokens = 0}).bytes()), 0);
}

TEST(Cache, OfARingIsAsLargeAsItsWindowAndItsKeptKeysWhateverItIsGiven) {
  const Index block = KeyValueLayout<float>{6, 6}.bytes();
  struct Case {
    Index window, kept, tokens, blocks;
  };
  // 64 keys that start anywhere in a block lie in two, 65 as well, 66 in three.
  for (const Case& c : {Case{1, 0, 0, 1},
                        {2, 0, 0, 2},
                        {64, 0, 0, 2},
                        {65, 0, 0, 2},
                        {66, 0, 0, 3},
                        {2, 1, 0, 3},
                        {2, 64, 0, 3},
                        {2, 65, 0, 4},
                        {2, 0, 130, 4}}) {
    const auto running = windowed(c.window, c.kept);
    RingCache ring(running.layer, {.tokens = c.tokens});
    EXPECT_EQ(ring.bytes(), 2 * c.blocks * block) << c.window << ", " << c.kept;
    EXPECT_EQ(ring.capacity(), c.tokens == 0 ? c.window : c.tokens);
    extend(running, ring, {running.input(777), {777}});
    EXPECT_EQ(ring.size(), 777);
    EXPECT_EQ(ring.bytes(), 2 * c.blocks * block);
  }
}

TEST(Cache, OfPagesTakesThemAsTheyAreNeededAndGivesThemBack) {
  const auto running = causal();
  PagedCache cache(running.layer, {.pages = 5, .sequences = 3});
  EXPECT_EQ(cache.bytes(), 5 * 2 * KeyValueLayout<float>({6, 6}).bytes());
  const auto expect_free = [&](Index pages) { EXPECT_EQ(cache.free_pages(), pages); };
  const auto append = [&](Index s, Index tokens) {
    std::vector<Index> lengths(3);
    lengths[static_cast<std::size_t>(s)] = tokens;
    extend(running, cache, {running.input(tokens), lengths});
  };
  expect_free(5);
  EXPECT_EQ(cache.capacity(0), 320);
  append(0, 64);
  expect_free(4);
  append(0, 1);
  expect_free(3);
  EXPECT_EQ(cache.capacity(0), 320);
  EXPECT_EQ(cache.capacity(1), 192);
  cache.fork(0, 1, 65);
  expect_free(3);
  EXPECT_EQ(cache.size(1), 65);
  EXPECT_EQ(cache.capacity(1), 256) << "its first token copies the page that it shares";
  append(1, 1);
  expect_free(2);
  cache.fork(1, 2, 64);
  expect_free(2);
  append(2, 64);
  expect_free(1);
  EXPECT_EQ(cache.capacity(0), 192) << "the copy was another's: this page is its own again";
  cache.fork(0, 0, 64);
  EXPECT_EQ(cache.size(0), 64);
  expect_free(2);
  cache.reset(1);
  expect_free(3);
  cache.reset(0);
  expect_free(3);  // its page is still in use
  cache.reset(2);
  expect_free(5);
  append(0, 320);
  expect_free(0);
  EXPECT_EQ(cache.capacity(0), 320);
  EXPECT_EQ(cache.capacity(1), 0);
  cache.fork(0, 1, 320);
  cache.truncate(1, 10);
  EXPECT_EQ(cache.capacity(1), 10) << "no page is left for a copy";
  cache.truncate(0, 0);
  EXPECT_EQ(cache.capacity(1), 320);
}

// A page that k sequences write to in one call takes k − 1 copies where nobody else has it, and k otherwise.
TEST(Cache, OfPagesCopiesASharedPageForAllWritersButTheLast) {
  const auto running = causal();
  struct Case {
    std::vector<Index> lengths;
    Index copies;
  };
  for (const Case& c : {Case{{1, 0, 0}, 1},
                        {{1, 1, 0}, 2},
                        {{1, 1, 1}, 2},
                        {{0, 0, 5}, 1},
                        {{50, 54, 1}, 2},
                        {{55, 1, 1}, 3}}) {
    for (const Index spare : {Index{0}, Index{-1}}) {
      PagedCache cache(running.layer, {.pages = 1 + c.copies + spare, .sequences = 3});
      const auto x = running.input(10, 3);
      extend(running, cache, {x, {10, 0, 0}});
      cache.fork(0, 1, 10);
      cache.fork(0, 2, 10);
      const Index tokens = c.lengths[0] + c.lengths[1] + c.lengths[2];
      const Tokens<float> more{running.input(tokens, 4), c.lengths};
      if (spare < 0) {
        EXPECT_THROW(extend(running, cache, more), ShapeError) << "a page too few";
        continue;
      }
      const auto y = extend(running, cache, more).y;
      EXPECT_EQ(cache.free_pages(), 0);
      Index row = 0;
      for (const Index length : c.lengths) {
        auto whole = x;
        const auto own = running.rows(more.x, row, length);
        whole.insert(whole.end(), own.begin(), own.end());
        const auto wanted = extend_alone<float>(running, whole).y;
        EXPECT_TRUE(same_bits(running.rows(wanted, 10, length), running.rows(y, row, length)));
        row += length;
      }
    }
  }
}

/// After truncate(keys), and after reset, what comes has the bits of a run that was never longer.
template <class Running, class Cache>
void expect_as_if_never_longer(const Running& running, Cache cache) {
  poison(cache);
  const auto first = running.input(150, 1), other = running.input(80, 2);
  for (const Index keys : {0, 1, 2, 63, 64, 65, 100, 127, 128, 149, 150}) {
    extend(running, cache, {first, {150}});
    cache.truncate(0, keys);
    EXPECT_EQ(cache.size(), keys);
    const auto y = extend(running, cache, {other, {80}}).y;
    const auto kept = running.rows(first, 0, keys);
    std::vector<float> whole(kept.begin(), kept.end());
    whole.insert(whole.end(), other.begin(), other.end());
    const auto wanted = extend_alone<typename Cache::Stored>(running, whole).y;
    EXPECT_TRUE(same_bits(running.rows(wanted, keys, 80), std::span<const float>(y)))
        << "to " << keys;
    cache.reset();
  }
}

TEST(Cache, TruncatedIsAsIfItHadNeverBeenLonger) {
  const auto running = causal();
  const auto& layer = running.layer;
  expect_as_if_never_longer(running, ContiguousCache(layer, {.tokens = 230}));
  expect_as_if_never_longer(running, PagedCache(layer, {.pages = 4}));
  expect_as_if_never_longer(running, PagedCache(layer, {.pages = 4}, stored_as<std::int8_t>));
  const auto window = windowed(20, 3);
  expect_as_if_never_longer(window, RingCache(window.layer, {.tokens = 230}));
  expect_as_if_never_longer(window, RingCache(window.layer, {.tokens = 230}, stored_as<bfloat16>));
}

TEST(Cache, ForkedGoesOnFromThePrefixAndLeavesTheOriginalAlone) {
  const auto running = causal();
  const auto x = running.input(150, 1), left = running.input(90, 2), right = running.input(90, 3);
  for (const Index keys : {0, 1, 63, 64, 65, 127, 128, 150}) {
    PagedCache cache(running.layer, {.pages = 8, .sequences = 2});
    poison(cache);
    extend(running, cache, {running.input(40, 9), {0, 40}});  // what a fork replaces
    extend(running, cache, {x, {150, 0}});
    cache.fork(0, 1, keys);
    auto both = left;
    both.insert(both.end(), right.begin(), right.end());
    const auto y = extend(running, cache, {both, {90, 90}}).y;
    const auto expect = [&](Index prefix, const std::vector<float>& more, Index row) {
      const auto kept = running.rows(x, 0, prefix);
      std::vector<float> whole(kept.begin(), kept.end());
      whole.insert(whole.end(), more.begin(), more.end());
      const auto wanted = extend_alone<float>(running, whole).y;
      EXPECT_TRUE(same_bits(running.rows(wanted, prefix, 90), running.rows(y, row, 90)))
          << "fork of " << keys << ", row " << row;
    };
    expect(150, left, 0);
    expect(keys, right, 90);
  }
}

/// The first block that a ring still has behind the kept ones, counted from the blocks that were ever begun.
Index first_block_of(Index most_keys, Index kept_blocks, Index ring_blocks) {
  return std::max(kept_blocks, (most_keys + 63) / 64 - ring_blocks);
}

// Of a token behind n keys the ring must hold those from n − window + 1 on, unless they are kept.
TEST(Cache, OfARingIsTruncatedExactlyWhereItHasTheKeys) {
  struct Case {
    Index window, kept, tokens, ring_blocks;
  };
  for (const Case& c : {Case{1, 0, 0, 1},
                        {2, 0, 0, 2},
                        {37, 0, 0, 2},
                        {37, 5, 0, 2},
                        {65, 70, 0, 2},
                        {66, 0, 200, 5},
                        {130, 130, 0, 4}}) {
    const auto running = windowed(c.window, c.kept);
    const Index given = 500, kept_blocks = (c.kept + 63) / 64;
    const auto x = running.input(given, 1), other = running.input(3, 2);
    const Index lost = first_block_of(given, kept_blocks, c.ring_blocks) * 64;
    for (Index keys = 0; keys <= given; keys += keys < 480 ? 7 : 1) {
      RingCache ring(running.layer, {.tokens = c.tokens});
      poison(ring);
      extend(running, ring, {x, {given}});
      const Index wanted = std::max(keys - c.window + 1, kept_blocks * 64);
      const bool has_them = wanted >= keys || wanted >= lost || lost == kept_blocks * 64;
      if (!has_them) {
        try {
          ring.truncate(0, keys);
          ADD_FAILURE() << "window " << c.window << ": to " << keys << " was accepted";
        } catch (const ShapeError& error) {
          const std::string text = error.what();
          for (const std::string& part :
               {std::string("RingCache::truncate: "), "behind " + std::to_string(keys) + " keys",
                "from " + std::to_string(wanted) + " on", "from " + std::to_string(lost) + " on"})
            EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
        }
        EXPECT_EQ(ring.size(), given);
        continue;
      }
      ring.truncate(0, keys);
      EXPECT_EQ(ring.size(), keys);
      const auto y = extend(running, ring, {other, {3}}).y;
      const auto before = running.rows(x, 0, keys);
      std::vector<float> whole(before.begin(), before.end());
      whole.insert(whole.end(), other.begin(), other.end());
      const auto fresh = extend_alone<float>(running, whole).y;
      ASSERT_TRUE(same_bits(running.rows(fresh, keys, 3), std::span<const float>(y)))
          << "window " << c.window << ", kept " << c.kept << ", to " << keys;
    }
  }
}

TEST(Cache, OfARingStillKnowsWhatItLostBehindATruncation) {
  const auto running = windowed(20);
  RingCache ring(running.layer, {});
  extend(running, ring, {running.input(500), {500}});  // two blocks: those from 384 on
  ring.truncate(0, 450);
  EXPECT_THROW(ring.truncate(0, 402), ShapeError);
  ring.truncate(0, 403);  // sees from 384 on
  extend(running, ring, {running.input(10), {10}});
  EXPECT_THROW(ring.truncate(0, 402), ShapeError);
  ring.truncate(0, 0);
  extend(running, ring, {running.input(100), {100}});
  ring.truncate(0, 3);
  EXPECT_EQ(ring.size(), 3);
}

TEST(Cache, MovesWithWhatItHolds) {
  const auto running = causal();
  const auto x = running.input(70, 1), more = running.input(5, 2);
  auto whole = x;
  whole.insert(whole.end(), more.begin(), more.end());
  const auto wanted = extend_alone<float>(running, whole).y;
  const auto expect_moved = [&](auto cache) {
    extend(running, cache, {x, {70}});
    auto moved = std::move(cache);
    EXPECT_EQ(moved.size(), 70);
    EXPECT_TRUE(same_bits(running.rows(wanted, 70, 5),
                          std::span<const float>(extend(running, moved, {more, {5}}).y)));
  };
  expect_moved(ContiguousCache(running.layer, {.tokens = 80}));
  expect_moved(PagedCache(running.layer, {.pages = 2}));
  static_assert(!std::is_copy_constructible_v<ContiguousCache<LayerOf<decltype(running)>>>);
  static_assert(!std::is_copy_constructible_v<PagedCache<LayerOf<decltype(running)>>>);
}

}  // namespace
}  // namespace gated_attention::test
