// SPDX-License-Identifier: MIT

// Decoding: attention of one new token over a cache that is not in the processor's caches, as a share of the bandwidth at which
// the same threads read memory just before and after; prefill in chunks; many sequences of different lengths at once.

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gated_attention/gated_attention.hpp"
#include "probe.hpp"

namespace {

using namespace gated_attention;

constexpr Index cold_bytes = Index{3} << 29;  // what all caches of a benchmark together exceed

struct Heads {
  Index query_heads, kv_heads, dim;
};

/// Blocks of keys and values, all the same: their numbers do not matter to the time.
template <class Stored>
class Blocks {
 public:
  Blocks(const Heads& heads, Index count) : layout_{heads.dim, heads.dim}, count_(count) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> rows(static_cast<std::size_t>(block_keys * heads.dim));
    for (float& x : rows) x = normal(generator);
    memory_ = detail::AlignedBytes(count * layout_.bytes());
    auto* const first = reinterpret_cast<Stored*>(memory_.data());
    kernel::write_keys(first, layout_, 0, block_keys, rows.data(), heads.dim);
    kernel::write_values(first, layout_, 0, block_keys, rows.data(), heads.dim);
    for (Index i = 1; i < count; ++i)
      std::memcpy(memory_.data() + i * layout_.bytes(), first,
                  static_cast<std::size_t>(layout_.bytes()));
  }

  std::byte* block(Index i) const { return memory_.data() + i % count_ * layout_.bytes(); }
  Index bytes() const { return layout_.bytes(); }

 private:
  KeyValueLayout<float, Stored> layout_;
  Index count_;
  detail::AlignedBytes memory_;
};

template <class Stored>
const Blocks<Stored>& shared_blocks(const Heads& heads) {
  static Index dim = 0;
  static std::unique_ptr<Blocks<Stored>> blocks;
  if (blocks == nullptr || dim != heads.dim) {
    blocks = nullptr;
    const KeyValueLayout<float, Stored> layout{heads.dim, heads.dim};
    blocks = std::make_unique<Blocks<Stored>>(heads, cold_bytes / layout.bytes());
    dim = heads.dim;
  }
  return *blocks;
}

/// One token of `sequences` sequences over `context` keys each.
template <class Stored>
void bench_attend(benchmark::State& state, const Heads& heads, Index context, int threads) {
  const Blocks<Stored>& blocks = shared_blocks<Stored>(heads);
  const Index width = heads.query_heads * heads.dim, per_head = detail::divide_up(context, block_keys);
  std::vector<float> q(static_cast<std::size_t>(width), 0.1F), out(q.size());
  kernel::AttendSequence sequence{.first_token = 0,
                                  .tokens = 1,
                                  .bounds = {.keys = context, .shift = context - 1, .after = 0},
                                  .blocks = {.block_stride = blocks.bytes(), .head_stride = per_head * blocks.bytes()}};
  kernel::AttendArguments<float> call;
  call.query_heads = heads.query_heads;
  call.kv_heads = heads.kv_heads;
  call.key_dim = call.value_dim = heads.dim;
  call.q = {q.data(), 1, heads.query_heads, heads.dim};
  call.score_scale = 0.1F;
  call.sequences = &sequence;
  call.sequence_count = 1;
  call.out = {out.data(), 1, heads.query_heads, heads.dim};
  const kernel::AttendLimits limits{heads.query_heads, heads.kv_heads, heads.dim, heads.dim, 1, 1, threads};
  const detail::AlignedBytes memory(kernel::attend_scratch_bytes<float>(limits));
  detail::Arena arena(memory.data());
  const kernel::AttendScratch<float> scratch(arena, limits);

  const double bytes = static_cast<double>(heads.kv_heads * per_head * blocks.bytes());
  const Index calls = std::max(Index{1}, static_cast<Index>(256e6 / bytes));
  Index next = 0;
  const auto run = [&] {
    for (Index i = 0; i < calls; ++i) {
      if ((next + heads.kv_heads * per_head) * blocks.bytes() > cold_bytes) next = 0;
      sequence.blocks.base = blocks.block(next);
      next += heads.kv_heads * per_head;
      kernel::attend<Stored>(call, scratch, threads);
    }
  };
  run();
  std::vector<double> shares, times, rates;
  for (auto _ : state) {
    const double before = bench::read_bandwidth_gbs(threads);
    const auto start = bench::Clock::now();
    run();
    const double seconds = bench::seconds_since(start) / static_cast<double>(calls);
    const double probe = 0.5 * (before + bench::read_bandwidth_gbs(threads));
    state.SetIterationTime(seconds);
    times.push_back(seconds);
    rates.push_back(bytes / seconds * 1e-9);
    shares.push_back(100 * bytes / seconds * 1e-9 / probe);
  }
  state.counters["us"] = bench::median(times) * 1e6;
  state.counters["GB/s"] = bench::median(rates);
  state.counters["share_%"] = bench::median(shares);
}

/// A layer with weights, caches and rows to feed it.
template <class Layer>
struct Running {
  Layer attention;
  Parameters<float> parameters{attention};
  Workspace<Layer> workspace;
  std::vector<float> x, y;

  Running(const Layer& layer, const Limits& limits) : attention(layer), workspace(layer, limits) {
    initialize(parameters, 1);
    std::mt19937 generator(2);
    std::normal_distribution<float> normal;
    x.resize(static_cast<std::size_t>(limits.tokens * layer.shape().model_dim));
    y.resize(x.size());
    for (float& value : x) value = normal(generator);
  }

  Batch<float> batch(Index first, Index tokens, std::span<const Index> lengths = {}) const {
    const Index width = attention.shape().model_dim;
    return {.x = MatrixView<const float>(x.data() + first * width, tokens, width), .lengths = lengths};
  }
  MatrixView<float> out(Index first, Index tokens) {
    const Index width = attention.shape().model_dim;
    return {y.data() + first * width, tokens, width};
  }
};

auto decoder_layer() {
  return compose<float>({.model_dim = 2048, .query_heads = 16, .kv_heads = 4, .head_dim = 128},
                        QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e6}, Causal{}, Gate<at::Sdpa>{});
}

/// A prompt of 2048 tokens, in chunks.
void bench_prefill(benchmark::State& state, Index chunk, int threads) {
  constexpr Index tokens = 2048;
  Running running(decoder_layer(), {.tokens = tokens, .threads = threads});
  const auto weights = pack(running.attention, running.parameters);
  ContiguousCache cache(running.attention, {.tokens = tokens});
  std::vector<double> times;
  for (auto _ : state) {
    cache.reset();
    const auto start = bench::Clock::now();
    for (Index t = 0; t < tokens; t += chunk)
      running.attention.extend(running.batch(t, chunk), weights, cache, running.workspace, running.out(t, chunk));
    times.push_back(bench::seconds_since(start));
    state.SetIterationTime(times.back());
  }
  state.counters["ms"] = bench::median(times) * 1e3;
  state.counters["tokens/s"] = static_cast<double>(tokens) / bench::median(times);
}

/// One token of the whole layer behind `context` keys: weights and cache as Stored.
template <class Stored>
void bench_token(benchmark::State& state, Index context, int threads) {
  Running running(decoder_layer(), {.tokens = 256, .threads = threads});
  const auto weights = pack(running.attention, running.parameters, stored_as<Stored>);
  ContiguousCache cache(running.attention, {.tokens = context + 4096}, stored_as<Stored>);
  for (Index t = 0; t < context; t += 256)
    running.attention.extend(running.batch(0, 256), weights, cache, running.workspace, running.out(0, 256));
  const double row = static_cast<double>(4 * 2 * 128 * sizeof(Stored));
  const double bytes = static_cast<double>(weights.bytes()) + static_cast<double>(context) * row;
  std::vector<double> times, shares;
  for (auto _ : state) {
    // Reading the probe's memory drives weights and cache out of the processor's caches.
    const double before = bench::read_bandwidth_gbs(threads) / 3 + bench::read_bandwidth_gbs(threads) / 3 +
                          bench::read_bandwidth_gbs(threads) / 3;
    const auto start = bench::Clock::now();
    running.attention.extend(running.batch(0, 1), weights, cache, running.workspace, running.out(0, 1));
    times.push_back(bench::seconds_since(start));
    state.SetIterationTime(times.back());
    shares.push_back(100 * bytes / times.back() * 1e-9 / before);
  }
  state.counters["us"] = bench::median(times) * 1e6;
  state.counters["share_%"] = bench::median(shares);
}

/// 32 sequences of different lengths in one call: 24 decode one token, 6 bring a chunk, 2 have nothing.
void bench_ragged(benchmark::State& state, int threads) {
  constexpr Index sequences = 32;
  Running running(decoder_layer(), {.tokens = 2048, .sequences = sequences, .threads = threads});
  const auto weights = pack(running.attention, running.parameters);
  ContiguousCache cache(running.attention, {.tokens = 4096, .sequences = sequences});
  std::vector<Index> past(sequences), more(sequences);
  Index new_tokens = 0;
  for (Index i = 0; i < sequences; ++i) {
    past[static_cast<std::size_t>(i)] = i * i * 3;  // 0 … 2883
    more[static_cast<std::size_t>(i)] = i % 16 == 15 ? 0 : i % 5 == 3 ? 40 + i : 1;
    new_tokens += more[static_cast<std::size_t>(i)];
  }
  std::vector<Index> one(sequences);
  for (Index i = 0; i < sequences; ++i)
    for (Index t = 0; t < past[static_cast<std::size_t>(i)]; t += 2048) {
      const Index now = std::min(past[static_cast<std::size_t>(i)] - t, Index{2048});
      one.assign(sequences, 0);
      one[static_cast<std::size_t>(i)] = now;
      running.attention.extend(running.batch(0, now, one), weights, cache, running.workspace, running.out(0, now));
    }
  std::vector<double> times;
  for (auto _ : state) {
    const auto start = bench::Clock::now();
    running.attention.extend(running.batch(0, new_tokens, more), weights, cache, running.workspace,
                             running.out(0, new_tokens));
    times.push_back(bench::seconds_since(start));
    state.SetIterationTime(times.back());
    for (Index i = 0; i < sequences; ++i) cache.truncate(i, past[static_cast<std::size_t>(i)]);
  }
  state.counters["ms"] = bench::median(times) * 1e3;
  state.counters["tokens"] = static_cast<double>(new_tokens);
}

/// One token of a small static layer behind a full window, on one thread: what a real-time caller waits for.
void bench_small(benchmark::State& state) {
  constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 4, .head_dim = 16};
  Running running(compose<float>(Static<shape>{}, Rope<>{.theta = 1e4}, SlidingWindow{.window = 64}, Gate<at::Sdpa>{}),
                  {.tokens = 256, .threads = 1});
  const auto weights = pack(running.attention, running.parameters);
  RingCache cache(running.attention, {});
  running.attention.extend(running.batch(0, 256), weights, cache, running.workspace, running.out(0, 256));
  for (auto _ : state)
    running.attention.extend(running.batch(0, 1), weights, cache, running.workspace, running.out(0, 1));
}

void register_layers() {
  for (const int threads : {1, 2}) {
    const std::string end = "/threads:" + std::to_string(threads);
    for (const Index chunk : {128, 512, 2048})
      benchmark::RegisterBenchmark(("BM_prefill/tokens:2048/chunk:" + std::to_string(chunk) + end).c_str(),
                                   bench_prefill, chunk, threads)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(5);
    for (const Index context : {512, 4096, 32768}) {
      const std::string name = "BM_decode_layer/context:" + std::to_string(context) + end + "/stored:";
      benchmark::RegisterBenchmark((name + "float").c_str(), bench_token<float>, context, threads)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(15);
      benchmark::RegisterBenchmark((name + "bfloat16").c_str(), bench_token<bfloat16>, context, threads)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(15);
    }
    benchmark::RegisterBenchmark(("BM_ragged/sequences:32" + end).c_str(), bench_ragged, threads)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(9);
  }
  benchmark::RegisterBenchmark("BM_one_token/E:64/heads:4/dim:16/window:64", bench_small)->Unit(benchmark::kNanosecond);
}

void register_attend() {
  for (const Heads& heads : {Heads{16, 4, 128}, Heads{16, 2, 256}, Heads{32, 4, 128}})
    for (const Index context : {512, 4096, 32768, 131072})
      for (const int threads : {1, 2}) {
        const std::string name = "BM_decode_attend/heads:" + std::to_string(heads.query_heads) + "/" +
                                 std::to_string(heads.kv_heads) + "/dim:" + std::to_string(heads.dim) +
                                 "/context:" + std::to_string(context) + "/threads:" + std::to_string(threads) +
                                 "/cache:";
        const auto add = [&](const char* stored, auto bench) {
          benchmark::RegisterBenchmark((name + stored).c_str(), bench, heads, context, threads)
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond)
              ->Iterations(9);
        };
        add("float", bench_attend<float>);
        add("bfloat16", bench_attend<bfloat16>);
        add("int8", bench_attend<std::int8_t>);
      }
}

}  // namespace

int main(int argc, char** argv) {
  register_attend();
  register_layers();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
