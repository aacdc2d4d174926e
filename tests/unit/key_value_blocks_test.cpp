// SPDX-License-Identifier: MIT
#include "gated_attention/cache/key_value_blocks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
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

}  // namespace
}  // namespace gated_attention
