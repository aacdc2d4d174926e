// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtSdpaInDoubleEqualsTheReference) {
  check_gates_at<double, at::Sdpa>();
}

}  // namespace gated_attention::cover
