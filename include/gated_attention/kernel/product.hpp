// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/memory.hpp"
#include "gated_attention/core/parallel.hpp"
#include "gated_attention/kernel/panel_matrix.hpp"

// y[t, n] = Σ_k x[t, k] · W[n, k] + bias[n]      x: [rows, depth], W: [columns, depth] in panels,
// y: [rows, columns]
//
// x is repacked block by block, at most 384 rows at a time. For each panel of W the sums of a block
// stay in a contiguous tile [rows][64] in the second-level cache while depth is walked in steps
// whose share of the panel (32 KB) stays in the first-level cache; the last step adds the bias and
// writes y, once. Every sum is one chain over ascending k that goes on in the tile from step to
// step, so neither rows, blocks, groups nor threads change a bit of a row.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The left factor, [rows, groups · group_width]: channel g · group_width + c of row t at
/// data[t·row_stride + g·group_stride + c]. Padded heads are groups; plain rows are one group.
template <class Scalar>
struct ProductSource {
  const Scalar* data = nullptr;
  Index rows = 0;
  Index row_stride = 0;
  Index groups = 1;
  Index group_width = 0;
  Index group_stride = 0;
};

/// Where y goes: rows of exactly W's columns, element (t, n) at data[t·row_stride + n]. Nothing
/// else is written.
template <class Scalar>
struct ProductTarget {
  Scalar* data = nullptr;
  Index row_stride = 0;
  const Scalar* bias = nullptr;  ///< [columns], or null: none
};

/// Memory of one product at a time. Its content matters neither before nor after.
template <class Scalar>
struct ProductScratch {
  Scalar* packed_rows = nullptr;  ///< [row_block, depth]
  Scalar* tiles = nullptr;        ///< [threads][row_block][64]
};

/// At most this many rows are packed at a time.
inline constexpr Index product_row_block = 384;

/// Takes what products of at most so many rows, so much depth and so many threads need: bounded in
/// rows.
template <class Scalar>
ProductScratch<Scalar> take_product_scratch(detail::Arena& arena, Index rows, Index depth,
                                            Index threads) {
  const Index block = rows < product_row_block ? rows : product_row_block;
  ProductScratch<Scalar> scratch;
  scratch.packed_rows =
      arena.take<Scalar>(detail::checked_product(block, depth, "take_product_scratch"));
  scratch.tiles = arena.take<Scalar>(
      detail::checked_product(threads, block * panel_columns, "take_product_scratch"));
  return scratch;
}

template <class Scalar>
Index product_scratch_bytes(Index rows, Index depth, Index threads) {
  detail::Arena arena;
  take_product_scratch<Scalar>(arena, rows, depth, threads);
  return arena.used();
}

/// How one block of rows is divided: groups of at most 6 rows whose sizes differ by at most one,
/// and steps of depth.
struct ProductBlocking {
  Index rows = 0;
  Index groups = 0;
  Index depth = 0;
  Index depth_step = 0;

  Index first_row(Index group) const {
    const Index larger = rows % groups;
    return group * (rows / groups) + (group < larger ? group : larger);
  }
};

/// Columns of one micro-kernel's result. One row alone needs more packets to hide the latency of
/// its chains.
template <int Rows, class Scalar>
inline constexpr int tile_packets = Rows > 1 ? panel_packets
                                             : static_cast<int>(panel_columns / lanes<Scalar> < 8
                                                                    ? panel_columns / lanes<Scalar>
                                                                    : 8);

template <class Scalar>
ProductBlocking product_blocking(Index rows, Index depth) {
  constexpr Index step = 32 * 1024 / (panel_columns * static_cast<Index>(sizeof(Scalar)));
  constexpr bool one_stripe = tile_packets<panel_rows, Scalar> * lanes<Scalar> == panel_columns;
  ProductBlocking blocking;
  blocking.rows = rows;
  blocking.groups = detail::divide_up(rows, panel_rows);
  blocking.depth = depth;
  // Rows that fit one micro-kernel keep their sums in registers to the end, if that reads a panel
  // in one stream.
  const bool straight = rows == 1 || (blocking.groups == 1 && one_stripe);
  blocking.depth_step = straight || depth < step ? depth : step;
  return blocking;
}

/// Rows [first_row, first_row + rows) of group `group`, repacked as [depth /
/// step][group][step][rows of the group]: the order in which the product reads them.
template <class Scalar>
void pack_rows(const ProductSource<Scalar>& source, Index first_row,
               const ProductBlocking& blocking, Index group, Scalar* packed) {
  const Index begin = blocking.first_row(group);
  const Index rows = blocking.first_row(group + 1) - begin;
  for (Index k0 = 0; k0 < blocking.depth; k0 += blocking.depth_step) {
    const Index left = blocking.depth - k0;
    const Index count = left < blocking.depth_step ? left : blocking.depth_step;
    Scalar* to = packed + k0 * blocking.rows + begin * count;
    for (Index r = 0; r < rows; ++r) {
      const Scalar* row = source.data + (first_row + begin + r) * source.row_stride;
      Index k = k0;
      while (k < k0 + count) {
        const Index head = k / source.group_width;
        const Index channel = k - head * source.group_width;
        const Index head_left = source.group_width - channel;
        const Index end = k + head_left < k0 + count ? k + head_left : k0 + count;
        const Scalar* from = row + head * source.group_stride + channel;
        for (Scalar* out = to + (k - k0) * rows + r; k < end; ++k, out += rows) *out = *from++;
      }
    }
  }
}

/// One call of the micro-kernel.
template <class Scalar, class Stored>
struct TileStep {
  const Scalar* a = nullptr;  ///< [depth][rows]
  const Stored* b = nullptr;  ///< [depth][64]
  Index depth = 0;
  const Scalar* from = nullptr;  ///< the sums so far, [rows][64]; null: they start here
  Scalar* to = nullptr;          ///< [rows][64], rows to_stride apart
  Index to_stride = 0;
  const Scalar* bias = nullptr;   ///< [64], where this ends the sums; null: none
  const Stored* ahead = nullptr;  ///< of the panels, wanted in cache soon
  Index ahead_lines = 0;
};

/// to[r, n] = from[r, n] + Σ_k a[k, r] · b[k, n] (+ bias[n])      r < Rows, n < 64
///
/// The requests for what comes next are spread over the steps of the sum, so that they never wait
/// for each other.
template <int Rows, class Scalar, class Stored>
void multiply_tile(const TileStep<Scalar, Stored>& step) {
  constexpr int packets = tile_packets<Rows, Scalar>;
  constexpr Index width = packets * lanes<Scalar>;
  constexpr Index depth_chunk = 8;
  constexpr Index line = detail::alignment / static_cast<Index>(sizeof(Stored));
  const Index chunks = detail::divide_up(step.depth, depth_chunk) * (panel_columns / width);
  const Index chunk_lines = detail::divide_up(step.ahead_lines, chunks);
  const Stored* ahead = step.ahead;
  const Stored* const ahead_end = ahead + step.ahead_lines * line;
  for (Index column = 0; column < panel_columns; column += width) {
    Packet<Scalar> c[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(packets)];
    GATED_ATTENTION_UNROLL
    for (int r = 0; r < Rows; ++r) {
      GATED_ATTENTION_UNROLL
      for (int j = 0; j < packets; ++j) c[r][j] = packet::zero<Scalar>();
    }
    if (step.from != nullptr) {
      const Scalar* from = step.from + column;
      GATED_ATTENTION_UNROLL
      for (int r = 0; r < Rows; ++r) {
        GATED_ATTENTION_UNROLL
        for (int j = 0; j < packets; ++j)
          c[r][j] = packet::load<Scalar>(from + r * panel_columns + j * lanes<Scalar>);
      }
    }
    const Scalar* a = step.a;
    const Stored* b = step.b + column;
    for (Index left = step.depth; left > 0; left -= depth_chunk) {
      for (Index i = 0; i < chunk_lines && ahead < ahead_end; ++i, ahead += line)
        packet::prefetch_far(ahead);
      accumulate(c, a, 1, Rows, b, panel_columns, left < depth_chunk ? left : depth_chunk);
      a += depth_chunk * Rows;
      b += depth_chunk * panel_columns;
    }
    if (step.bias != nullptr) {
      GATED_ATTENTION_UNROLL
      for (int j = 0; j < packets; ++j) {
        const Packet<Scalar> bias = packet::load<Scalar>(step.bias + column + j * lanes<Scalar>);
        GATED_ATTENTION_UNROLL
        for (int r = 0; r < Rows; ++r) c[r][j] = packet::add(c[r][j], bias);
      }
    }
    Scalar* to = step.to + column;
    GATED_ATTENTION_UNROLL
    for (int r = 0; r < Rows; ++r) {
      GATED_ATTENTION_UNROLL
      for (int j = 0; j < packets; ++j)
        packet::store<Scalar>(to + r * step.to_stride + j * lanes<Scalar>, c[r][j]);
    }
  }
}

template <class Scalar, class Stored>
void multiply_tile(Index rows, const TileStep<Scalar, Stored>& step) {
  static_assert(panel_rows == 6);
  switch (rows) {
    case 1:
      return multiply_tile<1>(step);
    case 2:
      return multiply_tile<2>(step);
    case 3:
      return multiply_tile<3>(step);
    case 4:
      return multiply_tile<4>(step);
    case 5:
      return multiply_tile<5>(step);
    default:
      return multiply_tile<6>(step);
  }
}

/// What the items of one block of rows share.
template <class Scalar, class Stored>
struct ProductBlock {
  const ProductBlocking& blocking;
  const Scalar* packed_rows;
  const PanelMatrix<Stored>& matrix;
  ProductTarget<Scalar> target;  ///< data: the block's first row
};

/// The 64 columns of one panel in the rows of groups [first_group, last_group). `stream_end` is
/// where the weights that this thread will read without a jump end; `tile` is the thread's own.
template <class Scalar, class Stored>
void multiply_panel(const ProductBlock<Scalar, Stored>& block, Index panel, Index first_group,
                    Index last_group, Index stream_end, Scalar* tile) {
  constexpr Index line = detail::alignment / static_cast<Index>(sizeof(Stored));
  const ProductBlocking& blocking = block.blocking;
  const ProductTarget<Scalar>& target = block.target;
  constexpr Index ahead_distance = 48 * 1024 / static_cast<Index>(sizeof(Stored));
  const Index first_column = panel * panel_columns;
  const Index columns_left = block.matrix.columns - first_column;
  const bool whole = columns_left >= panel_columns;
  Scalar tail_bias[panel_columns] = {};
  const Scalar* bias = target.bias == nullptr ? nullptr : target.bias + first_column;
  if (bias != nullptr && !whole) {
    for (Index n = 0; n < columns_left; ++n) tail_bias[n] = bias[n];
    bias = tail_bias;
  }
  for (Index k0 = 0; k0 < blocking.depth; k0 += blocking.depth_step) {
    const Index depth_left = blocking.depth - k0;
    const bool last = depth_left <= blocking.depth_step;
    const Index offset = (panel * blocking.depth + k0) * panel_columns;
    TileStep<Scalar, Stored> step;
    step.b = block.matrix.panels + offset;
    step.depth = last ? depth_left : blocking.depth_step;
    step.bias = last ? bias : nullptr;
    const Index ahead = offset + ahead_distance;
    const Index wanted = step.depth * panel_columns;
    const Index lines = ahead >= stream_end
                            ? 0
                            : (stream_end - ahead < wanted ? stream_end - ahead : wanted) / line;
    const Index groups = last_group - first_group;
    for (Index group = first_group; group < last_group; ++group) {
      const Index row = blocking.first_row(group);
      const Index rows = blocking.first_row(group + 1) - row;
      const Index lines_before = (group - first_group) * lines / groups;
      step.ahead = block.matrix.panels + ahead + lines_before * line;
      step.ahead_lines = (group - first_group + 1) * lines / groups - lines_before;
      step.a = block.packed_rows + k0 * blocking.rows + row * step.depth;
      Scalar* sums = tile + row * panel_columns;
      step.from = k0 == 0 ? nullptr : sums;
      const bool out = last && whole;
      step.to = out ? target.data + row * target.row_stride + first_column : sums;
      step.to_stride = out ? target.row_stride : panel_columns;
      multiply_tile(rows, step);
    }
  }
  if (whole) return;
  for (Index row = blocking.first_row(first_group); row < blocking.first_row(last_group); ++row)
    for (Index n = 0; n < columns_left; ++n)
      target.data[row * target.row_stride + first_column + n] = tile[row * panel_columns + n];
}

/// One block of rows: packs them, then hands out (run of panels, share of the groups).
template <class Scalar, class Stored>
void multiply_block(const ProductSource<Scalar>& source, Index first_row,
                    const ProductBlocking& blocking, const PanelMatrix<Stored>& matrix,
                    const ProductTarget<Scalar>& target, const ProductScratch<Scalar>& scratch,
                    Index threads) {
  constexpr Index pack_alone = Index{1}
                               << 18;  // fewer numbers are packed before another thread wakes up
  const Index pack_threads = blocking.rows * blocking.depth < pack_alone ? 1 : threads;
  parallel_for(pack_threads, blocking.groups, [&](Index group, Index) {
    pack_rows(source, first_row, blocking, group, scratch.packed_rows);
  });
  const ProductBlock<Scalar, Stored> block{
      blocking,
      scratch.packed_rows,
      matrix,
      {target.data + first_row * target.row_stride, target.row_stride, target.bias}};
  const Index panels = detail::divide_up(matrix.columns, panel_columns);
  // Few rows read W at the speed of memory: a thread gets runs of panels, to read on without a
  // jump. Many rows get single panels, for balance; where there are few panels, parts of the rows.
  const Index short_run = panels / (16 * threads);
  const Index run = blocking.groups > 8 || short_run < 1 ? 1 : short_run;
  const Index wanted = threads == 1 ? 1 : detail::divide_up(4 * threads, panels);
  const Index most = detail::divide_up(blocking.groups, 4);
  const Index parts = wanted < most ? wanted : most;
  parallel_for(threads, detail::divide_up(panels, run) * parts, [&](Index item, Index thread) {
    const Index first_panel = item / parts * run;
    const Index last_panel = first_panel + run < panels ? first_panel + run : panels;
    const Index part = item % parts;
    for (Index panel = first_panel; panel < last_panel; ++panel)
      multiply_panel(block, panel, part * blocking.groups / parts,
                     (part + 1) * blocking.groups / parts,
                     last_panel * blocking.depth * panel_columns,
                     scratch.tiles + thread * blocking.rows * panel_columns);
  });
}

/// Whether waking other threads, about 100 µs, pays: below 8 rows by the bytes of W, above by the
/// multiplications.
inline bool product_is_short(Index rows, Index columns, Index depth) {
  constexpr double enough = 8e6;
  return static_cast<double>(rows < 8 ? 8 : rows) * static_cast<double>(columns) *
             static_cast<double>(depth) <
         enough;
}

/// y[t, n] = Σ_k x[t, k] · W[n, k] + bias[n]
///
/// The source has the matrix's depth, ≥ 1; scratch is take_product_scratch's for at least these
/// extents. Source, target and scratch do not overlap. On at most `threads` threads; the bits of a
/// row depend on nothing but the row, W and bias.
template <class Scalar, class Stored>
void multiply(const ProductSource<Scalar>& source, const PanelMatrix<Stored>& matrix,
              const ProductTarget<Scalar>& target, const ProductScratch<Scalar>& scratch,
              Index threads) {
  if (source.rows == 0 || matrix.columns == 0) return;
  const Index team = product_is_short(source.rows, matrix.columns, matrix.depth) ? 1 : threads;
  const Index blocks = detail::divide_up(source.rows, product_row_block);
  const Index block_rows =
      blocks == 1 ? source.rows
                  : detail::round_up(detail::divide_up(source.rows, blocks), panel_rows);
  for (Index row = 0; row < source.rows; row += block_rows) {
    const Index left = source.rows - row;
    const ProductBlocking blocking =
        product_blocking<Scalar>(left < block_rows ? left : block_rows, matrix.depth);
    multiply_block(source, row, blocking, matrix, target, scratch, team);
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
