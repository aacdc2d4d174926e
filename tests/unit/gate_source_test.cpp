// SPDX-License-Identifier: MIT
#include "unit/layer_support.hpp"

// What a gate's logits are read from, and an activation of one's own.

namespace gated_attention::layers {

/// A source of a user's: the squares of a row, and a 1 behind them.
struct Squares {
  static constexpr bool is_gate_source = true;
  static constexpr Index features(Index model_dim) { return model_dim + 1; }
  template <class Scalar>
  static void read(const Scalar* row, Index model_dim, Scalar* features) {
    for (Index i = 0; i < model_dim; ++i) features[i] = row[i] * row[i];
    features[model_dim] = 1;
  }
};

/// An activation of a user's: s = z³/8
struct CubicEighth {
  template <class Scalar>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    const Packet<Scalar> eighth = packet::broadcast<Scalar>(Scalar(0.125));
    return packet::mul(packet::mul(z, eighth), packet::mul(z, z));
  }
  template <class Scalar>
  static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(0.375)), packet::mul(z, z));
  }
  static double reference(double z) { return z * z * z / 8; }
};

namespace {

constexpr Shape shape{
    .model_dim = 12, .query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5};

/// Rows with gaps of NaN between them.
template <class Scalar>
struct Stream {
  static constexpr Index tokens = 9, width = 12, gap = 3;
  std::vector<Index> lengths = {5, 0, 4};
  std::vector<Scalar> x;

  Stream() {
    std::mt19937_64 engine(8);
    x = normal_numbers<Scalar>(tokens * (width + gap), engine);
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < gap; ++c)
        x[at(t * (width + gap) + width + c)] = std::numeric_limits<Scalar>::quiet_NaN();
  }
  Batch<Scalar> batch() const {
    return {.x = {x.data(), tokens, width, width + gap}, .lengths = lengths};
  }
};

/// A gate from the source at every position of one layer.
template <class Scalar, class Source>
void check_source() {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  const Stream<Scalar> stream;
  const auto layer =
      compose<Scalar>(shape, Gate<at::Query, Source>{}, Gate<at::Key, Source, Headwise, Bias>{},
                      Gate<at::Value, Source, SharedHeads>{}, Gate<at::Sdpa, Source, HeadBias>{},
                      Gate<at::Output, Source, Bias, Tanh>{});
  check(layer, drawn(Parameters<Scalar>(layer)), stream.batch());
  const auto two = compose<Scalar>(shape, Gate<at::Sdpa, HeadMean, Source>{}, Gate<at::Sdpa, Add>{},
                                   Gate<at::Query, CubicEighth, Source>{});
  check(two, drawn(Parameters<Scalar>(two)), stream.batch());
}

template <class Scalar>
void check_sources() {
  check_source<Scalar, FirstChannels<1>>();
  check_source<Scalar, FirstChannels<12>>();
  check_source<Scalar, LowRank<3>>();
  check_source<Scalar, Squares>();
}

TEST(GateSources, AtEveryPositionAreTheReferenceInFloat) {
  check_sources<float>();
}
TEST(GateSources, AtEveryPositionAreTheReferenceInDouble) {
  check_sources<double>();
}

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
