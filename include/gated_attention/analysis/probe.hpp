// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "gated_attention/core/parallel.hpp"
#include "gated_attention/math/packet.hpp"

// What the machine gives at this moment. Clock and neighbours drift within minutes, so that every
// figure of a benchmark is a share of a probe taken just before and just after it.

namespace gated_attention::analysis {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Median of a copy.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Runs body(thread) on every one of `threads` threads at once.
template <class Body>
void on_each_thread(int threads, const Body& body) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num());
#else
  for (int thread = 0; thread < threads; ++thread) body(thread);
#endif
}

/// Multiply-adds on registers alone: as many independent chains as hide their latency. Returns
/// their sum.
template <class Scalar>
Scalar fma_chains(std::ptrdiff_t steps) {
  constexpr int chains = 12;
  Packet<Scalar> c[chains];
  for (int i = 0; i < chains; ++i) c[i] = packet::broadcast<Scalar>(static_cast<Scalar>(i));
  Packet<Scalar> a = packet::broadcast<Scalar>(Scalar(0.999)),
                 b = packet::broadcast<Scalar>(Scalar(0.001));
  for (std::ptrdiff_t step = 0; step < steps; ++step) {
    GATED_ATTENTION_UNROLL
    for (int i = 0; i < chains; ++i) c[i] = Eigen::internal::pmadd(a, c[i], b);
#if defined(__GNUC__) && defined(__x86_64__) && defined(EIGEN_VECTORIZE)
    asm volatile("" : "+x"(a), "+x"(b));
#endif
  }
  Packet<Scalar> sum = c[0];
  for (int i = 1; i < chains; ++i) sum = Eigen::internal::padd(sum, c[i]);
  return Eigen::internal::predux(sum);
}

/// The multiply-add peak of `threads` threads together, in GFLOP/s of float; about a millisecond.
template <class Scalar = float>
double fma_probe_gflops(int threads) {
  constexpr std::ptrdiff_t steps = 100'000;
  constexpr double operations =
      2.0 * 12 * static_cast<double>(lanes<Scalar>) * static_cast<double>(steps);
  std::vector<double> rate(static_cast<std::size_t>(threads));
  std::vector<Scalar> sink(static_cast<std::size_t>(threads));
  on_each_thread(threads, [&](int thread) {
    const auto start = Clock::now();
    sink[static_cast<std::size_t>(thread)] = fma_chains<Scalar>(steps);
    rate[static_cast<std::size_t>(thread)] = operations / seconds_since(start) * 1e-9;
  });
  double sum = 0;
  for (double r : rate) sum += r;
  return sum;
}

/// What `threads` threads together read from memory, in GB/s: each its own part of the next 128 MiB of a buffer far larger
/// than all caches, so that nothing of it is at hand. One caller at a time.
inline double read_bandwidth_gbs(int threads) {
  constexpr std::size_t floats = std::size_t{1} << 29, piece = std::size_t{1} << 25;
  static std::vector<float> buffer(floats, 1.0F);
  static std::size_t next = 0;
  const float* const begin = buffer.data() + next;
  next = (next + piece) % floats;
  const std::size_t part = piece / static_cast<std::size_t>(threads);
  std::vector<float> sink(static_cast<std::size_t>(threads));
  const auto start = Clock::now();
  on_each_thread(threads, [&](int thread) {
    const float* from = begin + part * static_cast<std::size_t>(thread);
    constexpr std::size_t step = 4 * static_cast<std::size_t>(lanes<float>);
    Packet<float> sum[4] = {packet::zero<float>(), packet::zero<float>(), packet::zero<float>(),
                            packet::zero<float>()};
    for (std::size_t i = 0; i + step <= part; i += step)
      for (std::size_t j = 0; j < 4; ++j)
        sum[j] = packet::add(
            sum[j], packet::load<float>(from + i + j * static_cast<std::size_t>(lanes<float>)));
    sink[static_cast<std::size_t>(thread)] = packet::reduce_add(
        packet::add(packet::add(sum[0], sum[1]), packet::add(sum[2], sum[3])));
  });
  const double gigabytes =
      static_cast<double>(part) * static_cast<double>(threads) * sizeof(float) * 1e-9;
  return gigabytes / seconds_since(start);
}

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention::analysis
