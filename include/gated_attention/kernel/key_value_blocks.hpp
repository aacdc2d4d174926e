// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/math/panel.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Keys of one block. A key's lane is its absolute position mod block_keys, in every kind of cache.
inline constexpr Index block_keys = panel_columns;

/// Where things lie in a block of one kv head:
///
///   keys [key_dim][64 keys], then values in panels of up to 64 channels, each [64 keys][panel
///   width]
///
/// The last value panel is as wide as the packets it needs; its channels past value_dim are 0.
/// Lanes that hold no key are unwritten memory and are never used.
template <class Scalar>
struct KeyValueLayout {
  Index key_dim = 0;
  Index value_dim = 0;

  /// The value channels with their padding: what a row of output is rounded up to.
  constexpr Index value_channels() const { return detail::round_up(value_dim, lanes<Scalar>); }
  constexpr Index values_offset() const { return key_dim * block_keys; }
  /// The first element of the value panel that starts at `channel`, a multiple of 64.
  constexpr Index value_panel_offset(Index channel) const {
    return values_offset() + channel * block_keys;
  }
  /// The width of that panel, and so the distance from key to key in it.
  constexpr Index value_panel_width(Index channel) const {
    return std::min(panel_columns, value_channels() - channel);
  }
  constexpr Index flag_offset() const { return (key_dim + value_channels()) * block_keys; }
  constexpr Index elements() const {
    return flag_offset() + detail::alignment / static_cast<Index>(sizeof(Scalar));
  }

  /// Whether the values of a block, which has at least one key, are all finite.
  bool values_finite(const Scalar* block) const { return block[flag_offset()] == Scalar(1); }
};

/// The blocks of one sequence, whoever holds them: block b of kv head h at
/// base + h·head_stride + slot(b)·block_stride, where slot(b) is table[b], b mod modulus, or b.
template <class Scalar>
struct KeyValueSequence {
  Scalar* base = nullptr;
  Index block_stride = 0;
  Index head_stride = 0;
  const Index* table = nullptr;  ///< page table; null: none
  Index modulus = 0;             ///< blocks of a ring; 0: none
  Index first_block = 0;  ///< the block that slot 0 holds, where there is neither table nor ring

  Scalar* block(Index kv_head, Index block_index) const {
    const Index slot = table != nullptr ? table[block_index]
                       : modulus > 0    ? block_index % modulus
                                        : block_index - first_block;
    return base + kv_head * head_stride + slot * block_stride;
  }

  operator KeyValueSequence<const Scalar>() const  // NOLINT: adding const is implicit
      requires(!std::is_const_v<Scalar>) {
    return {base, block_stride, head_stride, table, modulus, first_block};
  }
};

namespace kernel {

/// block.keys[d][first_lane + i] = rows[i, d]      i < count, d < key_dim; first_lane + count ≤ 64
///
/// Nothing else of the block is touched. rows are exact: nothing is read past key_dim.
template <class Scalar>
void write_keys(Scalar* block, const KeyValueLayout<Scalar>& layout, Index first_lane, Index count,
                const Scalar* rows, Index row_stride) {
  constexpr Index strip = 16;  // channels whose lines stay in cache while the lanes go by
  for (Index d = 0; d < layout.key_dim; d += strip) {
    const Index channels = std::min(strip, layout.key_dim - d);
    for (Index i = 0; i < count; ++i) {
      const Scalar* from = rows + i * row_stride + d;
      Scalar* to = block + d * block_keys + first_lane + i;
      for (Index c = 0; c < channels; ++c) to[c * block_keys] = from[c];
    }
  }
}

/// Whether rows [count, width] hold neither infinity nor NaN.
template <class Scalar>
bool all_finite(const Scalar* rows, Index count, Index width, Index row_stride) {
  Packet<Scalar> probe = packet::zero<Scalar>();  // x·0 is 0 for finite x only
  for (Index i = 0; i < count; ++i)
    for (Index c = 0; c < width; c += lanes<Scalar>)
      probe = packet::madd(packet::load_at<Scalar>(rows + i * row_stride, c, width),
                           packet::zero<Scalar>(), probe);
  return packet::reduce_add(probe) == Scalar(0);
}

/// block.values[first_lane + i][c] = rows[i, c]      i < count, c < value_dim; 0 for the padding
/// channels
template <class Scalar>
void write_values(Scalar* block, const KeyValueLayout<Scalar>& layout, Index first_lane,
                  Index count, const Scalar* rows, Index row_stride) {
  Scalar& flag = block[layout.flag_offset()];
  const bool finite = all_finite(rows, count, layout.value_dim, row_stride);
  flag = finite && (first_lane == 0 || flag == Scalar(1)) ? Scalar(1) : Scalar(0);
  for (Index channel = 0; channel < layout.value_dim; channel += panel_columns) {
    const Index width = layout.value_panel_width(channel);
    const Index channels = std::min(width, layout.value_dim - channel);
    Scalar* panel = block + layout.value_panel_offset(channel) + first_lane * width;
    for (Index i = 0; i < count; ++i) {
      const Scalar* from = rows + i * row_stride + channel;
      std::copy(from, from + channels, panel + i * width);
      std::fill(panel + i * width + channels, panel + (i + 1) * width, Scalar(0));
    }
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
