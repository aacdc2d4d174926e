// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtQueryInDoubleEqualsTheReference) {
  check_gates_at<double, at::Query>();
}

}  // namespace gated_attention::cover
