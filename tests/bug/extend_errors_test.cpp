// SPDX-License-Identifier: MIT
// What extend and the caches refuse: by name, with both numbers, and leaving everything as it was.
#include <functional>
#include <optional>

#include "bitwise/extending_layer.hpp"
#include "bug/refused.hpp"

namespace gated_attention::test {
namespace {

constexpr Shape shape{.model_dim = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 2};

/// extend of 5 tokens to a cache that holds some, with each argument open to be spoiled. A refused call must leave every
/// byte of the cache, its sizes and y alone, and what comes next must have the bits that it would have had.
template <class Running, class Cache>
class ExtendCall {
 public:
  using Layer = typename Running::Layer;

  ExtendCall(const Running& of, Cache& to) : running(of), cache(to) {}

  const Running& running;
  Cache& cache;
  const Layer* layer = &running.layer;
  Workspace<Layer> workspace{running.layer, {.tokens = 400, .sequences = 2, .threads = 1}};
  std::vector<float> x = running.input(400), y = std::vector<float>(2400, 77);
  Batch<float> batch{.x = {x.data(), 5, 6}};
  MatrixView<float> y_view{y.data(), 5, 6};
  std::vector<Index> lengths = {2, 3}, positions, prefixes;

  void run() {
    const auto numbers = [this] {
      std::vector<Index> all = {cache.bytes()};
      for (Index s = 0; s < cache.sequences(); ++s) {
        all.push_back(cache.size(s));
        all.push_back(cache.capacity(s));
      }
      return all;
    };
    batch.lengths = lengths;
    batch.positions = positions;
    batch.prefixes = prefixes;
    const std::vector<Index> before = numbers();
    const std::byte* const memory = cache.blocks(0).base;
    const std::vector<std::byte> bytes(memory, memory + cache.bytes());
    try {
      layer->extend(batch, running.weights, cache, workspace, y_view);
    } catch (...) {
      EXPECT_EQ(before, numbers());
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory)) << "a refused call wrote keys";
      for (const float number : y) EXPECT_EQ(number, 77) << "a refused call wrote";
      throw;
    }
  }
};

auto causal() {
  return RunningLayer(compose<float>(shape, Rope<>{.theta = 1e4}, Gate<at::Sdpa>{}));
}

auto windowed(Index window, Index kept = 0) {
  return RunningLayer(
      compose<float>(shape, Rope<>{.theta = 1e4}, StreamingWindow{.kept = kept, .window = window}));
}

/// The call on a cache of two sequences that hold 60 and 3 keys, with something spoiled; then the call as it should be.
template <class Running, class Make, class Spoil>
std::function<void()> spoiled(const Running& running, const Make& make, const Spoil& spoil) {
  return [&running, make, spoil] {
    auto cache = make();
    extend(running, cache, {running.input(63, 8), {60, 3}});
    ExtendCall call(running, cache);
    spoil(call);
    try {
      call.run();
    } catch (...) {
      const Tokens<float> tokens{running.input(5, 9), {2, 3}};
      auto fresh = make();
      extend(running, fresh, {running.input(63, 8), {60, 3}});
      EXPECT_TRUE(same_bits(extend(running, fresh, tokens).y, extend(running, cache, tokens).y));
      throw;
    }
  };
}

TEST(Errors, OfExtendNameFunctionExtentAndBothNumbers) {
  const auto running = causal();
  const auto contiguous = [&] {
    return ContiguousCache(running.layer, {.tokens = 70, .sequences = 2});
  };
  const auto with = [&](const auto& spoil) { return spoiled(running, contiguous, spoil); };
  const std::string function = "GatedAttention::extend: ";
  expect_refused({
      {"x too wide",
       with([](auto& c) {
         c.batch.x = {c.x.data(), 5, 7};
       }),
       {function, "x has 7 columns", "model_dim is 6"}},
      {"y too short",
       with([](auto& c) {
         c.y_view = {c.y.data(), 4, 6};
       }),
       {function, "y has 4 rows", "5 tokens"}},
      {"a sequence too few",
       with([](auto& c) { c.lengths = {}; }),
       {function, "the batch has 1 sequences", "the cache has 2", "a length of 0"}},
      {"a sequence too many",
       with([](auto& c) {
         c.lengths = {2, 2, 1};
       }),
       {function, "the batch has 3 sequences", "the cache has 2"}},
      {"lengths beyond x",
       with([](auto& c) {
         c.lengths = {3, 3};
       }),
       {function, "lengths is 3 behind a sum of 3", "x has 5 rows"}},
      {"a negative length",
       with([](auto& c) {
         c.lengths = {6, -1};
       }),
       {function, "6", "5"}},
      {"too few positions",
       with([](auto& c) {
         c.positions = {60, 61, 3};
       }),
       {function, "3 positions", "5 rows"}},
      {"prefixes of another mask",
       with([](auto& c) {
         c.prefixes = {1, 1};
       }),
       {function, "2 prefixes", "takes 0"}},
      {"more tokens than the workspace holds",
       with([](auto& c) {
         c.batch.x = {c.x.data(), 401, 6};
         c.y.resize(2406, 77);
         c.y_view = {c.y.data(), 401, 6};
         c.lengths = {400, 1};
       }),
       {function, "401 tokens", "made for 400"}},
      {"y beside x",
       with([](auto& c) {
         c.y_view = {c.x.data() + 6, 5, 6};
       }),
       {function, "y overlaps x", "6"}},
      {"full",
       with([](auto& c) {
         c.batch.x = {c.x.data(), 14, 6};
         c.y_view = {c.y.data(), 14, 6};
         c.lengths = {11, 3};
       }),
       {function, "sequence 0 has 60 keys", "11 more", "holds 70"}},
      {"full in the second sequence",
       with([](auto& c) {
         c.batch.x = {c.x.data(), 69, 6};
         c.y_view = {c.y.data(), 69, 6};
         c.lengths = {1, 68};
       }),
       {function, "sequence 1 has 3 keys", "68 more", "holds 70"}},
  });
}

TEST(Errors, OfAFullPoolNameBothNumbers) {
  const auto running = causal();
  const auto paged = [&] { return PagedCache(running.layer, {.pages = 3, .sequences = 2}); };
  const auto lengths = [](std::vector<Index> given) {
    return [given](auto& c) {
      c.lengths = given;
      c.batch.x = {c.x.data(), given[0] + given[1], 6};
      c.y_view = {c.y.data(), given[0] + given[1], 6};
    };
  };
  const auto with = [&](const auto& spoil) { return spoiled(running, paged, spoil); };
  expect_refused({{"no sequence could have so many",
                   with(lengths({133, 0})),
                   {"GatedAttention::extend: sequence 0 has 60 keys", "133 more", "3 pages of 64"}},
                  {"one page for two",
                   with(lengths({5, 62})),
                   {"GatedAttention::extend: the new tokens need 2 pages", "its 3", "1 free"}}});
  // and that they are accepted one by one
  for (const std::vector<Index>& given : {std::vector<Index>{5, 0}, {0, 62}, {68, 61}})
    EXPECT_NO_THROW(with(lengths(given))());
}

TEST(Errors, OfAPrefixThatComesTooLate) {
  const auto running = RunningLayer(compose<float>(shape, PrefixCausal{}));
  const auto make = [&] { return ContiguousCache(running.layer, {.tokens = 70, .sequences = 2}); };
  const auto call = [&](std::vector<Index> past, std::vector<Index> prefixes,
                        std::vector<Index> lengths) {
    return [&running, make, past, prefixes, lengths] {
      auto cache = make();
      extend(running, cache, {running.input(past[0] + past[1], 8), past, past});
      ExtendCall spoiled(running, cache);
      spoiled.prefixes = prefixes;
      spoiled.lengths = lengths;
      spoiled.run();
    };
  };
  const std::string function = "GatedAttention::extend: ";
  expect_refused({{"longer than the first chunk",
                   call({0, 0}, {2, 4}, {2, 3}),
                   {function, "sequence 1 has a prefix of 4", "first chunk has 3"}},
                  {"longer than what is there",
                   call({4, 0}, {5, 3}, {2, 3}),
                   {function, "sequence 0 has a prefix of 5", "has 4"}},
                  {"negative", call({4, 0}, {4, -1}, {2, 3}), {function, "a prefix is -1"}},
                  {"one for two", call({4, 0}, {4}, {2, 3}), {function, "1 prefixes", "takes 2"}}});
  EXPECT_NO_THROW(call({4, 0}, {4, 3}, {2, 3})());
  EXPECT_NO_THROW(call({4, 0}, {4, 3}, {5, 0})()) << "a sequence without tokens has no chunk";
}

TEST(Errors, OfACacheOfAnotherLayer) {
  const auto running = causal();
  Shape other_shape = shape;
  other_shape.kv_heads = 4;
  const auto other = compose<float>(other_shape, Rope<>{.theta = 1e4}, Gate<at::Sdpa>{});
  const auto with_cache = [&](auto make) {
    return [&running, make] {
      auto cache = make();
      ExtendCall call(running, cache);
      call.run();
    };
  };
  expect_refused(
      {{"other kv heads",
        with_cache([&] { return ContiguousCache(other, {.tokens = 9, .sequences = 2}); }),
        {"GatedAttention::extend: ", "4 kv heads", "this layer's are 2"}}});

  // Layers of one shape whose keys mean different things; what only queries and outputs go through makes none.
  const auto cache_of = [&](const auto& made) {
    return with_cache([&made] { return ContiguousCache(made, {.tokens = 9, .sequences = 2}); });
  };
  const auto turned = compose<float>(shape, Rope<pairing::Interleaved>{.theta = 1e4});
  const auto unturned = compose<float>(shape, Causal{});
  const auto normed = compose<float>(shape, Normalize<at::Key, RmsNorm<>>{.eps = 1e-6}, Rope<>{.theta = 1e4});
  const auto gated = compose<float>(shape, Rope<>{.theta = 1e4}, Gate<at::Value>{});
  expect_refused({{"another pairing", cache_of(turned), {"GatedAttention::extend: ", "another layer"}},
                  {"no rotation", cache_of(unturned), {"GatedAttention::extend: ", "another layer"}},
                  {"a norm at key", cache_of(normed), {"GatedAttention::extend: ", "another layer"}},
                  {"a gate at value", cache_of(gated), {"GatedAttention::extend: ", "another layer"}}});
  const auto ungated = compose<float>(shape, Scale<at::Sdpa>{.factor = 2}, Rope<>{.theta = 1e4});
  EXPECT_NO_THROW(cache_of(ungated)());
  const Shape wider{.model_dim = 6, .query_heads = 2, .kv_heads = 1, .head_dim = 8};
  const auto signature = [&](double theta, double eps) {
    return compose<float>(wider, Normalize<at::Key, RmsNorm<>>{.eps = eps}, Rope<>{.theta = theta})
        .key_signature();
  };
  EXPECT_EQ(signature(1e4, 1e-6), signature(1e4, 1e-6));
  EXPECT_NE(signature(1e4, 1e-6), signature(1e5, 1e-6));
  EXPECT_NE(signature(1e4, 1e-6), signature(1e4, 1e-5));

  const auto narrow = windowed(3), wide = windowed(30), kept = windowed(3, 1);
  const auto into_ring_of = [&](const auto& made, const auto& used) {
    return [&made, &used] {
      RingCache cache(made.layer, {.sequences = 2});
      ExtendCall call(used, cache);
      call.run();
    };
  };
  expect_refused({{"a wider window",
                   into_ring_of(narrow, wide),
                   {"GatedAttention::extend: ", "a window of 3 and 0 kept", "are 30 and 0"}},
                  {"kept keys",
                   into_ring_of(narrow, kept),
                   {"GatedAttention::extend: ", "a window of 3 and 0 kept", "are 3 and 1"}},
                  {"all keys", into_ring_of(narrow, running), {"sees all keys"}}});
  EXPECT_NO_THROW(into_ring_of(wide, narrow)()) << "it keeps more than the layer sees";
}

TEST(Errors, OfACrossLayerThatIsExtended) {
  Shape cross = shape;
  cross.context_dim = 5;
  const auto running = RunningLayer(compose<float>(cross, Causal{}));
  const auto self = RunningLayer(compose<float>(shape, Causal{}));
  expect_refused({{"a cache for it",
                   [&] { ContiguousCache(running.layer, {.tokens = 9}); },
                   {"ContiguousCache: ", "context_dim 5", "takes 0"}},
                  {"pages for it",
                   [&] { PagedCache(running.layer, {.pages = 9}); },
                   {"PagedCache: ", "context_dim 5"}},
                  {"the call",
                   [&] {
                     ContiguousCache cache(self.layer, {.tokens = 9, .sequences = 2});
                     ExtendCall(running, cache).run();
                   },
                   {"GatedAttention::extend: ", "context_dim 5", "takes 0"}}});
}

TEST(Errors, OfCachesNameBothNumbers) {
  const auto running = causal();
  const auto window = windowed(20);
  ContiguousCache cache(running.layer, {.tokens = 70, .sequences = 2});
  PagedCache paged(running.layer, {.pages = 4, .sequences = 2});
  RingCache ring(window.layer, {.sequences = 2});
  extend(running, cache, {running.input(5), {5, 0}});
  extend(running, paged, {running.input(5), {5, 0}});
  extend(window, ring, {window.input(5), {5, 0}});
  expect_refused({
      {"no tokens",
       [&] { ContiguousCache(running.layer, {.tokens = -1}); },
       {"ContiguousCache: limits.tokens is -1", "least is 0"}},
      {"no sequences",
       [&] { ContiguousCache(running.layer, {.tokens = 1, .sequences = 0}); },
       {"ContiguousCache: limits.sequences is 0", "least is 1"}},
      {"no pages",
       [&] { PagedCache(running.layer, {.pages = -2}); },
       {"PagedCache: limits.pages is -2", "least is 0"}},
      {"a ring shorter than the window",
       [&] { RingCache(window.layer, {.tokens = 19}); },
       {"RingCache: limits.tokens is 19", "window of the layer is 20"}},
      {"a ring of negative length",
       [&] { RingCache(window.layer, {.tokens = -1}); },
       {"RingCache: limits.tokens is -1", "is 20"}},
      {"more than memory has addresses",
       [&] { ContiguousCache(running.layer, {.tokens = Index{1} << 61}); },
       {"ContiguousCache", std::to_string(Index{1} << 55)}},
      {"a size of no sequence",
       [&] { static_cast<void>(cache.size(2)); },
       {"ContiguousCache::size: sequence 2", "has 2"}},
      {"a capacity of no sequence",
       [&] { static_cast<void>(ring.capacity(-1)); },
       {"RingCache::capacity: sequence -1", "has 2"}},
      {"no sequence to truncate",
       [&] { paged.truncate(2, 0); },
       {"PagedCache::truncate: sequence 2", "has 2"}},
      {"no sequence to reset", [&] { cache.reset(7); }, {"sequence 7", "has 2"}},
      {"truncated to more",
       [&] { cache.truncate(0, 6); },
       {"ContiguousCache::truncate: to 6 keys", "sequence 0 has 5"}},
      {"a ring to more", [&] { ring.truncate(0, 6); }, {"RingCache::truncate: to 6", "has 5"}},
      {"truncated to less than nothing",
       [&] { paged.truncate(0, -1); },
       {"PagedCache::truncate: to -1 keys", "has 5"}},
      {"a fork of more",
       [&] { paged.fork(0, 1, 6); },
       {"PagedCache::fork: of 6 keys", "sequence 0 has 5"}},
      {"a fork of less than nothing", [&] { paged.fork(0, 1, -1); }, {"of -1 keys", "has 5"}},
      {"a fork of no sequence", [&] { paged.fork(2, 1, 0); }, {"sequence 2", "has 2"}},
      {"a fork to no sequence", [&] { paged.fork(0, 2, 1); }, {"sequence 2", "has 2"}},
  });
  EXPECT_EQ(cache.size(), 5);
  EXPECT_EQ(ring.size(), 5);
  EXPECT_EQ(paged.size(), 5);
  EXPECT_EQ(paged.size(1), 0);
  EXPECT_EQ(paged.free_pages(), 3);
}

}  // namespace
}  // namespace gated_attention::test
