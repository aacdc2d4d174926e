// SPDX-License-Identifier: MIT
#include "gated_attention/reference/reference.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

// The reference against numbers worked out by hand, and against sums in long double.

namespace gated_attention::reference {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// One head of width 1.
Tensor column(const std::vector<double>& values) {
  Tensor tensor(static_cast<Index>(values.size()), 1, 1);
  tensor.values = values;
  return tensor;
}

Tensor row(const std::vector<double>& values) {
  Tensor tensor(1, 1, static_cast<Index>(values.size()));
  tensor.values = values;
  return tensor;
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected,
                 double error) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], error) << "at " << i;
}

Attention attend_zero_queries(Index queries, const std::vector<double>& values,
                              const Visible& visible) {
  return attend(column(std::vector<double>(static_cast<std::size_t>(queries))),
                column(std::vector<double>(values.size())), column(values), visible, 1);
}

/// A layer of tests: what forward asks of one.
template <class... Stages>
struct PlainLayer {
  Shape extents;
  StageList<Stages...> list;

  const Shape& shape() const { return extents; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(extents.head_dim)); }
  const StageList<Stages...>& stages() const { return list; }
};

template <class... Stages>
PlainLayer<Stages...> layer_of(const Shape& shape, const Stages&... stages) {
  return {shape, detail::make_stage_list(stages...)};
}

/// Tensors by name.
struct Tensors {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, Index> rows;

  void add(const std::string& name, Index row_count, const std::vector<double>& numbers) {
    values[name] = numbers;
    rows[name] = row_count;
  }
  MatrixView<const double> operator[](const std::string& name) const {
    const std::vector<double>& numbers = values.at(name);
    return {numbers.data(), rows.at(name), static_cast<Index>(numbers.size()) / rows.at(name)};
  }
};

/// E = Hq = Hkv = D = Dv = 1 and all projections 1.
Tensors units() {
  Tensors tensors;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"})
    tensors.add(name, 1, {1});
  return tensors;
}

constexpr Shape unit_shape{.model_dim = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1};

std::vector<double> run_unit(const auto& layer, const Tensors& tensors,
                             const std::vector<double>& x) {
  return forward(layer, tensors,
                 MatrixView<const double>(x.data(), static_cast<Index>(x.size()), 1))
      .y.values;
}

TEST(Reference, AFullyMaskedRowIsZeroAndItsLogSumExpMinusInfinity) {
  const Attention result = attend_zero_queries(5, {1, 3}, {.future = 0});
  expect_near(result.output.values, {0, 0, 0, 1, 2}, 0);
  EXPECT_EQ(result.log_sum_exp(0, 0, 0), -infinity);
  EXPECT_NEAR(result.log_sum_exp(4, 0, 0), std::log(2.0), 1e-15);
  EXPECT_EQ(result.first_key(2, 0, 0), 0);
  EXPECT_EQ(result.first_key(4, 0, 0), 0.5);
}

TEST(Reference, AMaskedKeyIsNotRead) {
  const Attention later =
      attend(column({0, 0}), column({1, nan}), column({7, nan}), {.future = 0}, 1);
  EXPECT_EQ(later.output(0, 0, 0), 7);
  EXPECT_TRUE(std::isnan(later.output(1, 0, 0)));
  const Attention earlier =
      attend(column({1}), column({nan, 1}), column({infinity, 7}), {.past = 0, .future = 0}, 1);
  EXPECT_EQ(earlier.output(0, 0, 0), 7);
}

TEST(Reference, VeryNegativeScoresKeepTheirSoftmax) {
  const Attention result = attend(column({-1}), column({60000, 60001}), column({1, 0}), {}, 1);
  EXPECT_NEAR(result.output(0, 0, 0), 0.7310585786300049, 1e-15);
  EXPECT_NEAR(result.log_sum_exp(0, 0, 0), -60000 + 0.3132616875182228, 1e-10);
}

TEST(Reference, CausalIsAlignedAtTheBottomRight) {
  expect_near(attend_zero_queries(2, {0, 1, 2, 3, 4}, {.future = 0}).output.values, {1.5, 2}, 0);
}

TEST(Reference, AWindowCountsTheCurrentToken) {
  const std::vector<double> x = {0, 1, 2, 3, 4};
  Tensors tensors = units();
  tensors.add("q_proj.weight", 1, {0});
  expect_near(run_unit(layer_of(unit_shape, SlidingWindow{.window = 3}), tensors, x),
              {0, 0.5, 1, 2, 3}, 1e-15);
  expect_near(run_unit(layer_of(unit_shape, Bidirectional{}), tensors, x), {2, 2, 2, 2, 2}, 1e-15);
  expect_near(
      run_unit(layer_of(unit_shape, BidirectionalWindow{.left = 1, .right = 2}), tensors, x),
      {1, 1.5, 2.5, 3, 3.5}, 1e-15);
  expect_near(run_unit(layer_of(unit_shape), tensors, x), {0, 0.5, 1, 1.5, 2}, 1e-15);
}

TEST(Reference, EachKvHeadServesConsecutiveQueryHeads) {
  Tensor q(1, 4, 1), k(1, 2, 1), v(1, 2, 1);
  v.values = {10, 20};
  expect_near(attend(q, k, v, {}, 1).output.values, {10, 10, 20, 20}, 0);
}

TEST(Reference, SequencesOfABatchDoNotSeeEachOther) {
  Tensors tensors = units();
  tensors.add("q_proj.weight", 1, {0});
  const std::vector<double> x = {1, 3, 10, 20, 60};
  const std::vector<Index> lengths = {0, 2, 0, 3};
  const Result result =
      forward(layer_of(unit_shape), tensors, MatrixView<const double>(x.data(), 5, 1), lengths);
  expect_near(result.y.values, {1, 2, 10, 15, 30}, 1e-14);
  EXPECT_EQ(result.first_token_attention(2, 0, 0), 1);
}

TEST(Reference, NormsMultiplyByWeightOrByOneAndWeight) {
  Tensor x = row({3, 4});
  normalize(x, 1, {1, 1}, 0);
  expect_near(x.values, {0.848528137423857, 1.131370849898476}, 1e-15);

  const Shape shape{.model_dim = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 2};
  Tensors tensors;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"})
    tensors.add(name, 2, {1, 0, 0, 1});
  tensors.add("value_norm.weight", 1, {0, 0});
  const std::vector<double> input = {3, 4};
  const MatrixView<const double> view(input.data(), 1, 2);
  using Offset = Normalize<at::Value, RmsNorm<weight::OffsetFromOne>>;
  expect_near(forward(layer_of(shape, Offset{.eps = 0}), tensors, view).y.values,
              {0.848528137423857, 1.131370849898476}, 1e-15);
  expect_near(forward(layer_of(shape, Normalize<at::Value>{.eps = 0}), tensors, view).y.values,
              {0, 0}, 0);
}

TEST(Reference, NormsKeepTheirEpsAndSurviveLargeAndSmallRows) {
  const auto normalized = [](const std::vector<double>& values, double eps) {
    Tensor x = row(values);
    normalize(x, 1, {}, eps);
    return x.values;
  };
  expect_near(normalized({1e25, 1e25, 1e25, 1e25}, 1e-6), {1, 1, 1, 1}, 1e-15);
  expect_near(normalized({0, 0}, 1e-6), {0, 0}, 0);
  expect_near(normalized({0, 0}, 0), {0, 0}, 0);
  expect_near(normalized({1e-4}, 1e-6), {0.0995037190209989}, 1e-15);
  expect_near(normalized({1e-3}, 1e-6), {0.7071067811865475}, 1e-15);
  expect_near(normalized({1e-3}, 1e-5), {0.30151134457776363}, 1e-15);
  std::vector<double> lone(10000);
  lone[0] = 100;
  EXPECT_NEAR(normalized(lone, 1e-6)[0], 99.99995, 1e-6);
}

TEST(Reference, ANormOverTheRowTakesAllHeadsTogether) {
  Tensor apart(1, 2, 1), together(1, 2, 1);
  apart.values = together.values = {3, 4};
  normalize(apart, 1, {}, 0);
  normalize(together, 2, {1, 2}, 0);
  expect_near(apart.values, {1, 1}, 1e-15);
  expect_near(together.values, {0.848528137423857, 2 * 1.131370849898476}, 1e-15);
}

Rotation rotation_of(Index dim, bool interleaved = false) {
  return {.interleaved = interleaved, .rotary_dim = dim, .rotated_pairs = dim / 2};
}

TEST(Reference, RotationPairsHalvesOrNeighbours) {
  Tensor neighbours = row({1, 2, 3, 4}), halves = neighbours, still = neighbours;
  rotate(neighbours, rotation_of(4, true), {1});
  expect_near(neighbours.values, {-1.142640, 1.922076, 2.959851, 4.029800}, 1e-6);
  rotate(halves, rotation_of(4), {1});
  expect_near(halves.values, {-1.984111, 1.959901, 2.462378, 4.019800}, 1e-6);
  rotate(still, rotation_of(4), {0});
  expect_near(still.values, {1, 2, 3, 4}, 0);
}

TEST(Reference, APartialRotationLeavesTheRestAlone) {
  Tensor first = row({1, 2, 3, 4, 5, 6, 7, 8}), last = first, proportional = first;
  rotate(first, rotation_of(2), {1});
  expect_near(first.values, {-1.142640, 1.922076, 3, 4, 5, 6, 7, 8}, 1e-6);
  Rotation shifted = rotation_of(2);
  shifted.first_dim = 6;
  rotate(last, shifted, {1});
  expect_near(
      last.values,
      {1, 2, 3, 4, 5, 6, 7 * std::cos(1) - 8 * std::sin(1), 8 * std::cos(1) + 7 * std::sin(1)},
      1e-15);
  Rotation few = rotation_of(8);
  few.rotated_pairs = 1;
  rotate(proportional, few, {1});
  expect_near(proportional.values,
              {std::cos(1) - 5 * std::sin(1), 2, 3, 4, 5 * std::cos(1) + std::sin(1), 6, 7, 8},
              1e-15);
}

TEST(Reference, AnglesAreComputedInDouble) {
  Tensor x(1, 1, 128);
  x(0, 0, 1) = 1;
  rotate(x, rotation_of(128), {1000003});
  EXPECT_NEAR(x(0, 0, 1), 0.8641496, 1e-7);
  Tensor far(1, 1, 128);
  far(0, 0, 0) = 1;
  rotate(far, rotation_of(128), {(Index{1} << 24) + 1});
  EXPECT_NEAR(far(0, 0, 0), 0.9943840, 1e-7);
}

TEST(Reference, YarnsAttentionFactorIsGivenOrDerivedOnce) {
  const auto factor = [](const Yarn& yarn) {
    Rotation rotation = rotation_of(8);
    rotation.yarn = yarn;
    return rotation.attention_factor();
  };
  EXPECT_NEAR(factor({.factor = 64, .original_max_position = 4096}), 1.4158883083359672, 1e-15);
  EXPECT_NEAR(factor({.factor = 128, .original_max_position = 4096}), 1.4852030263919618, 1e-15);
  EXPECT_EQ(factor({.factor = 0.5, .original_max_position = 4096}), 1);
  Yarn yarn{.factor = 64, .original_max_position = 4096};
  yarn.attention_factor = 1;
  EXPECT_EQ(factor(yarn), 1);
  Yarn both{.factor = 16, .original_max_position = 4096};
  both.mscale = 1;
  EXPECT_NEAR(factor(both), 1.2772588722239781, 1e-15);
  both.mscale_all_dim = 1;
  EXPECT_EQ(factor(both), 1);
  both.mscale = 2;
  EXPECT_NEAR(factor(both), (0.2 * std::log(16.0) + 1) / (0.1 * std::log(16.0) + 1), 1e-15);
}

/// low = dim·ln(64/(2π·32))/(2 ln 10⁴), below 0 and so 0; high = 8·ln(64/2π)/(2 ln 10⁴) = 1.008, or 2
/// rounded up.
TEST(Reference, YarnSlowsTheSlowPairs) {
  Rotation rotation = rotation_of(8);
  rotation.yarn = Yarn{.factor = 8, .original_max_position = 64};
  EXPECT_NEAR(rotation.frequency(0), 1, 1e-15);
  EXPECT_NEAR(rotation.frequency(1), 0.1 * (0.5 + 0.5 / 8), 1e-15);
  EXPECT_NEAR(rotation.frequency(2), 0.01 / 8, 1e-15);
  EXPECT_NEAR(rotation.frequency(3), 0.001 / 8, 1e-15);
  rotation.yarn->truncate = false;
  const double r = 1 / (8 * std::log(64 / (2 * std::numbers::pi)) / (2 * std::log(1e4)));
  EXPECT_NEAR(rotation.frequency(1), 0.1 * (1 - r + r / 8), 1e-15);
}

/// D = 2, w = {1, 2}, q = {1, 0}, angle 1: norm before rotation is not rotation before norm.
TEST(Reference, StagesAtOnePositionRunInWrittenOrder) {
  const auto query = [](const auto&... stages) {
    const Shape shape{.model_dim = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 2};
    Tensors tensors;
    // Keys at both positions are {1, 0} or {0, 1} before their stages; the score shows the query.
    tensors.add("q_proj.weight", 2, {1, 0, 0, 0});
    tensors.add("k_proj.weight", 2, {0, 0, 0, 0});
    tensors.add("k_proj.bias", 1, {0, 1});
    tensors.add("v_proj.weight", 2, {1, 0, 0, 1});
    tensors.add("o_proj.weight", 2, {1, 0, 0, 1});
    tensors.add("query_norm.weight", 1, {1, 2});
    const std::vector<double> x = {1, 0};
    const std::vector<Index> positions = {1};
    const Result result = forward(layer_of(shape, stages..., ProjectionBias<at::Key>{}), tensors,
                                  MatrixView<const double>(x.data(), 1, 2), {}, positions);
    return result.log_sum_exp(0, 0, 0) * std::sqrt(2.0);
  };
  const Rope<> rope{.theta = 1e4};
  const Normalize<at::Query> norm{.eps = 0};
  // The key is {−sin 1, cos 1} in both; the query {0.764…, 1.190…} or {0.764…, 2.380…}.
  EXPECT_NEAR(query(norm, rope), -0.7641028 * std::sin(1) + 1.1900197 * std::cos(1), 1e-6);
  EXPECT_NEAR(query(rope, norm), -0.7641028 * std::sin(1) + 2.3800394 * std::cos(1), 1e-6);
}

TEST(Reference, ActivationsAreTheirFormulas) {
  for (const double z : {-30.0, -2.0, -0.1, 0.0, 0.7, 3.0, 25.0}) {
    const long double e = std::exp(-static_cast<long double>(z)), s = 1 / (1 + e);
    EXPECT_NEAR(activation<Sigmoid>(z), static_cast<double>(s), 1e-15);
    EXPECT_NEAR(activation<Silu>(z), static_cast<double>(z * s), 1e-14);
    EXPECT_NEAR(activation<NonSparseSigmoid>(z), static_cast<double>((1 + s) / 2), 1e-15);
    EXPECT_NEAR(activation<TwiceSigmoid>(z), static_cast<double>(2 * s), 1e-15);
    EXPECT_NEAR(activation<Tanh>(z), static_cast<double>((1 - e * e) / (1 + e * e)), 1e-15);
    EXPECT_NEAR(activation<Softplus>(z), static_cast<double>(std::log1p(1 / e)), 1e-14);
    EXPECT_EQ(activation<Identity>(z), z);
  }
  EXPECT_EQ(activation<Softplus>(1000), 1000);
  EXPECT_EQ(activation<Sigmoid>(-1000), 0);
}

/// x = 1, Hq = 2, D = Dv = 1: SDPA output {1, 1}; gate logits per head are the rows of the weight.
Result gated(const auto& gate, const Tensors& more) {
  const Shape shape{.model_dim = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 1};
  Tensors tensors = more;
  tensors.add("q_proj.weight", 2, {1, 1});
  tensors.add("k_proj.weight", 1, {1});
  tensors.add("v_proj.weight", 1, {1});
  tensors.add("o_proj.weight", 1, {1, 10});
  static constexpr double x[] = {1};
  return forward(layer_of(shape, gate), tensors, MatrixView<const double>(x, 1, 1));
}

TEST(Reference, GatesTakeTheLogitsOfTheirHead) {
  Tensors tensors;
  tensors.add("sdpa_gate.weight", 2, {1, 3});
  const double one = activation<Sigmoid>(1), three = activation<Sigmoid>(3);
  const Result result = gated(Gate<at::Sdpa>{}, tensors);
  EXPECT_NEAR(result.y(0, 0, 0), one + 10 * three, 1e-14);
  expect_near(result.attention.values, {1, 1}, 0);
  expect_near(result.gate_scores_at(Position::sdpa).values, {one, three}, 1e-15);
  EXPECT_TRUE(result.gate_scores_at(Position::value).values.empty());
  EXPECT_NEAR(gated(Gate<at::Sdpa, Headwise, Add>{}, tensors).y(0, 0, 0),
              1 + one + 10 * (1 + three), 1e-14);
}

TEST(Reference, HeadMeanAveragesAfterTheActivation) {
  Tensors tensors;
  tensors.add("sdpa_gate.weight", 2, {1, 3});
  const double mean = (activation<Sigmoid>(1) + activation<Sigmoid>(3)) / 2;
  const Result result = gated(Gate<at::Sdpa, HeadMean>{}, tensors);
  EXPECT_NEAR(result.y(0, 0, 0), 11 * mean, 1e-14);
  expect_near(result.gate_scores_at(Position::sdpa).values, {mean}, 1e-15);
  EXPECT_GT(std::abs(mean - activation<Sigmoid>(2)), 1e-3);
}

TEST(Reference, SharedHeadsAndConstantsAndBiasesGiveTheirLogits) {
  Tensors shared;
  shared.add("sdpa_gate.weight", 1, {2});
  shared.add("sdpa_gate.bias", 1, {-1});
  EXPECT_NEAR(gated(Gate<at::Sdpa, SharedHeads, Identity, Bias>{}, shared).y(0, 0, 0), 11, 1e-14);
  Tensors constant;
  constant.add("sdpa_gate.logits", 2, {0, 5});
  EXPECT_NEAR(gated(Gate<at::Sdpa, Constant>{}, constant).y(0, 0, 0),
              0.5 + 10 * activation<Sigmoid>(5), 1e-14);
  Tensors bias;
  bias.add("sdpa_gate.weight", 2, {1, 3});
  bias.add("sdpa_gate.bias", 1, {0.5, -2});
  EXPECT_NEAR(gated(Gate<at::Sdpa, Identity, HeadBias>{}, bias).y(0, 0, 0), 1.5 + 10, 1e-14);
}

TEST(Reference, TheSecondGateAtAPositionHasATensorOfItsOwn) {
  Tensors tensors = units();
  tensors.add("sdpa_gate.weight", 1, {2});
  tensors.add("sdpa_gate_2.weight", 1, {5});
  const auto layer = layer_of(unit_shape, Gate<at::Sdpa, Identity>{}, Activate<at::Sdpa, Silu>{},
                              Gate<at::Sdpa, Identity, Add>{}, Scale<at::Output>{.factor = 2});
  expect_near(run_unit(layer, tensors, {3}), {2 * (18 * activation<Sigmoid>(18) + 15)}, 1e-12);
}

struct Square {
  template <class Scalar>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::mul(z, z);
  }
  template <class Scalar>
  static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::add(z, z);
  }
  static double reference(double z) { return z * z; }
};

TEST(Reference, AnActivationOfOnesOwnSaysItsValueInDouble) {
  Tensors tensors = units();
  tensors.add("output_gate.weight", 1, {2});
  expect_near(run_unit(layer_of(unit_shape, Gate<at::Output, Square>{}), tensors, {3}), {3 * 36},
              1e-12);
}

TEST(Reference, MismatchesAreRefusedWithBothNumbers) {
  const std::vector<double> x = {1, 2, 3};
  const std::vector<Index> lengths = {1, 1};
  const auto message = [](const auto& call) {
    try {
      call();
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const auto layer = layer_of(unit_shape);
  EXPECT_EQ(
      message([&] { forward(layer, units(), MatrixView<const double>(x.data(), 3, 1), lengths); }),
      "reference::forward: the sum of the lengths is 2, the rows of x is 3");
  EXPECT_EQ(message([&] { forward(layer, units(), MatrixView<const double>(x.data(), 1, 3)); }),
            "reference::forward: the width of x is 3, model_dim is 1");
  Tensors tensors = units();
  tensors.add("k_proj.weight", 1, {1, 2});
  EXPECT_EQ(message([&] { run_unit(layer, tensors, {1}); }),
            "reference::forward: k_proj.weight is [1, 2], the layer needs [1, 1]");
}

/// Σ_s softmax(scale · q·k)_s v_s with all sums in long double and no subtraction of a maximum.
TEST(Reference, AttentionEqualsSumsInLongDouble) {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  Tensor q(7, 6, 5), k(11, 2, 5), v(11, 2, 3);
  for (Tensor* tensor : {&q, &k, &v})
    for (double& value : tensor->values) value = normal(engine);
  const double scale = 0.7;
  const Attention result = attend(q, k, v, {.past = 3, .future = 1}, scale);
  for (Index t = 0; t < 7; ++t)
    for (Index h = 0; h < 6; ++h) {
      long double sum = 0, sums[3] = {}, first = 0;
      for (Index s = std::max<Index>(0, t + 4 - 3); s <= std::min<Index>(10, t + 4 + 1); ++s) {
        long double dot = 0;
        for (Index c = 0; c < 5; ++c) dot += static_cast<long double>(q(t, h, c)) * k(s, h / 3, c);
        const long double weight = std::exp(scale * dot);
        sum += weight;
        if (s == 0) first = weight;
        for (Index c = 0; c < 3; ++c) sums[c] += weight * v(s, h / 3, c);
      }
      EXPECT_NEAR(result.log_sum_exp(t, h, 0), static_cast<double>(std::log(sum)), 1e-14);
      EXPECT_NEAR(result.first_key(t, h, 0), static_cast<double>(first / sum), 1e-15);
      for (Index c = 0; c < 3; ++c)
        EXPECT_NEAR(result.output(t, h, c), static_cast<double>(sums[c] / sum), 1e-14);
    }
}

}  // namespace
}  // namespace gated_attention::reference
