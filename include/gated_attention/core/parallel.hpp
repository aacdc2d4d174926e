// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "gated_attention/core/index.hpp"
#include "gated_attention/core/instruction_set.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// How many threads a call may use by default: what OpenMP would give, 1 without it.
inline Index default_threads() {
#if defined(_OPENMP)
  return static_cast<Index>(omp_get_max_threads());
#else
  return 1;
#endif
}

namespace kernel {

/// As many threads as a piece of work is worth, counted in multiply-adds: waking a sleeping team takes about 100 µs, in
/// which one thread does some 8 million. Threads never change a bit.
inline Index threads_for(Index threads, double multiply_adds) { return multiply_adds < 8e6 ? 1 : threads; }

#if defined(_OPENMP)
/// parallel_for on a team. A function of its own: clang++ asks the runtime for the thread's number where a function with
/// a parallel region is entered, and the first such question starts the runtime, which allocates.
template <class Body>
GATED_ATTENTION_NO_INLINE void run_team(int team, Index items, const Body& body) {
  std::atomic<Index> next{0};
#pragma omp parallel num_threads(team)
  {
    const Index thread = static_cast<Index>(omp_get_thread_num());
    for (Index item = next.fetch_add(1, std::memory_order_relaxed); item < items;
         item = next.fetch_add(1, std::memory_order_relaxed))
      body(item, thread);
  }
}
#endif

/// Runs body(item, thread) for every item in [0, items), each once, in ascending order of hand-out, on at most `threads`
/// threads (thread in [0, threads)). One thread: a plain loop, no system call. The body does not throw. Never nests: inside
/// a parallel region of the caller's it runs on the calling thread.
template <class Body>
void parallel_for(Index threads, Index items, const Body& body) {
#if defined(_OPENMP)
  if (threads > 1 && items > 1 && !omp_in_parallel()) {
    run_team(static_cast<int>(threads < items ? threads : items), items, body);
    return;
  }
#endif
  static_cast<void>(threads);
  for (Index item = 0; item < items; ++item) body(item, Index{0});
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
