// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/pairs.hpp"

namespace gated_attention::cover {

TEST(CoverPairs, EveryPairOfChoicesInDoubleEqualsTheReference) {
  expect_every_pair(check_all_rows<double>());
}

}  // namespace gated_attention::cover
