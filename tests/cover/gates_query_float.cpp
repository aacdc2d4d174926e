// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtQueryInFloatEqualsTheReference) {
  check_gates_at<float, at::Query>();
}

}  // namespace gated_attention::cover
