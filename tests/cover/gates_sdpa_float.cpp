// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtSdpaInFloatEqualsTheReference) {
  check_gates_at<float, at::Sdpa>();
}

}  // namespace gated_attention::cover
