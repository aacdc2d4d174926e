// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtOutputInFloatEqualsTheReference) {
  check_gates_at<float, at::Output>();
}

TEST(CoverGates, EveryCombinationAtOutputInDoubleEqualsTheReference) {
  check_gates_at<double, at::Output>();
}

}  // namespace gated_attention::cover
