// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtKeyInDoubleEqualsTheReference) {
  check_gates_at<double, at::Key>();
}

}  // namespace gated_attention::cover
