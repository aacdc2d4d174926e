// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/stages.hpp"

namespace gated_attention::cover {

TEST(CoverStages, EveryActivationAtEveryPositionInDoubleEqualsTheReference) {
  check_activations<double>();
}

TEST(CoverStages, EveryNormAtEveryPositionInDoubleEqualsTheReference) {
  check_norms<double>();
}

TEST(CoverStages, AScaleAtEveryPositionInDoubleEqualsTheReference) {
  check_scales<double>();
}

TEST(CoverStages, GatesOfAUsersActivationInDoubleEqualTheReference) {
  check_own_gates<double>();
}

}  // namespace gated_attention::cover
