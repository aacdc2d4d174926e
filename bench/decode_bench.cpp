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
  const Index calls = std::max(Index{1}, static_cast<Index>(64e6 / bytes));
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
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
