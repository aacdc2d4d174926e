// SPDX-License-Identifier: MIT
#include "gated_attention/math/rotary.hpp"

#include "unit/accuracy.hpp"

namespace {

using namespace gated_attention;
using accuracy::nan;

std::vector<double> frequencies(double theta, Index rotary_dim, Index pairs,
                                const Yarn* yarn = nullptr) {
  std::vector<double> result(static_cast<std::size_t>(pairs), -1.0);
  detail::inverse_frequencies(theta, rotary_dim, pairs, yarn, result.data());
  return result;
}

template <class Scalar>
struct Turn {
  std::vector<Scalar> cosines, sines;

  Turn(Index position, const std::vector<double>& frequency, double factor = 1)
      : cosines(frequency.size()), sines(frequency.size()) {
    detail::rotation<Scalar>(position, frequency.data(), static_cast<Index>(frequency.size()),
                             factor, cosines.data(), sines.data());
  }
};

TEST(Rotary, FrequenciesArePowersOfTheta) {
  const std::vector<double> f = frequencies(1e4, 8, 4);
  EXPECT_DOUBLE_EQ(f[0], 1);
  EXPECT_DOUBLE_EQ(f[1], 0.1);
  EXPECT_DOUBLE_EQ(f[2], 0.01);
  EXPECT_DOUBLE_EQ(f[3], 0.001);
}

TEST(Rotary, ProportionalRotationKeepsTheExponentsOfTheWholeHead) {
  const std::vector<double> whole = frequencies(1e6, 16, 8);
  const std::vector<double> part = frequencies(1e6, 16, 3);
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[i]);
}

TEST(Rotary, AnglesAreExactAtLargePositions) {
  const std::vector<double> f = frequencies(1e4, 128, 64);
  EXPECT_NEAR(Turn<double>(1000003, f).cosines[1], 0.8641496, 5e-8);
  EXPECT_NEAR(Turn<float>(1000003, f).cosines[1], 0.8641496f, 1e-7f);
  EXPECT_NEAR(Turn<float>((Index{1} << 24) + 1, f).cosines[0], 0.9943840f, 1e-7f);
  const Index far = (Index{1} << 53) - 1;
  EXPECT_EQ(Turn<double>(far, f).sines[0], std::sin(static_cast<double>(far)));
}

TEST(Rotary, CosinesAndSinesAreRoundedOnceAndCarryTheFactor) {
  const std::vector<double> f = frequencies(1e4, 8, 4);
  const Turn<float> turn(7, f, 1.25);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(turn.cosines[i], static_cast<float>(1.25 * std::cos(7 * f[i])));
    EXPECT_EQ(turn.sines[i], static_cast<float>(1.25 * std::sin(7 * f[i])));
  }
}

Yarn yarn_of(double factor) {
  return {.factor = factor, .original_max_position = 4096};
}

TEST(Rotary, YarnsAttentionFactorIsLoggedOnceAndAnExplicitOneWins) {
  EXPECT_NEAR(detail::attention_factor(yarn_of(64)), 1.4158883, 5e-8);
  EXPECT_NEAR(detail::attention_factor(yarn_of(128)), 1.4852030, 5e-8);
  EXPECT_EQ(detail::attention_factor(yarn_of(1)), 1);
  EXPECT_EQ(detail::attention_factor(yarn_of(0.5)), 1);
  Yarn yarn = yarn_of(64);
  yarn.attention_factor = 1.0;
  EXPECT_EQ(detail::attention_factor(yarn), 1.0);
  yarn = yarn_of(16);
  yarn.mscale = yarn.mscale_all_dim = 1;
  EXPECT_EQ(detail::attention_factor(yarn), 1.0);
  yarn.mscale = 0.707;
  EXPECT_NEAR(detail::attention_factor(yarn),
              (0.1 * 0.707 * std::log(16.0) + 1) / (0.1 * std::log(16.0) + 1), 1e-15);
  yarn.mscale_all_dim = 0;  // as if it were not given
  EXPECT_NEAR(detail::attention_factor(yarn), 0.1 * std::log(16.0) + 1, 1e-15);
}

TEST(Rotary, YarnSlowsSlowPairsOnlyWithARampBetween) {
  // rotary_dim 128, theta 1e4, 4096 positions: the ramp goes from pair floor(20.94…) = 20 to ceil(45.03…) = 46.
  Yarn yarn = yarn_of(4);
  const std::vector<double> plain = frequencies(1e4, 128, 64);
  const std::vector<double> slowed = frequencies(1e4, 128, 64, &yarn);
  for (std::size_t i = 0; i <= 20; ++i) EXPECT_EQ(slowed[i], plain[i]) << i;
  for (std::size_t i = 46; i < 64; ++i) EXPECT_DOUBLE_EQ(slowed[i], plain[i] / 4) << i;
  for (std::size_t i = 21; i < 46; ++i) {
    const double ramp = (static_cast<double>(i) - 20) / 26;
    EXPECT_DOUBLE_EQ(slowed[i], plain[i] * (1 - ramp + ramp / 4)) << i;
  }
  yarn.truncate = false;
  const auto end = [](double beta) {
    return 128 * std::log(4096 / (2 * 3.14159265358979323846 * beta)) / (2 * std::log(1e4));
  };
  const double ramp = (30 - end(32)) / (end(1) - end(32));
  EXPECT_NEAR(frequencies(1e4, 128, 64, &yarn)[30], plain[30] * (1 - ramp + ramp / 4), 1e-15);
}

TEST(Rotary, YarnsRampMayHaveNoLength) {
  const Yarn yarn{.factor = 4, .original_max_position = 1, .beta_fast = 32, .beta_slow = 1};
  const std::vector<double> f = frequencies(1e4, 8, 4, &yarn);  // both ends are clamped to pair 0
  EXPECT_DOUBLE_EQ(f[0], 1);
  EXPECT_DOUBLE_EQ(f[1], 0.1 / 4);
}

TEST(Rotary, NumbersOutOfRangeAreNamed) {
  EXPECT_THROW(frequencies(1e4, 7, 3), ShapeError);
  EXPECT_THROW(frequencies(1e4, 0, 0), ShapeError);
  EXPECT_THROW(frequencies(1e4, 8, 5), ShapeError);
  EXPECT_THROW(frequencies(0, 8, 4), ShapeError);
  Yarn yarn = yarn_of(0);
  EXPECT_THROW(frequencies(1e4, 8, 4, &yarn), ShapeError);
  yarn = {.factor = 4, .original_max_position = 0};
  EXPECT_THROW(frequencies(1e4, 8, 4, &yarn), ShapeError);
  try {
    frequencies(1e4, 8, 5);
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "inverse_frequencies: rotated_pairs is 5, rotary_dim 8 has 4 pairs");
  }
}

enum class Order { half, interleaved };

template <class Scalar>
void turn_row(Order order, Scalar* row, Index first, Index pairs, const Turn<Scalar>& turn) {
  const Index rotated = static_cast<Index>(turn.cosines.size());
  if (order == Order::half)
    kernel::rotate_half<Scalar>(row, first, pairs, rotated, turn.cosines.data(), turn.sines.data());
  else
    kernel::rotate_interleaved<Scalar>(row, first, pairs, rotated, turn.cosines.data(),
                                       turn.sines.data());
}

template <class Scalar>
class RotaryOf : public ::testing::Test {};
TYPED_TEST_SUITE(RotaryOf, accuracy::Scalars);

template <class Scalar>
void expect_row(const std::vector<Scalar>& row, const std::vector<double>& expected) {
  ASSERT_EQ(row.size(), expected.size());
  for (std::size_t i = 0; i < row.size(); ++i)
    EXPECT_NEAR(static_cast<double>(row[i]), expected[i], 1e-6);
}

TYPED_TEST(RotaryOf, BothPairingsTurnByHand) {
  std::vector<TypeParam> x = {1, 2, 3, 4};
  turn_row<TypeParam>(Order::interleaved, x.data(), 0, 2,
                      Turn<TypeParam>(1, frequencies(1e4, 4, 2)));
  expect_row(x, {-1.142640, 1.922076, 2.959851, 4.029800});
  x = {1, 2, 3, 4};
  turn_row<TypeParam>(Order::half, x.data(), 0, 2, Turn<TypeParam>(1, frequencies(1e4, 4, 2)));
  expect_row(x, {-1.984111, 1.959901, 2.462378, 4.019800});
}

TYPED_TEST(RotaryOf, PositionZeroChangesNoBit) {
  for (Order order : {Order::half, Order::interleaved}) {
    std::vector<TypeParam> x = {TypeParam(0.1), TypeParam(-2.7), TypeParam(1e-20), 4};
    const std::vector<TypeParam> before = x;
    turn_row<TypeParam>(order, x.data(), 0, 2, Turn<TypeParam>(0, frequencies(1e4, 4, 2)));
    EXPECT_EQ(x, before);
  }
}

TYPED_TEST(RotaryOf, ChannelsOutsideTheRotaryRangePassThrough) {
  std::vector<TypeParam> x = {1, 2, 3, 4, 5, 6, 7, 8};
  turn_row<TypeParam>(Order::half, x.data(), 0, 1, Turn<TypeParam>(1, frequencies(1e4, 2, 1)));
  expect_row(x, {-1.142640, 1.922076, 3, 4, 5, 6, 7, 8});
  x = {3, 4, 1, 2, 5, 6, 7, 8};
  turn_row<TypeParam>(Order::half, x.data(), 2, 1, Turn<TypeParam>(1, frequencies(1e4, 2, 1)));
  expect_row(x, {3, 4, -1.142640, 1.922076, 5, 6, 7, 8});
}

TYPED_TEST(RotaryOf, TurningBackRestoresTheRow) {
  Turn<TypeParam> turn(12345, frequencies(1e4, 6, 3));
  for (Order order : {Order::half, Order::interleaved}) {
    std::vector<TypeParam> x = {1, -2, 3, 4, 5, -6};
    turn_row<TypeParam>(order, x.data(), 0, 3, turn);
    for (TypeParam& sine : turn.sines) sine = -sine;
    turn_row<TypeParam>(order, x.data(), 0, 3, turn);
    for (TypeParam& sine : turn.sines) sine = -sine;
    expect_row(x, {1, -2, 3, 4, 5, -6});
  }
}

/// All pairs of a rotary range that lies between NaNs; the first `rotated` of them turn. Each pair's result is the formula,
/// and to the bit what the pair gives alone.
template <class Scalar>
void check_range(Order order, Index pairs, Index rotated, Index first) {
  std::vector<Scalar> row(static_cast<std::size_t>(first + 2 * pairs + lanes<Scalar>), nan<Scalar>);
  std::mt19937 random(static_cast<unsigned>(pairs));
  std::normal_distribution<double> normal;
  for (Index c = 0; c < 2 * pairs; ++c)
    row[static_cast<std::size_t>(first + c)] = Scalar(normal(random));
  const std::vector<Scalar> before = row;
  const std::vector<double> frequency = frequencies(1e4, 2 * pairs, rotated);
  turn_row<Scalar>(order, row.data(), first, pairs, Turn<Scalar>(17, frequency));
  for (Index i = 0; i < pairs; ++i) {
    const std::size_t a = static_cast<std::size_t>(first + (order == Order::half ? i : 2 * i));
    const std::size_t b = a + static_cast<std::size_t>(order == Order::half ? pairs : 1);
    std::vector<Scalar> alone = {before[a], before[b]};
    if (i < rotated) {
      const double angle = 17 * frequency[static_cast<std::size_t>(i)];
      const double x1 = static_cast<double>(before[a]), x2 = static_cast<double>(before[b]);
      const double epsilon = 4 * static_cast<double>(std::numeric_limits<Scalar>::epsilon());
      ASSERT_NEAR(static_cast<double>(row[a]), x1 * std::cos(angle) - x2 * std::sin(angle),
                  4 * epsilon);
      ASSERT_NEAR(static_cast<double>(row[b]), x2 * std::cos(angle) + x1 * std::sin(angle),
                  4 * epsilon);
      turn_row<Scalar>(order, alone.data(), 0, 1,
                       Turn<Scalar>(17, {frequency[static_cast<std::size_t>(i)]}));
    }
    ASSERT_EQ(row[a], alone[0]) << pairs << " " << i;
    ASSERT_EQ(row[b], alone[1]) << pairs << " " << i;
  }
  for (Index c = 0; c < static_cast<Index>(row.size()); ++c) {
    if (c >= first && c < first + 2 * pairs) continue;
    ASSERT_TRUE(std::isnan(row[static_cast<std::size_t>(c)])) << pairs << " " << c;
  }
}

TYPED_TEST(RotaryOf, EveryWidthBetweenNans) {
  for (Order order : {Order::half, Order::interleaved})
    for (Index pairs = 1; pairs <= 70; ++pairs)
      for (Index first : {Index{0}, Index{3}, Index{16}})
        for (Index rotated : {pairs, pairs / 2, Index{0}})
          check_range<TypeParam>(order, pairs, rotated, first);
}

}  // namespace
