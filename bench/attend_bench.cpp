// SPDX-License-Identifier: MIT
// attend by itself, causal, ungated and with the elementwise sigmoid gate in its epilogue, as a
// share of the FMA probe taken just before and after each sample. Bind the threads:
// OMP_PLACES=cores OMP_PROC_BIND=true.

#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/kernel/attend.hpp"
#include "probe.hpp"

namespace {

using namespace gated_attention;  // NOLINT

struct Shape {
  Index query_heads, kv_heads, head_dim;
};

/// row ← row ⊙ 1 / (1 + 2^(−log2(e)·logit))
void sigmoid_gate(const RowStage<float>& stage, float* rows, Index heads, Index head_stride,
                  const RowPlace<float>& place) {
  using namespace Eigen::internal;  // NOLINT
  const auto minus_log2e = packet::broadcast<float>(-1.44269504F),
             one = packet::broadcast<float>(1.0F);
  for (Index h = 0; h < heads; ++h) {
    float* row = rows + h * head_stride;
    const float* logits = place.gate_logits + (place.first_head + h) * stage.logits_head_stride;
    for (Index c = 0; c < stage.width; c += lanes<float>) {
      const auto e =
          packet::exp2<float>(pmul(packet::load_at<float>(logits, c, stage.width), minus_log2e));
      packet::store<float>(row + c, pdiv(packet::load<float>(row + c), padd(one, e)));
    }
  }
}

/// Buffers and arguments of one causal call over n tokens.
struct Problem {
  detail::AlignedBytes memory[4], scratch_memory;
  kernel::AttendScratch<float> scratch;
  kernel::AttendSequence sequence;
  RowStage<float> stage;
  kernel::AttendArguments<float> call;

  Problem(const Shape& shape, Index n, Index threads, bool gated) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    const auto filled = [&](detail::AlignedBytes& bytes, Index count) {
      bytes = detail::AlignedBytes(count * static_cast<Index>(sizeof(float)));
      auto* numbers = reinterpret_cast<float*>(bytes.data());
      for (Index i = 0; i < count; ++i) numbers[i] = normal(generator);
      return numbers;
    };
    const Index d = shape.head_dim, width = shape.query_heads * d;
    const KeyValueLayout<float> layout{d, d};
    const Index blocks = detail::divide_up(n, block_keys);
    float* q = filled(memory[0], n * width);
    float* kv = filled(memory[1], shape.kv_heads * blocks * layout.bytes() / 4);
    float* logits = filled(memory[2], n * width);
    float* out = filled(memory[3], n * width);
    const kernel::AttendLimits limits{shape.query_heads, shape.kv_heads, d, d, n, 1, threads};
    scratch_memory = detail::AlignedBytes(kernel::attend_scratch_bytes<float>(limits));
    detail::Arena arena(scratch_memory.data());
    scratch = kernel::AttendScratch<float>(arena, limits);
    sequence.tokens = n;
    sequence.bounds = {.keys = n, .after = 0};
    sequence.blocks = {.base = reinterpret_cast<std::byte*>(kv),
                       .block_stride = layout.bytes(),
                       .head_stride = blocks * layout.bytes()};
    stage = {.run = sigmoid_gate, .width = d, .logits_head_stride = d};
    call.query_heads = shape.query_heads;
    call.kv_heads = shape.kv_heads;
    call.key_dim = call.value_dim = d;
    call.q = {q, n, shape.query_heads, d};
    call.score_scale = 1.44269504F / std::sqrt(static_cast<float>(d));
    call.sequences = &sequence;
    call.sequence_count = 1;
    call.stages = &stage;
    call.stage_count = gated ? 1 : 0;
    call.gate_logits = logits;
    call.gate_token_stride = width;
    call.out = {out, n, shape.query_heads, d};
  }
};

void bench_attend(benchmark::State& state, const Shape& shape, Index n, int threads, bool gated) {
  Problem problem(shape, n, threads, gated);
  const double pairs = 0.5 * static_cast<double>(n) * static_cast<double>(n + 1);
  const double operations =
      4.0 * static_cast<double>(shape.head_dim) * static_cast<double>(shape.query_heads) * pairs;
  kernel::attend<float>(problem.call, problem.scratch, threads);
  std::vector<double> shares, probes, times;
  for (auto _ : state) {
    const double before = bench::fma_probe_gflops(threads);
    const auto start = bench::Clock::now();
    kernel::attend<float>(problem.call, problem.scratch, threads);
    const double seconds = bench::seconds_since(start);
    const double probe = 0.5 * (before + bench::fma_probe_gflops(threads));
    state.SetIterationTime(seconds);
    times.push_back(seconds);
    probes.push_back(probe);
    shares.push_back(100.0 * operations / seconds * 1e-9 / probe);
  }
  state.counters["GFLOP/s"] = operations / bench::median(times) * 1e-9;
  state.counters["probe"] = bench::median(probes);
  state.counters["share_%"] = bench::median(shares);
}

void register_all() {
  const std::pair<Shape, std::vector<Index>> cases[] = {
      {{16, 4, 128}, {512, 2048, 4096}}, {{16, 2, 256}, {2048}}, {{16, 4, 64}, {512, 2048}}};
  for (const auto& [shape, lengths] : cases)
    for (const Index n : lengths)
      for (const int threads : {1, 2})
        for (const bool gated : {false, true}) {
          const std::string name =
              "BM_attend/heads:" + std::to_string(shape.query_heads) + "/" +
              std::to_string(shape.kv_heads) + "/dim:" + std::to_string(shape.head_dim) +
              "/tokens:" + std::to_string(n) + "/gate:" + (gated ? "elementwise" : "none") +
              "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), bench_attend, shape, n, threads, gated)
              ->UseManualTime()
              ->Unit(benchmark::kMillisecond)
              ->MinTime(0.3);
        }
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
