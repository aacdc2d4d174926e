// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtValueInDoubleEqualsTheReference) {
  check_gates_at<double, at::Value>();
}

}  // namespace gated_attention::cover
