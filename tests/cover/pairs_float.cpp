// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/pairs.hpp"

namespace gated_attention::cover {

void expect_every_pair(const Tally& tally) {
  EXPECT_EQ(tally.missing(), "");
  EXPECT_EQ(tally.factors(), 16u);
  EXPECT_EQ(tally.levels("input norms"), 7u);
  EXPECT_EQ(tally.levels("other norms"), 7u);
  EXPECT_EQ(tally.levels("rope"), 3u);
  EXPECT_EQ(tally.levels("turn"), 7u);
  EXPECT_EQ(tally.levels("theta"), 3u);
  EXPECT_EQ(tally.levels("mask"), 4u);
  EXPECT_EQ(tally.levels("window"), 5u);
  EXPECT_EQ(tally.levels("biases"), 7u);
  EXPECT_EQ(tally.levels("gates"), 7u);
  EXPECT_EQ(tally.levels("others"), 3u);
  EXPECT_EQ(tally.levels("static"), 2u);
  EXPECT_EQ(tally.levels("order"), 5u);
  EXPECT_EQ(tally.levels("shape"), 11u);
  EXPECT_EQ(tally.levels("situation"), 11u);
  EXPECT_EQ(tally.levels("threads"), 3u);
  EXPECT_EQ(tally.levels("eps"), 3u);
}

TEST(CoverPairs, EveryPairOfChoicesInFloatEqualsTheReference) {
  expect_every_pair(check_all_rows<float>());
}

}  // namespace gated_attention::cover
