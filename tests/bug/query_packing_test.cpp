// SPDX-License-Identifier: MIT
// The rows of query and gate taken apart as another published layer packs them: plausible numbers,
// another layer. llmmanorg/llmman#16, NeuraLegion/shainet#199, local-inference-lab/vllm#454.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gated_attention/io/packing.hpp"

namespace gated_attention {
namespace {

/// E = 1, x = 1, D = 1, Hq = 4, Hkv = 2, packed row i holds i: the logits are the gate's rows
/// themselves.
std::vector<double> gate_logits(QueryPacking packing) {
  const PackedQuery layout{packing, 4, 2, 1, 1};
  const std::vector<double> packed = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<double> query(4), gate(4);
  split_query(layout, MatrixView<const double>(packed.data(), 8, 1),
              MatrixView<double>(query.data(), 4, 1), MatrixView<double>(gate.data(), 4, 1));
  return gate;
}

TEST(QueryPackingBug, PerQueryHeadTakesEveryOtherRow) {
  const std::vector<double> logits = gate_logits(QueryPacking::PerQueryHead);
  EXPECT_EQ(logits, (std::vector<double>{1, 3, 5, 7}));
  const double scores[] = {.731059, .952574, .993307, .999089};
  for (std::size_t h = 0; h < 4; ++h) EXPECT_NEAR(1 / (1 + std::exp(-logits[h])), scores[h], 5e-7);
}

TEST(QueryPackingBug, PerKvGroupTakesTheEndOfEveryGroup) {
  EXPECT_EQ(gate_logits(QueryPacking::PerKvGroup), (std::vector<double>{2, 3, 6, 7}));
}

}  // namespace
}  // namespace gated_attention
