// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/gates.hpp"

namespace gated_attention::cover {

TEST(CoverGates, EveryCombinationAtKeyInFloatEqualsTheReference) {
  check_gates_at<float, at::Key>();
}

}  // namespace gated_attention::cover
