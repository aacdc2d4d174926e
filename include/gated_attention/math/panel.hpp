// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/math/stored_packet.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// A panel is [depth][64]: 64 columns of the right factor side by side, so that one step of the sum reads neighbours.
inline constexpr Index panel_columns = 64;

/// The micro-kernel keeps panel_rows × panel_packets packets of the result in registers: 6 × 4 where there are 32
/// registers, 6 × 2 where there are 16; either divides a panel.
inline constexpr int panel_rows = 6;

#if defined(EIGEN_VECTORIZE_AVX512) || defined(EIGEN_VECTORIZE_NEON)
inline constexpr int panel_packets = 4;
#else
inline constexpr int panel_packets = 2;
#endif

namespace kernel {

/// c[r][j] += Σ_k a[r·row_stride + k·depth_stride] · b[k·columns + j·lanes + …]      k = 0 … depth − 1 in this order
///
/// b holds Stored numbers, widened on the way: column n of a row lies at stored_place(n), and b starts where packets that
/// lie together do. The library's one product loop. Every element of the result is one chain of fused multiply-adds (multiply, then add,
/// where there is no such instruction) over ascending k, whatever the tile's rows and packets: splitting depth over calls
/// that continue from c, or rows over tiles, changes no bit.
template <std::size_t Rows, std::size_t Packets, class Scalar, class Stored>
GATED_ATTENTION_INLINE void accumulate(Packet<Scalar> (&c)[Rows][Packets], const Scalar* a,
                                       Index row_stride, Index depth_stride, const Stored* b, Index columns,
                                       Index depth) {
  for (Index k = 0; k < depth; ++k) {
    Packet<Scalar> column[Packets];
    GATED_ATTENTION_UNROLL
    for (Index j = 0; j < static_cast<Index>(Packets); ++j) column[j] = packet::load_stored<Scalar>(b, j);
    GATED_ATTENTION_UNROLL
    for (Index r = 0; r < static_cast<Index>(Rows); ++r) {
      const Packet<Scalar> element = packet::broadcast<Scalar>(a[r * row_stride]);
      GATED_ATTENTION_UNROLL
      for (Index j = 0; j < static_cast<Index>(Packets); ++j) c[r][j] = Eigen::internal::pmadd(element, column[j], c[r][j]);
    }
    a += depth_stride;
    b += columns;
  }
}

/// Memory that is wanted in the second-level cache soon: `lines` cache lines from `next` on.
struct Ahead {
  const std::byte* next = nullptr;
  Index lines = 0;
};

/// accumulate over a panel that comes from memory: the request for each line goes out while the sums wait for others, those
/// of `ahead` evenly spread, those of the panel itself a few steps of depth before they are needed.
template <std::size_t Rows, std::size_t Packets, class Scalar, class Stored>
GATED_ATTENTION_INLINE void accumulate_ahead(Packet<Scalar> (&c)[Rows][Packets], const Scalar* a,
                                             Index row_stride, Index depth_stride, const Stored* b, Index columns,
                                             Index depth, Ahead ahead) {
  constexpr Index chunk = 4, near = 16;
  constexpr Index line = detail::alignment / static_cast<Index>(sizeof(Stored));
  const Index chunk_lines = detail::divide_up(ahead.lines, detail::divide_up(depth, chunk));
  for (Index left = depth; left > 0; left -= chunk) {
    for (Index i = 0; i < chunk_lines && ahead.lines > 0; ++i, --ahead.lines, ahead.next += detail::alignment)
      packet::prefetch_far(ahead.next);
    for (Index k = 0; k < chunk; ++k)
      for (Index i = 0; i < static_cast<Index>(Packets) * lanes<Scalar>; i += line)
        packet::prefetch_near(b + (near + k) * columns + i);
    accumulate(c, a, row_stride, depth_stride, b, columns, left < chunk ? left : chunk);
    a += chunk * depth_stride;
    b += chunk * columns;
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
