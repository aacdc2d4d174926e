// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/kernel/attend_tile.hpp"
#include "gated_attention/kernel/score_tile.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// How a row's running output enters a step.
enum class Continue {
  FromZero,     ///< its memory is not read
  TimesFactor,  ///< the maximum may have risen: times 2^(old − new)
  AsItIs
};

/// The values of one step: the same channels of the panel of either block, [64 keys][width].
template <class Stored>
struct StepValues {
  const Stored* half[2] = {nullptr, nullptr};
  Index width = 0;
  bool finite = true;  ///< both blocks
  Ahead ahead[2];      ///< what is wanted next, while either block is read
};

/// output[r, :] = start(output[r, :]) + Σ_key weights[r, key]·values[key, :]      Rows rows ×
/// Packets packets
///
/// weights: [rows, softmax_keys]. values: the panel of either block of the step, [64 keys][width],
/// of which the keys [begin, end) of the step enter, ascending. `streaming`: they come from memory, and values.ahead is wanted
/// next.
template <int Rows, int Packets, bool streaming, class Scalar, class Stored>
void value_tile(const Scalar* weights, const StepValues<Stored>& values, Index begin, Index end,
                Continue start, const Scalar* factor, Scalar* output, Index output_stride) {
  Packet<Scalar> c[std::size_t{Rows}][std::size_t{Packets}];
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < Rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j)
      c[r][j] = start == Continue::FromZero
                    ? packet::zero<Scalar>()
                    : packet::load<Scalar>(output + r * output_stride + j * lanes<Scalar>);
  }
  if (start == Continue::TimesFactor) {
    GATED_ATTENTION_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Packet<Scalar> scale = packet::broadcast<Scalar>(factor[r]);
      GATED_ATTENTION_UNROLL
      for (int j = 0; j < Packets; ++j) c[r][j] = packet::mul(c[r][j], scale);
    }
  }
  for (Index half = 0; half < 2; ++half) {
    const Index first = std::max(begin - half * block_keys, Index{0});
    const Index last = std::min(end - half * block_keys, block_keys);
    if (first >= last) continue;
    const Scalar* const from = weights + half * block_keys + first;
    const Stored* const panel = values.half[half] + first * values.width;
    if constexpr (streaming)
      accumulate_ahead(c, from, softmax_keys, Index{1}, panel, values.width, last - first,
                       values.ahead[half]);
    else
      accumulate(c, from, softmax_keys, Index{1}, panel, values.width, last - first);
  }
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < Rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j)
      packet::store<Scalar>(output + r * output_stride + j * lanes<Scalar>, c[r][j]);
  }
}

/// One group's share of a step's values in Packets packets of channels. The keys that all rows see go together; what some
/// rows see before and after them (the triangles of a diagonal and of a window's edge) goes row by row, so that each row
/// sums its own keys in ascending order and reads no other. A block that stages mask whole is left out. Where they mask
/// single keys and not all values are finite, each row goes by itself over the keys that have a weight.
template <int Rows, int Packets, class Scalar, class Stored>
class ValueGroup {
 public:
  ValueGroup(const AttendTile<Scalar, Stored>& tile, Index group, Index step,
             const StepValues<Stored>& values, Scalar* output, Index output_stride)
      : keys_(tile.keys + group * Rows),
        weights_(tile.scores + group * Rows * softmax_keys),
        factor_(tile.factor + group * Rows),
        values_(values),
        step_(step),
        low_(tile.irregular && tile.hidden[2 * group] ? block_keys : Index{0}),
        high_(tile.irregular && tile.hidden[2 * group + 1] ? block_keys : softmax_keys),
        output_(output),
        output_stride_(output_stride) {}

  void run(Continue start, bool key_by_key) const {
    const Index begin = inside(keys_[Rows - 1].begin), end = inside(keys_[0].end);
    if (key_by_key) return each_row_by_weight(start);
    if (begin >= end) return each_row(0, softmax_keys, start);
    if (inside(keys_[0].begin) < begin) {
      each_row(0, begin, start);
      start = Continue::AsItIs;
    }
    tile<Rows>(0, begin, end, start);
    if (inside(keys_[Rows - 1].end) > end) each_row(end, softmax_keys, Continue::AsItIs);
  }

 private:
  Index inside(Index key) const { return std::clamp(key - step_, low_, high_); }

  template <int Count>
  void tile(Index row, Index begin, Index end, Continue start) const {
    constexpr bool streaming = Count == Rows && Rows != panel_rows;
    value_tile<Count, Packets, streaming>(weights_ + row * softmax_keys, values_, begin, end, start,
                                          factor_ + row, output_ + row * output_stride_,
                                          output_stride_);
  }

  void each_row(Index from, Index to, Continue start) const {
    for (Index r = 0; r < Rows; ++r) {
      const Index begin = std::max(inside(keys_[r].begin), from),
                  end = std::min(inside(keys_[r].end), to);
      if (begin < end || start != Continue::AsItIs) tile<1>(r, begin, end, start);
    }
  }

  void each_row_by_weight(Continue start) const {
    for (Index r = 0; r < Rows; ++r) {
      const Scalar* const weight = weights_ + r * softmax_keys;
      const Index end = inside(keys_[r].end);
      Index key = inside(keys_[r].begin);
      tile<1>(r, key, key, start);
      while (key < end) {
        while (key < end && weight[key] == Scalar(0)) ++key;
        const Index first = key;
        while (key < end && weight[key] != Scalar(0)) ++key;
        if (first < key) tile<1>(r, first, key, Continue::AsItIs);
      }
    }
  }

  const RowKeys* keys_;
  const Scalar* weights_;
  const Scalar* factor_;
  const StepValues<Stored>& values_;
  Index step_, low_, high_;
  Scalar* output_;
  Index output_stride_;
};

/// Brings `channels` channels of what the epilogue of a group's rows needs into cache.
template <class Scalar, class Stored>
void fetch_ahead(const AttendTile<Scalar, Stored>& tile, Index group, Index channel, Index channels) {
  for (const HeadsView<const Scalar>& view : tile.ahead) {
    if (view.empty()) continue;
    const Index last = std::min((group + 1) * tile.group_rows, view.tokens() * view.heads());
    for (Index r = group * tile.group_rows; r < last; ++r)
      fetch(view.row(r / view.heads(), r % view.heads()) + channel, channels);
  }
}

/// The share [from, from + count) of a value panel of either block of the step that starts at `step`.
template <class Scalar, class Stored>
void fetch_values(const AttendTile<Scalar, Stored>& tile, Index step, Index panel, Index from,
                  Index count) {
  for (const Index key : {step, step + block_keys})
    if (tile.has_step(key))
      fetch(tile.block(key) + tile.layout.value_panel_offset(panel) + from, count);
}

/// The rows that the next micro-tile continues from, into the first-level cache.
template <class Scalar>
GATED_ATTENTION_INLINE void fetch_output(const Scalar* output, Index rows, Index stride,
                                         Index packets) {
  for (Index r = 0; r < rows; ++r)
    for (Index j = 0; j < packets; ++j)
      packet::prefetch_near(output + r * stride + j * lanes<Scalar>);
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
