// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtValueInFloatEqualsTheReference) {
  check_gates_at<float, at::Value>();
}

}  // namespace gated_attention::cover
