// SPDX-License-Identifier: MIT
#include "gated_attention/layer/gated_attention.hpp"
#include "unit/layer_support.hpp"
#include "unit/own_stages.hpp"

// The tensors of a gate that has a source of its own, what it may read, and an activation of one's own. (Their results
// against the reference: tests/cover.)

namespace gated_attention::layers {
namespace {

using own::CubicEighth;
using own::Squares;

constexpr Shape shape{
    .model_dim = 12, .query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5};

TEST(GateSources, TensorsHaveTheNamesAndExtentsOfTheSource) {
  const auto extents = [](const auto& layer, const std::string& name) {
    for (const TensorInfo& tensor : layer.tensors())
      if (tensor.name == name)
        return std::to_string(tensor.rows) + "x" + std::to_string(tensor.columns);
    return std::string("absent");
  };
  EXPECT_EQ(extents(compose<float>(shape, Gate<at::Sdpa, FirstChannels<5>>{}), "sdpa_gate.weight"),
            "20x5");
  EXPECT_EQ(extents(compose<float>(shape, Gate<at::Key, LowRank<3>>{}), "key_gate.weight"), "12x3");
  EXPECT_EQ(extents(compose<float>(shape, Gate<at::Key, LowRank<3>>{}), "key_gate.down"), "3x12");
  EXPECT_EQ(extents(compose<float>(shape, Gate<at::Output, Squares>{}), "output_gate.weight"),
            "12x13");
}

TEST(GateSources, FirstChannelsReadsNoOther) {
  const auto layer = compose<double>(shape, Gate<at::Sdpa, FirstChannels<4>>{});
  const auto weights = pack(layer, drawn(Parameters<double>(layer)));
  Workspace workspace(layer, {.tokens = 1, .threads = 1});
  std::vector<double> x(12, 0.5), y(12), scores(20), others(20);
  layer.forward({.x = {x.data(), 1, 12}}, weights, workspace, {y.data(), 1, 12},
                {.gate_scores = {.sdpa = {scores.data(), 1, 4, 5}}});
  for (std::size_t c = 4; c < 12; ++c) x[c] = -3;
  layer.forward({.x = {x.data(), 1, 12}}, weights, workspace, {y.data(), 1, 12},
                {.gate_scores = {.sdpa = {others.data(), 1, 4, 5}}});
  EXPECT_EQ(scores, others);
}

TEST(GateSources, MoreChannelsThanThereAreAreRefused) {
  EXPECT_EQ(message_of([] { compose<float>(shape, Gate<at::Sdpa, FirstChannels<13>>{}); }),
            "GatedAttention: a gate at sdpa reads the first 13 channels of rows of 12");
  Shape cross = shape;
  cross.context_dim = 7;
  EXPECT_EQ(message_of([&] { compose<float>(cross, Gate<at::Key, FirstChannels<8>>{}); }),
            "GatedAttention: a gate at key reads the first 8 channels of rows of 7");
}

template <class Scalar>
void check_activation() {
  for (const double z : {-3.0, -0.5, 0.0, 0.25, 1.0, 7.0}) {
    const Scalar number = static_cast<Scalar>(z);
    Scalar values[lanes<Scalar>], slopes[lanes<Scalar>];
    packet::store<Scalar>(values,
                          packet::activate<CubicEighth, Scalar>(packet::broadcast<Scalar>(number)));
    packet::store<Scalar>(slopes, packet::activate_derivative<CubicEighth, Scalar>(
                                      packet::broadcast<Scalar>(number)));
    const double step = 1e-4;
    const double slope =
        (CubicEighth::reference(z + step) - CubicEighth::reference(z - step)) / (2 * step);
    for (Index lane = 0; lane < lanes<Scalar>; ++lane) {
      EXPECT_EQ(static_cast<double>(values[lane]), CubicEighth::reference(z));
      EXPECT_NEAR(static_cast<double>(slopes[lane]), slope, 1e-6);
    }
  }
}

TEST(Activations, OneOfOnesOwnHasTheSameValueInPacketsAndInDouble) {
  check_activation<float>();
  check_activation<double>();
}

}  // namespace
}  // namespace gated_attention::layers
