// SPDX-License-Identifier: MIT
// What a user writes first: a layer, its weights, a workspace, a forward.
#include <cmath>
#include <cstdio>
#include <gated_attention/gated_attention.hpp>
#include <vector>

int main() {
  using namespace gated_attention;
  const auto attention =
      compose<float>({.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 8},
                     QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4}, Causal{}, Gate<at::Sdpa>{});
  Parameters parameters(attention);
  initialize(parameters, 1, 0.5);
  const auto weights = pack(attention, parameters);
  Workspace workspace(attention, {.tokens = 16, .threads = 2});
  std::vector<float> x(16 * 24, 0.5F), y(16 * 24);
  attention.forward({.x = {x.data(), 16, 24}}, weights, workspace, {y.data(), 16, 24});
  double sum = 0;
  for (const float value : y) sum += std::abs(static_cast<double>(value));
  std::printf("gated_attention %d.%d.%d, %s: %g\n", GATED_ATTENTION_VERSION_MAJOR,
              GATED_ATTENTION_VERSION_MINOR, GATED_ATTENTION_VERSION_PATCH, instruction_set, sum);
  return std::isfinite(sum) && sum > 0 ? 0 : 1;
}
