// SPDX-License-Identifier: MIT
// The projections' product, y = x Wᵀ, on packed weights: as a share of the FMA probe and, for the
// weights alone, of the read bandwidth, both taken just before and after each sample. Bind the
// threads: OMP_PLACES=cores OMP_PROC_BIND=true.

#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "gated_attention/kernel/product.hpp"
#include "probe.hpp"

namespace {

using namespace gated_attention;  // NOLINT

/// Buffers of one product of [rows, depth] and [columns, depth].
struct Problem {
  detail::AlignedBytes x_memory, panel_memory, y_memory, scratch_memory;
  kernel::ProductSource<float> x;
  kernel::PanelMatrix<float> weight;
  kernel::ProductTarget<float> y;
  kernel::ProductScratch<float> scratch;

  Problem(Index rows, Index columns, Index depth, Index threads) {
    std::mt19937 generator(1);
    const auto filled = [&](detail::AlignedBytes& bytes, Index count) {
      bytes = detail::AlignedBytes(count * static_cast<Index>(sizeof(float)));
      auto* numbers = reinterpret_cast<float*>(bytes.data());
      for (Index i = 0; i < count; ++i)
        numbers[i] = static_cast<float>(generator() % 2048) / 1024.0F - 1.0F;
      return numbers;
    };
    x = {filled(x_memory, rows * depth), rows, depth, 1, depth, depth};
    weight = {filled(panel_memory, kernel::panel_elements(columns, depth)), columns, depth};
    y = {filled(y_memory, rows * columns), columns, nullptr};
    scratch_memory =
        detail::AlignedBytes(kernel::product_scratch_bytes<float>(rows, depth, threads));
    detail::Arena arena(scratch_memory.data());
    scratch = kernel::take_product_scratch<float>(arena, rows, depth, threads);
  }
};

void bench_product(benchmark::State& state, Index rows, Index columns, Index depth, int threads) {
  const Problem problem(rows, columns, depth, threads);
  const double weights = static_cast<double>(columns) * static_cast<double>(depth);
  const double operations = 2.0 * weights * static_cast<double>(rows);
  const bool memory_bound = rows <= 16;
  const auto probe_bandwidth = [&] {
    return memory_bound ? bench::read_bandwidth_gbs(threads) : 1.0;
  };
  kernel::multiply(problem.x, problem.weight, problem.y, problem.scratch, threads);
  std::vector<double> times, probes, shares, bandwidths, bandwidth_shares;
  for (auto _ : state) {
    const double bandwidth_before = probe_bandwidth();
    const double before = bench::fma_probe_gflops(threads);
    const auto start = bench::Clock::now();
    kernel::multiply(problem.x, problem.weight, problem.y, problem.scratch, threads);
    const double seconds = bench::seconds_since(start);
    const double probe = 0.5 * (before + bench::fma_probe_gflops(threads));
    const double bandwidth = 0.5 * (bandwidth_before + probe_bandwidth());
    state.SetIterationTime(seconds);
    times.push_back(seconds);
    probes.push_back(probe);
    shares.push_back(100.0 * operations / seconds * 1e-9 / probe);
    bandwidths.push_back(bandwidth);
    bandwidth_shares.push_back(100.0 * weights * sizeof(float) / seconds * 1e-9 / bandwidth);
  }
  state.counters["GFLOP/s"] = operations / bench::median(times) * 1e-9;
  state.counters["probe"] = bench::median(probes);
  state.counters["share_%"] = bench::median(shares);
  if (!memory_bound) return;
  state.counters["probe_GB/s"] = bench::median(bandwidths);
  state.counters["read_%"] = bench::median(bandwidth_shares);
}

void register_all() {
  struct Shape {
    Index depth, columns;
    std::vector<Index> rows;
  };
  const Shape shapes[] = {{2048, 9216, {1, 4, 16, 128, 512, 2048}}, {4096, 2048, {1, 128, 2048}}};
  for (const Shape& shape : shapes)
    for (const Index rows : shape.rows)
      for (const int threads : {1, 2}) {
        const std::string name = "BM_product/depth:" + std::to_string(shape.depth) +
                                 "/columns:" + std::to_string(shape.columns) +
                                 "/rows:" + std::to_string(rows) +
                                 "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(), bench_product, rows, shape.columns, shape.depth,
                                     threads)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(rows >= 512 ? 7 : 15);
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
