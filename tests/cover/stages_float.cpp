// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/stages.hpp"

namespace gated_attention::cover {

TEST(CoverStages, EveryActivationAtEveryPositionInFloatEqualsTheReference) {
  check_activations<float>();
}

TEST(CoverStages, EveryNormAtEveryPositionInFloatEqualsTheReference) {
  check_norms<float>();
}

TEST(CoverStages, AScaleAtEveryPositionInFloatEqualsTheReference) {
  check_scales<float>();
}

TEST(CoverStages, GatesOfAUsersActivationInFloatEqualTheReference) {
  check_own_gates<float>();
}

}  // namespace gated_attention::cover
