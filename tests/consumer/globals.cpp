// SPDX-License-Identifier: MIT
// Short names at file scope, before the library: its headers shadow none of them.
#include <cmath>
#include <cstdio>
#include <vector>

extern std::vector<float> x, y, q, k, v;
extern int s, t, i;

std::vector<float> x(16 * 24, 0.5F), y(16 * 24), q(1), k(1), v(1);
int s = 0, t = 0, i = 0;

#include <gated_attention/gated_attention.hpp>

int main() {
  using namespace gated_attention;
  const auto attention =
      compose<float>({.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 8},
                     QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4}, Softcap{.cap = 20}, Alibi{},
                     SlidingWindow{.window = 9}, LearnedSink{}, Gate<at::Sdpa>{});
  Parameters parameters(attention);
  initialize(parameters, 1, 0.5);
  const auto weights = pack(attention, parameters);
  Workspace workspace(attention, {.tokens = 16, .threads = 2});
  attention.forward({.x = {x.data(), 16, 24}}, weights, workspace, {y.data(), 16, 24});
  RingCache ring(attention, {});
  ContiguousCache rounded(attention, {.tokens = 16}, stored_as<std::int8_t>);
  PagedCache paged(attention, {.pages = 2, .sequences = 1}, stored_as<bfloat16>);
  const auto extend = [&](auto& cache) {
    attention.extend({.x = {x.data(), 16, 24}}, weights, cache, workspace, {y.data(), 16, 24});
    cache.truncate(0, 12);
  };
  extend(ring);
  extend(rounded);
  extend(paged);
  paged.fork(0, 0, 4);
  double sum = 0;
  for (const float value : y) sum += std::abs(static_cast<double>(value));
  std::printf("%g\n", sum);
  return std::isfinite(sum) && sum > 0 && s + t + i == 0 && q.size() + k.size() + v.size() == 3 ? 0
                                                                                                : 1;
}
