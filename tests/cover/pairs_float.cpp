// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/pairs.hpp"

namespace gated_attention::cover {

TEST(CoverPairs, EveryPairOfChoicesInFloatEqualsTheReference) {
  expect_every_pair(check_all_rows<float>());
}

}  // namespace gated_attention::cover
