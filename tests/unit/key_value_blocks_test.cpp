// SPDX-License-Identifier: MIT
#include "gated_attention/cache/key_value_blocks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace gated_attention {
namespace {

constexpr float unwritten = -5;

std::vector<float> counted(Index count, float first) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& x : numbers) x = first++;
  return numbers;
}

TEST(KeyValueBlocks, ABlockIsKeysThenValuePanelsOfAtMost64Channels) {
  const KeyValueLayout<float> layout{80, 72};
  const Index tail = detail::round_up(8, lanes<float>);
  EXPECT_EQ(layout.value_channels(), 64 + tail);
  EXPECT_EQ(layout.values_offset(), 80 * 64);
  EXPECT_EQ(layout.value_panel_offset(0), 80 * 64);
  EXPECT_EQ(layout.value_panel_offset(64), 80 * 64 + 64 * 64);
  EXPECT_EQ(layout.value_panel_width(0), 64);
  EXPECT_EQ(layout.value_panel_width(64), tail);
  EXPECT_EQ(layout.elements(), (80 + 64 + tail) * 64);
  EXPECT_EQ(layout.bytes(), (80 + 64 + tail) * 64 * 4 + 64);
  EXPECT_EQ((KeyValueLayout<float>{3, 64}.bytes()), (3 + 64) * 64 * 4 + 64);
}

TEST(KeyValueBlocks, TheFlagSaysWhetherAllValuesOfTheBlockAreFinite) {
  const KeyValueLayout<float> layout{4, 37};
  std::vector<float> block(static_cast<std::size_t>(layout.bytes() / 4), unwritten);
  std::vector<float> rows(5 * 37, 1e38F);
  const auto write = [&](Index first) {
    kernel::write_values(block.data(), layout, first, Index{5}, rows.data(), Index{37});
  };
  write(0);
  EXPECT_TRUE(layout.values_finite(block.data()));
  write(5);
  EXPECT_TRUE(layout.values_finite(block.data()));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    rows[4 * 37 + 36] = bad;
    write(10);
    EXPECT_FALSE(layout.values_finite(block.data()));
    rows[4 * 37 + 36] = 0;
    write(15);
    EXPECT_FALSE(layout.values_finite(block.data())) << "a later write must not forget";
    write(0);
    EXPECT_TRUE(layout.values_finite(block.data())) << "lane 0 starts the block afresh";
  }
}

TEST(KeyValueBlocks, WritingTouchesTheGivenLanesAndThePaddingChannelsOnly) {
  for (const Index key_dim : {1, 7, 16, 40})
    for (const Index value_dim : {1, 6, 64, 70, 130})
      for (const Index first : {0, 5, 63})
        for (const Index count : {0, 1, 59}) {
          if (first + count > 64) continue;
          const KeyValueLayout<float> layout{key_dim, value_dim};
          std::vector<float> block(static_cast<std::size_t>(layout.bytes() / 4), unwritten);
          const std::vector<float> keys = counted(count * (key_dim + 2), 0),
                                   values = counted(count * (value_dim + 1), 9000);
          kernel::write_keys(block.data(), layout, first, count, keys.data(), key_dim + 2);
          kernel::write_values(block.data(), layout, first, count, values.data(), value_dim + 1);
          for (Index lane = 0; lane < 64; ++lane) {
            const Index i = lane - first;
            const bool written = i >= 0 && i < count;
            for (Index d = 0; d < key_dim; ++d)
              ASSERT_EQ(block[static_cast<std::size_t>(d * 64 + lane)],
                        written ? static_cast<float>(i * (key_dim + 2) + d) : unwritten);
            for (Index c = 0; c < layout.value_channels(); ++c) {
              const Index panel = c / 64 * 64;
              const Index at = layout.value_panel_offset(panel) +
                               lane * layout.value_panel_width(panel) + c - panel;
              const float own =
                  c < value_dim ? static_cast<float>(9000 + i * (value_dim + 1) + c) : 0;
              ASSERT_EQ(block[static_cast<std::size_t>(at)], written ? own : unwritten);
            }
          }
        }
}

TEST(KeyValueBlocks, ASequenceFindsItsBlocksInOrderThroughATableAndInARing) {
  std::vector<std::byte> memory(10000);
  KeyValueSequence sequence{.base = memory.data(), .block_stride = 40, .head_stride = 1200};
  const auto found = [&](Index head, Index block) {
    return sequence.block<const std::byte>(head, block) - memory.data();
  };
  EXPECT_EQ(found(2, 7), 2400 + 7 * 40);
  sequence.first_block = 5;
  EXPECT_EQ(found(2, 7), 2400 + 2 * 40);
  sequence.first_block = 0;
  sequence.modulus = 4;
  EXPECT_EQ(found(2, 7), 2400 + 3 * 40);
  sequence.kept = 2;
  EXPECT_EQ(found(2, 1), 2400 + 1 * 40);
  EXPECT_EQ(found(2, 2), 2400 + 2 * 40);
  EXPECT_EQ(found(2, 7), 2400 + (2 + 1) * 40);
  const Index table[] = {5, 0, 9};
  sequence = {.base = memory.data(), .block_stride = 40, .head_stride = 1200, .table = table};
  EXPECT_EQ(found(1, 2), 1200 + 9 * 40);
}

// Blocks of stored numbers.

template <class A, class B>
struct Pair {
  using Scalar = A;
  using Stored = B;
};
template <class>
class StoredBlocks : public testing::Test {};
using Pairs = testing::Types<Pair<float, bfloat16>, Pair<float, half>, Pair<float, std::int8_t>,
                             Pair<double, bfloat16>, Pair<double, half>, Pair<double, std::int8_t>,
                             Pair<double, float>>;
TYPED_TEST_SUITE(StoredBlocks, Pairs);

/// A block in memory of its own, every byte 0xa5 at first, read back number by number.
template <class Scalar, class Stored>
struct Block {
  using Layout = KeyValueLayout<Scalar, Stored>;

  Layout layout;
  std::vector<std::byte> memory;

  explicit Block(const Layout& l)
      : layout(l), memory(static_cast<std::size_t>(l.bytes()), std::byte{0xa5}) {}

  Stored* data() { return reinterpret_cast<Stored*>(memory.data()); }
  Stored& key_place(Index lane, Index d) {
    return data()[d * block_keys + stored_place<Scalar, Stored>(lane)];
  }
  Stored& value_place(Index lane, Index c) {
    const Index panel = c / panel_columns * panel_columns, width = layout.value_panel_width(panel);
    return data()[layout.value_panel_offset(panel) + lane * width +
                  stored_place<Scalar, Stored>(c - panel)];
  }
  static constexpr bool scaled = Layout::scaled;
  Scalar key_scale(Index lane) { return scaled ? layout.key_scales(data())[lane] : Scalar(1); }
  Scalar value_scale(Index lane) { return scaled ? layout.value_scales(data())[lane] : Scalar(1); }
  Scalar key(Index lane, Index d) {
    return detail::widened<Scalar>(key_place(lane, d)) * key_scale(lane);
  }
  Scalar value(Index lane, Index c) {
    return detail::widened<Scalar>(value_place(lane, c)) * value_scale(lane);
  }
};

/// What a row is read back as, from the words: rounded, or the nearest multiple of largest / 127.
template <class Scalar, class Stored>
void expect_stored(Scalar given, Scalar exact, Scalar largest) {
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled) {
    const double scale = static_cast<double>(largest) / 127;
    ASSERT_LE(std::abs(static_cast<double>(given) - static_cast<double>(exact)), 0.50001 * scale);
  } else {
    ASSERT_EQ(given, detail::widened<Scalar>(detail::narrowed<Stored>(exact)));
  }
}

template <class Scalar>
Scalar largest_of(const Scalar* row, Index width) {
  Scalar largest = 0;
  for (Index c = 0; c < width; ++c) largest = std::max(largest, std::abs(row[c]));
  return largest;
}

template <class Scalar>
std::vector<Scalar> drawn(Index count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<Scalar> numbers(static_cast<std::size_t>(count));
  for (Scalar& x : numbers) x = static_cast<Scalar>(normal(engine));
  return numbers;
}

TYPED_TEST(StoredBlocks, AreKeysThenValuesThenScalesThenTheFlag) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  for (const Index value_dim : {1, 17, 64, 72}) {
    const KeyValueLayout<Scalar, Stored> layout{5, value_dim};
    const Index channels = detail::round_up(value_dim, stored_lanes<Scalar, Stored>);
    const Index scales = layout.scaled ? 2 * 64 * static_cast<Index>(sizeof(Scalar)) : 0;
    const Index numbers = (5 + channels) * 64 * static_cast<Index>(sizeof(Stored));
    EXPECT_EQ(layout.bytes(), numbers + scales + 64);
    Block<Scalar, Stored> block(layout);
    EXPECT_EQ(reinterpret_cast<std::byte*>(layout.flag(block.data())) - block.memory.data(),
              numbers + scales);
  }
}

TYPED_TEST(StoredBlocks, HoldEachNumberInItsPlaceAndTouchNothingElse) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  unsigned seed = 1;
  for (const auto& [key_dim, value_dim] :
       {std::pair<Index, Index>{1, 1}, {7, 6}, {16, 64}, {40, 70}, {33, 130}})
    for (const auto& [first, count] :
         {std::pair<Index, Index>{0, 64}, {0, 1}, {5, 59}, {63, 1}, {17, 2}, {9, 0}}) {
      Block<Scalar, Stored> block({key_dim, value_dim});
      const Index key_stride = key_dim + 2, value_stride = value_dim + 1;
      const std::vector<Scalar> keys = drawn<Scalar>(count * key_stride + 1, seed++),
                                values = drawn<Scalar>(count * value_stride + 1, seed++);
      kernel::write_keys(block.data(), block.layout, first, count, keys.data(), key_stride);
      kernel::write_values(block.data(), block.layout, first, count, values.data(), value_stride);
      const Block<Scalar, Stored> untouched(block.layout);
      Block<Scalar, Stored> cleared = block;  // what was written, unwritten again
      const auto clear = [](auto& place) {
        std::memset(static_cast<void*>(&place), 0xa5, sizeof(place));
      };
      for (Index i = 0; i < count; ++i) {
        const Index lane = first + i;
        const Scalar* const key = keys.data() + i * key_stride;
        const Scalar* const value = values.data() + i * value_stride;
        for (Index d = 0; d < key_dim; ++d) {
          expect_stored<Scalar, Stored>(block.key(lane, d), key[d], largest_of(key, key_dim));
          clear(cleared.key_place(lane, d));
        }
        for (Index c = 0; c < block.layout.stored_channels(); ++c) {
          if (c < value_dim)
            expect_stored<Scalar, Stored>(block.value(lane, c), value[c],
                                          largest_of(value, value_dim));
          else
            ASSERT_EQ(detail::widened<Scalar>(block.value_place(lane, c)), Scalar(0)) << "padding";
          clear(cleared.value_place(lane, c));
        }
        if constexpr (block.scaled) {
          clear(block.layout.key_scales(cleared.data())[lane]);
          clear(block.layout.value_scales(cleared.data())[lane]);
        }
      }
      clear(*block.layout.flag(cleared.data()));
      ASSERT_TRUE(cleared.memory == untouched.memory) << "something else was written";
    }
}

/// Writes rows of one value row each and says what the flag then is.
template <class Scalar, class Stored>
bool finite_after(Block<Scalar, Stored>& block, Index lane, Scalar odd_one) {
  std::vector<Scalar> row(static_cast<std::size_t>(block.layout.value_dim), Scalar(1));
  row.back() = odd_one;
  kernel::write_values(block.data(), block.layout, lane, Index{1}, row.data(),
                       block.layout.value_dim);
  return block.layout.values_finite(block.data());
}

TYPED_TEST(StoredBlocks, TheFlagSpeaksOfTheNumbersAsTheyAreStored) {
  using Scalar = typename TypeParam::Scalar;
  using Stored = typename TypeParam::Stored;
  constexpr bool is_half = std::is_same_v<Stored, half>,
                 scaled = KeyValueLayout<Scalar, Stored>::scaled;
  constexpr bool narrow = std::is_same_v<Stored, bfloat16> || std::is_same_v<Stored, float>;
  Block<Scalar, Stored> block({2, 21});
  const Scalar most = std::numeric_limits<Scalar>::max();
  EXPECT_TRUE(finite_after(block, 0, Scalar(65519)));
  EXPECT_EQ(finite_after(block, 1, Scalar(-65520)), !is_half)
      << "rounds to the half beyond the last";
  EXPECT_EQ(finite_after(block, 2, Scalar(1)), !is_half) << "a later row must not forget";
  EXPECT_TRUE(finite_after(block, 0, Scalar(1))) << "lane 0 starts the block afresh";
  EXPECT_EQ(finite_after(block, 1, most), scaled || (!is_half && !narrow))
      << "rounds up to infinity";
  for (const Scalar bad :
       {std::numeric_limits<Scalar>::infinity(), -std::numeric_limits<Scalar>::infinity(),
        std::numeric_limits<Scalar>::quiet_NaN()}) {
    EXPECT_TRUE(finite_after(block, 0, Scalar(1)));
    EXPECT_FALSE(finite_after(block, 1, bad));
    if constexpr (scaled) {
      for (Index c = 0; c < 21; ++c) EXPECT_TRUE(std::isnan(block.value(1, c))) << "of the row";
      for (Index c = 0; c < 21; ++c) EXPECT_FALSE(std::isnan(block.value(0, c))) << "of another";
    }
  }
}

template <class Scalar>
class ScaledBlocks : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(ScaledBlocks, Scalars);

/// |read − written| of a row, in units of the row's scale.
template <class Scalar>
void expect_half_a_scale(const std::vector<Scalar>& row) {
  const Index width = static_cast<Index>(row.size());
  Block<Scalar, std::int8_t> block({width, width});
  kernel::write_keys(block.data(), block.layout, Index{3}, Index{1}, row.data(), width);
  kernel::write_values(block.data(), block.layout, Index{3}, Index{1}, row.data(), width);
  const long double largest = largest_of(row.data(), width);
  const auto expect = [&](Scalar scale, std::int8_t n, Scalar exact) {
    const long double error = std::abs(static_cast<long double>(scale) * n - exact);
    // n is the nearest integer to a quotient that was rounded, too.
    ASSERT_LE(error, (0.5L + 128 * std::numeric_limits<Scalar>::epsilon()) * scale)
        << exact << " in a row up to " << largest;
  };
  for (Index c = 0; c < width; ++c) {
    const Scalar exact = row[static_cast<std::size_t>(c)];
    expect(block.key_scale(3), block.key_place(3, c), exact);
    expect(block.value_scale(3), block.value_place(3, c), exact);
  }
  EXPECT_EQ(block.key_scale(3), block.value_scale(3));
  if (largest > 127 * static_cast<long double>(std::numeric_limits<Scalar>::min())) {
    EXPECT_EQ(block.key_scale(3), static_cast<Scalar>(largest) / 127);
  }
}

TYPED_TEST(ScaledBlocks, TheErrorIsAtMostHalfAScale) {
  using Scalar = TypeParam;
  const Scalar least = std::numeric_limits<Scalar>::denorm_min(),
               normal = std::numeric_limits<Scalar>::min();
  for (unsigned seed = 1; seed < 200; ++seed) {
    std::vector<Scalar> row = drawn<Scalar>(37, seed);
    expect_half_a_scale(row);
    row[seed % 37] *= 1000;
    expect_half_a_scale(row);
    for (const Scalar size : {normal, 40 * normal, 127 * normal, 63 * least, 190 * least, least,
                              std::numeric_limits<Scalar>::max() / 5000}) {
      std::vector<Scalar> scaled = row;
      for (Scalar& x : scaled) x *= size;
      expect_half_a_scale(scaled);
    }
  }
  for (const int n : {1, 2, 63, 64, 65, 127, 128, 190, 191, 254, 10000})
    expect_half_a_scale(
        std::vector<Scalar>{Scalar(n) * least, Scalar(-n) * least, least, Scalar(0)});
  expect_half_a_scale(std::vector<Scalar>{std::numeric_limits<Scalar>::max(), normal});
}

TYPED_TEST(ScaledBlocks, ARowOfZerosIsZeros) {
  const std::vector<TypeParam> zeros(9, TypeParam(0));
  Block<TypeParam, std::int8_t> block({9, 9});
  kernel::write_keys(block.data(), block.layout, Index{0}, Index{1}, zeros.data(), Index{9});
  kernel::write_values(block.data(), block.layout, Index{0}, Index{1}, zeros.data(), Index{9});
  for (Index c = 0; c < 9; ++c) {
    EXPECT_EQ(block.key(0, c), TypeParam(0));
    EXPECT_EQ(block.value(0, c), TypeParam(0));
  }
  EXPECT_TRUE(block.layout.values_finite(block.data()));
}

TYPED_TEST(ScaledBlocks, NotANumberInAKeyRowMakesThatRowNotANumber) {
  for (const TypeParam bad :
       {std::numeric_limits<TypeParam>::quiet_NaN(), std::numeric_limits<TypeParam>::infinity()}) {
    std::vector<TypeParam> rows(3 * 5, TypeParam(2));
    rows[5 + 4] = bad;
    Block<TypeParam, std::int8_t> block({5, 1});
    kernel::write_keys(block.data(), block.layout, Index{10}, Index{3}, rows.data(), Index{5});
    EXPECT_TRUE(std::isnan(block.key_scale(11))) << "a quotient by infinity has no integer";
    for (Index d = 0; d < 5; ++d) {
      EXPECT_EQ(block.key(10, d), TypeParam(2));
      EXPECT_TRUE(std::isnan(block.key(11, d)));
      EXPECT_EQ(block.key(12, d), TypeParam(2));
    }
  }
}

}  // namespace
}  // namespace gated_attention
