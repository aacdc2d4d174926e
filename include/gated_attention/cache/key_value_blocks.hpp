// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/math/panel.hpp"
#include "gated_attention/math/stored_packet.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Keys of one block. A key's lane is its absolute position mod block_keys, in every kind of cache.
inline constexpr Index block_keys = panel_columns;

/// Where things lie in a block of one kv head:
///
///   keys [key_dim][64 keys], then values in panels of up to 64 channels, each [64 keys][panel width], all as Stored;
///   with int8 a scale per key and one per value [64] each; a line for the flag that all values are finite
///
/// The last value panel is as wide as the packets it needs; its channels past value_dim are 0. Lanes that hold no key are
/// unwritten memory and are never used. A row of Stored lies as stored_place says.
template <class Scalar, class Stored = Scalar>
struct KeyValueLayout {
  Index key_dim = 0;
  Index value_dim = 0;

  /// x ≈ scale·n with an integer n of at most 127 in magnitude: the error is at most half a scale.
  static constexpr bool scaled = std::is_same_v<Stored, std::int8_t> && !std::is_same_v<Stored, Scalar>;

  /// The value channels with their padding: what a row of output is rounded up to.
  constexpr Index value_channels() const { return detail::round_up(value_dim, lanes<Scalar>); }
  /// And what a row of stored values is.
  constexpr Index stored_channels() const {
    return detail::round_up(value_dim, stored_lanes<Scalar, Stored>);
  }
  constexpr Index values_offset() const { return key_dim * block_keys; }
  /// The first element of the value panel that starts at `channel`, a multiple of 64.
  constexpr Index value_panel_offset(Index channel) const {
    return values_offset() + channel * block_keys;
  }
  /// The width of that panel, and so the distance from key to key in it.
  constexpr Index value_panel_width(Index channel) const {
    return std::min(panel_columns, stored_channels() - channel);
  }
  /// Elements of keys and values.
  constexpr Index elements() const { return (key_dim + stored_channels()) * block_keys; }
  /// Bytes from block to block.
  constexpr Index bytes() const {
    return (elements() * static_cast<Index>(sizeof(Stored)) + scale_bytes() + detail::alignment);
  }

  /// The scales of a block's keys [64], and of its values [64].
  template <class T>
  auto key_scales(T* block) const {
    using To = std::conditional_t<std::is_const_v<T>, const Scalar, Scalar>;
    return reinterpret_cast<To*>(block + elements());
  }
  template <class T>
  auto value_scales(T* block) const {
    return key_scales(block) + block_keys;
  }

  /// Whether the values of a block, which has at least one key, are all finite.
  bool values_finite(const Stored* block) const { return *flag(const_cast<Stored*>(block)) == 1; }
  /// Where that is written.
  std::uint8_t* flag(Stored* block) const {
    return reinterpret_cast<std::uint8_t*>(block + elements()) + scale_bytes();
  }

 private:
  static constexpr Index scale_bytes() {
    return scaled ? 2 * block_keys * static_cast<Index>(sizeof(Scalar)) : 0;
  }
};

/// The blocks of one sequence, whoever holds them: block b of kv head h at base + h·head_stride + slot(b)·block_stride,
/// in bytes, where slot(b) is table[b], or b itself, or round and round behind `kept` blocks that stay.
struct KeyValueSequence {
  std::byte* base = nullptr;
  Index block_stride = 0;
  Index head_stride = 0;
  const Index* table = nullptr;  ///< page table; null: none
  Index modulus = 0;             ///< blocks of a ring; 0: none
  Index kept = 0;                ///< blocks of a ring's first tokens, which lie before it
  Index first_block = 0;  ///< the block that slot 0 holds, where there is neither table nor ring

  Index slot(Index block_index) const {
    if (table != nullptr) return table[block_index];
    if (modulus == 0) return block_index - first_block;
    return block_index < kept ? block_index : kept + (block_index - kept) % modulus;
  }

  template <class Stored>
  Stored* block(Index kv_head, Index block_index) const {
    return reinterpret_cast<Stored*>(base + kv_head * head_stride +
                                     slot(block_index) * block_stride);
  }
};

namespace kernel {

/// How the numbers of one row are stored: rounded, or as multiples of a scale of their own.
template <class Scalar, class Stored>
struct RowScale {
  Scalar scale = 1;

  /// largest |row| / 127, never subnormal; 0 for zeros; NaN where the row holds one, or infinity, so that all of it reads as
  /// NaN.
  static RowScale of(const Scalar* row, Index width) {
    Scalar largest = 0;
    for (Index c = 0; c < width; ++c) {
      const Scalar magnitude = std::abs(row[c]);
      if (!(magnitude <= std::numeric_limits<Scalar>::max()))
        return {std::numeric_limits<Scalar>::quiet_NaN()};
      largest = std::max(largest, magnitude);
    }
    return {largest > 0 ? std::max(largest / 127, std::numeric_limits<Scalar>::min()) : Scalar(0)};
  }

  Stored operator()(Scalar value) const {
    if constexpr (KeyValueLayout<Scalar, Stored>::scaled)
      return scale > 0 ? static_cast<Stored>(std::clamp<Scalar>(std::nearbyint(value / scale), -127, 127))
                       : Stored{0};
    else
      return detail::narrowed<Stored>(value);
  }
};

/// block.keys[d][first_lane + i] = rows[i, d]      i < count, d < key_dim; first_lane + count ≤ 64
///
/// Of the rest of the block only the scales of these keys are touched. rows are exact: nothing is read past key_dim.
template <class Scalar, class Stored>
void write_keys(Stored* block, const KeyValueLayout<Scalar, Stored>& layout, Index first_lane,
                Index count, const Scalar* rows, Index row_stride) {
  constexpr Index strip = 16;  // channels whose lines stay in cache while the lanes go by
  RowScale<Scalar, Stored> scales[static_cast<std::size_t>(block_keys)];
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled)
    for (Index i = 0; i < count; ++i) {
      scales[i] = RowScale<Scalar, Stored>::of(rows + i * row_stride, layout.key_dim);
      layout.key_scales(block)[first_lane + i] = scales[i].scale;
    }
  for (Index d = 0; d < layout.key_dim; d += strip) {
    const Index channels = std::min(strip, layout.key_dim - d);
    for (Index i = 0; i < count; ++i) {
      const Scalar* from = rows + i * row_stride + d;
      Stored* to = block + d * block_keys + stored_place<Scalar, Stored>(first_lane + i);
      for (Index c = 0; c < channels; ++c) to[c * block_keys] = scales[i](from[c]);
    }
  }
}

/// Whether a row [width] holds neither infinity nor NaN.
template <class Scalar>
bool all_finite(const Scalar* row, Index width) {
  Packet<Scalar> probe = packet::zero<Scalar>();  // x·0 is 0 for finite x only
  for (Index c = 0; c < width; c += lanes<Scalar>)
    probe = packet::madd(packet::load_at<Scalar>(row, c, width), packet::zero<Scalar>(), probe);
  return packet::reduce_add(probe) == Scalar(0);
}

/// Whether a row is finite as it is stored: rounding may leave the range.
template <class Scalar, class Stored>
bool all_finite_as(const Scalar* row, Index width) {
  if constexpr (std::is_same_v<Scalar, Stored> || KeyValueLayout<Scalar, Stored>::scaled) {
    return all_finite(row, width);
  } else {
    bool finite = true;
    for (Index c = 0; c < width; ++c)
      finite = finite && std::isfinite(detail::widened<Scalar>(detail::narrowed<Stored>(row[c])));
    return finite;
  }
}

/// block.values[first_lane + i][c] = rows[i, c]      i < count, c < value_dim; 0 for the padding
/// channels
template <class Scalar, class Stored>
void write_values(Stored* block, const KeyValueLayout<Scalar, Stored>& layout, Index first_lane,
                  Index count, const Scalar* rows, Index row_stride) {
  bool finite = true;
  for (Index i = 0; i < count; ++i) {
    const Scalar* const row = rows + i * row_stride;
    RowScale<Scalar, Stored> scale;
    if constexpr (KeyValueLayout<Scalar, Stored>::scaled) {
      scale = RowScale<Scalar, Stored>::of(row, layout.value_dim);
      layout.value_scales(block)[first_lane + i] = scale.scale;
    }
    finite = finite && all_finite_as<Scalar, Stored>(row, layout.value_dim);
    for (Index channel = 0; channel < layout.value_dim; channel += panel_columns) {
      const Index width = layout.value_panel_width(channel);
      const Index channels = std::min(width, layout.value_dim - channel);
      Stored* const to = block + layout.value_panel_offset(channel) + (first_lane + i) * width;
      if constexpr (std::is_same_v<Scalar, Stored>) {
        std::copy_n(row + channel, channels, to);
        std::fill(to + channels, to + width, Stored{});
      } else {
        for (Index c = 0; c < width; ++c)
          to[stored_place<Scalar, Stored>(c)] = c < channels ? scale(row[channel + c]) : Stored{};
      }
    }
  }
  std::uint8_t& flag = *layout.flag(block);
  flag = finite && (first_lane == 0 || flag == 1) ? 1 : 0;
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
