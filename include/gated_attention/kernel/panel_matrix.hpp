// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/view.hpp"
#include "gated_attention/math/panel.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The right factor of every projection, W [columns, depth] as PyTorch's [out, in], packed as
/// panels [⌈columns/64⌉][depth][64]: channel k of column n at panels[(n/64·depth + k)·64 + n mod
/// 64], where those 64 lie as stored_place says.
///
/// A view; the memory is the caller's. The columns that fill up the last panel are zero.
template <class Stored>
struct PanelMatrix {
  const Stored* panels = nullptr;
  Index columns = 0;
  Index depth = 0;
};

/// The same without the type of its numbers, which whoever reads it knows.
struct StoredPanels {
  const void* panels = nullptr;
  Index columns = 0;
  Index depth = 0;

  template <class Stored>
  PanelMatrix<Stored> as() const {
    return {static_cast<const Stored*>(panels), columns, depth};
  }
};

/// How many numbers the panels of a [columns, depth] matrix hold.
inline Index panel_elements(Index columns, Index depth) {
  return detail::checked_product(detail::round_up(columns, panel_columns), depth, "panel_elements");
}

/// W[first_column + r, k] = weight[r, k]      weight: [rows, depth]
///
/// Called once for each of the matrices that lie side by side in W. Columns that no call writes are
/// made zero by clear_columns.
template <class Scalar, class Stored>
void pack_columns(Stored* panels, Index depth, Index first_column,
                  MatrixView<const Scalar> weight) {
  constexpr Index depth_step = 16;  // 64 columns of it are 4 KB of the panel: they stay in L1
  for (Index row = 0; row < weight.rows();) {
    const Index lane = (first_column + row) % panel_columns;
    const Index left = weight.rows() - row;
    const Index count = left < panel_columns - lane ? left : panel_columns - lane;
    Stored* panel = panels + (first_column + row - lane) * depth;
    for (Index k0 = 0; k0 < depth; k0 += depth_step) {
      const Index k1 = k0 + depth_step < depth ? k0 + depth_step : depth;
      for (Index r = 0; r < count; ++r) {
        const Scalar* from = weight.row(row + r);
        Stored* to = panel + stored_place<Scalar, Stored>(lane + r);
        for (Index k = k0; k < k1; ++k)
          to[k * panel_columns] = detail::narrowed<Stored>(from[k]);
      }
    }
    row += count;
  }
}

/// W[n, :] = 0      n in [first_column, last_column)
template <class Scalar, class Stored>
void clear_columns(Stored* panels, Index depth, Index first_column, Index last_column) {
  for (Index n = first_column; n < last_column; ++n) {
    Stored* column = panels + n / panel_columns * panel_columns * depth +
                     stored_place<Scalar, Stored>(n % panel_columns);
    for (Index k = 0; k < depth; ++k) column[k * panel_columns] = Stored{};
  }
}

/// Zeros in the columns beyond `columns` that fill up the last panel.
template <class Scalar, class Stored>
void clear_padding(Stored* panels, Index columns, Index depth) {
  clear_columns<Scalar>(panels, depth, columns, detail::round_up(columns, panel_columns));
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
