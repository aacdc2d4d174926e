// SPDX-License-Identifier: MIT
#include "gated_attention/io/packing.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "unit/io_support.hpp"

namespace gated_attention {
namespace {

using test::expect_parts;
using test::message_of;

constexpr QueryPacking packings[] = {QueryPacking::Separate, QueryPacking::PerKvGroup,
                                     QueryPacking::PerQueryHead};

/// A packed matrix whose elements are all different, with a gap between rows, and the room for its
/// parts.
struct Matrices {
  explicit Matrices(const PackedQuery& layout, Index columns)
      : stride(columns + 2),
        memory(static_cast<std::size_t>(layout.rows() * stride)),
        query_memory(static_cast<std::size_t>(layout.query_rows() * columns)),
        gate_memory(static_cast<std::size_t>(layout.gate_rows() * columns)),
        packed(memory.data(), layout.rows(), columns, stride),
        query(query_memory.data(), layout.query_rows(), columns),
        gate(gate_memory.data(), layout.gate_rows(), columns) {
    std::iota(memory.begin(), memory.end(), 1.0F);
  }
  Index stride;
  std::vector<float> memory, query_memory, gate_memory;
  MatrixView<float> packed, query, gate;
};

TEST(Packing, SplitThenJoinGivesTheMatrixBack) {
  for (const QueryPacking packing : packings)
    for (const auto& [query_heads, kv_heads] :
         {std::pair<Index, Index>{1, 1}, {4, 4}, {4, 2}, {6, 2}, {8, 1}})
      for (const Index gate_dim : {0, 1, 3}) {
        const PackedQuery layout{packing, query_heads, kv_heads, 3, gate_dim};
        Matrices parts(layout, 5);
        split_query(layout, parts.packed, parts.query, parts.gate);
        std::vector<float> joined(parts.memory.size(), -1);
        join_query(layout, parts.query, parts.gate,
                   MatrixView<float>(joined.data(), layout.rows(), 5, parts.stride));
        for (Index i = 0; i < layout.rows(); ++i)
          for (Index j = 0; j < 5; ++j)
            ASSERT_EQ(joined[static_cast<std::size_t>(i * parts.stride + j)], parts.packed(i, j))
                << name_of(packing) << " " << query_heads << "/" << kv_heads << " " << gate_dim;
        EXPECT_EQ(joined[5], -1);  // nothing between the rows
      }
}

TEST(Packing, PerKvGroupHoldsTheGroupsQueriesThenItsGates) {
  const PackedQuery layout{QueryPacking::PerKvGroup, 6, 2, 2, 2};  // G = 3
  Matrices parts(layout, 1);
  split_query(layout, parts.packed, parts.query, parts.gate);
  for (Index h = 0; h < 6; ++h)
    for (Index c = 0; c < 2; ++c) {
      const Index group = h / 3, member = h % 3;
      EXPECT_EQ(parts.query(h * 2 + c, 0), parts.packed(group * 12 + member * 2 + c, 0));
      EXPECT_EQ(parts.gate(h * 2 + c, 0), parts.packed(group * 12 + 6 + member * 2 + c, 0));
    }
}

TEST(Packing, HeadwisePerKvGroupHasOneGateRowAHead) {
  const PackedQuery layout{QueryPacking::PerKvGroup, 4, 2, 3, 1};
  EXPECT_EQ(layout.rows(), 16);
  EXPECT_EQ(layout.query_row(1, 2), 5);
  EXPECT_EQ(layout.gate_row(0, 0), 6);
  EXPECT_EQ(layout.gate_row(1, 0), 7);
  EXPECT_EQ(layout.query_row(2, 0), 8);
  EXPECT_EQ(layout.gate_row(3, 0), 15);
}

TEST(Packing, PerQueryHeadInterleavesHeadByHead) {
  const PackedQuery layout{QueryPacking::PerQueryHead, 4, 2, 3, 3};
  EXPECT_EQ(layout.rows(), 24);
  EXPECT_EQ(layout.query_row(1, 2), 8);
  EXPECT_EQ(layout.gate_row(1, 0), 9);
  EXPECT_EQ(layout.query_row(3, 0), 18);
}

TEST(Packing, GroupAndHeadPackingsAgreeOnlyWithoutGroups) {
  const PackedQuery group{QueryPacking::PerKvGroup, 4, 4, 3, 3};
  const PackedQuery head{QueryPacking::PerQueryHead, 4, 4, 3, 3};
  for (Index h = 0; h < 4; ++h)
    for (Index c = 0; c < 3; ++c) {
      EXPECT_EQ(group.query_row(h, c), head.query_row(h, c));
      EXPECT_EQ(group.gate_row(h, c), head.gate_row(h, c));
    }
  const PackedQuery grouped{QueryPacking::PerKvGroup, 4, 2, 3, 3};
  EXPECT_NE(grouped.gate_row(0, 0), head.gate_row(0, 0));
}

TEST(Packing, BiasesSplitLikeTheRows) {
  const PackedQuery layout{QueryPacking::PerKvGroup, 4, 2, 2, 1};
  std::vector<double> packed(12), query(8), gate(4), joined(12);
  std::iota(packed.begin(), packed.end(), 0.0);
  split_query_bias<double>(layout, packed, query, gate);
  EXPECT_EQ(query, (std::vector<double>{0, 1, 2, 3, 6, 7, 8, 9}));
  EXPECT_EQ(gate, (std::vector<double>{4, 5, 10, 11}));
  join_query_bias<double>(layout, query, gate, joined);
  EXPECT_EQ(joined, packed);
}

TEST(Packing, AWrongWidthIsRefusedWithBothNumbers) {
  const PackedQuery layout{QueryPacking::PerQueryHead, 4, 2, 3, 3};
  std::vector<float> memory(200, 7), out(200, -1);
  const auto view = [](std::vector<float>& data, Index rows, Index columns = 5) {
    return MatrixView<float>(data.data(), rows, columns);
  };
  const auto split = [&](const MatrixView<float>& packed, const MatrixView<float>& query,
                         const MatrixView<float>& gate) {
    return message_of<ShapeError>([&] { split_query(layout, packed, query, gate); });
  };
  expect_parts(split(view(memory, 12), view(out, 12), view(out, 12)),
               {"split_query: packed has 12 rows", "PerQueryHead", "takes 24"});
  expect_parts(split(view(memory, 24), view(out, 11), view(out, 12)),
               {"query has 11 rows", "takes 12"});
  expect_parts(split(view(memory, 24), view(out, 12), view(out, 4)),
               {"gate has 4 rows", "takes 12"});
  expect_parts(split(view(memory, 24), view(out, 12, 4), view(out, 12)),
               {"query has 4 columns", "packed has 5"});
  expect_parts(split(view(memory, 24), view(out, 12), view(out, 12, 6)),
               {"gate has 6 columns", "packed has 5"});
  EXPECT_EQ(out, std::vector<float>(200, -1));  // a failed call writes nothing
  expect_parts(message_of<ShapeError>(
                   [&] { join_query(layout, view(memory, 12), view(memory, 12), view(out, 23)); }),
               {"join_query: packed has 23 rows", "takes 24"});
}

TEST(Packing, ASeparatePackingHoldsNoGate) {
  const PackedQuery layout{QueryPacking::Separate, 4, 2, 3, 3};
  EXPECT_EQ(layout.rows(), 12);
  std::vector<float> memory(60), out(60);
  expect_parts(message_of<ShapeError>([&] {
                 split_query(layout, MatrixView<float>(memory.data(), 12, 5),
                             MatrixView<float>(out.data(), 12, 5),
                             MatrixView<float>(out.data(), 12, 5));
               }),
               {"gate has 12 rows", "Separate", "takes 0"});
}

TEST(Packing, NumbersThatAreNoLayersAreRefused) {
  const auto refused = [](const PackedQuery& layout) {
    return message_of<ShapeError>([&] { split_query<float>(layout, {}, MatrixView<float>(), {}); });
  };
  expect_parts(refused({QueryPacking::PerKvGroup, 6, 4, 3, 3}), {"6 query heads", "4 kv heads"});
  expect_parts(refused({QueryPacking::PerKvGroup, 0, 4, 3, 3}), {"0 query heads"});
  expect_parts(refused({QueryPacking::PerKvGroup, 4, 2, 3, 2}), {"head_dim, 3", "it has 2"});
  expect_parts(refused({QueryPacking::PerKvGroup, Index{1} << 40, 1, Index{1} << 30, 1}),
               {"index can count"});
}

}  // namespace
}  // namespace gated_attention
