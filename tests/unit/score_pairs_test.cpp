// SPDX-License-Identifier: MIT
#include "unit/score_support.hpp"

// Stages on scores together: all with every mask, with a sink and without, and any two: in one order in
// float, in the other in double.

namespace gated_attention::scores {
namespace {

const SoftmaxScale scale{.scale = 0.6};
const Softcap softcap{.cap = 2.5};
const Score<Fading> fading{{.rate = 0.02, .reach = 140}};

template <class Scalar, class Mask>
void check_all(const char* name, const Mask& mask) {
  SCOPED_TRACE(name);
  check<Scalar>(scale, softcap, Alibi{}, ScoreBias{}, mask, BooleanMask{}, fading);
  check<Scalar>(BooleanMask{}, fading, LearnedSink{}, ScoreBias{}, Alibi{}, softcap, scale, mask);
}

template <class Scalar>
void check_masks() {
  check_all<Scalar>("Causal", Causal{});
  check_all<Scalar>("CausalTopLeft", CausalTopLeft{});
  check_all<Scalar>("SlidingWindow", SlidingWindow{.window = 40});
  check_all<Scalar>("PrefixCausal", PrefixCausal{});
  check_all<Scalar>("BidirectionalWindow", BidirectionalWindow{.left = 90, .right = 2});
  check_all<Scalar>("Bidirectional", Bidirectional{});
}

TEST(Scores, AllStagesWithEachMaskAreTheReferenceInFloat) {
  check_masks<float>();
}
TEST(Scores, AllStagesWithEachMaskAreTheReferenceInDouble) {
  check_masks<double>();
}

template <class Scalar, class First, class Second>
void check_pair(const First& first, const Second& second) {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  if constexpr (std::is_same_v<Scalar, float>)
    check<Scalar>(first, second);
  else
    check<Scalar>(PrefixCausal{}, second, first, LearnedSink{});
}

template <class Scalar>
void check_pairs() {
  check_pair<Scalar>(scale, softcap);
  check_pair<Scalar>(scale, Alibi{});
  check_pair<Scalar>(scale, ScoreBias{});
  check_pair<Scalar>(scale, BooleanMask{});
  check_pair<Scalar>(scale, fading);
  check_pair<Scalar>(softcap, Alibi{});
  check_pair<Scalar>(softcap, ScoreBias{});
  check_pair<Scalar>(softcap, BooleanMask{});
  check_pair<Scalar>(softcap, fading);
  check_pair<Scalar>(Alibi{}, ScoreBias{});
  check_pair<Scalar>(Alibi{}, BooleanMask{});
  check_pair<Scalar>(Alibi{}, fading);
  check_pair<Scalar>(ScoreBias{}, BooleanMask{});
  check_pair<Scalar>(ScoreBias{}, fading);
  check_pair<Scalar>(BooleanMask{}, fading);
}

TEST(Scores, AnyTwoStagesAreTheReferenceInFloat) {
  check_pairs<float>();
}
TEST(Scores, AnyTwoStagesInTheOtherOrderAreTheReferenceInDouble) {
  check_pairs<double>();
}

}  // namespace
}  // namespace gated_attention::scores
