// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gated_attention/kernel/score_tile.hpp"
#include "gated_attention/kernel/value_tile.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The groups of a tile that see a key of a step: neighbours, since neither end of their keys
/// decreases.
struct GroupRange {
  Index first = 0;
  Index last = 0;
};

template <class Scalar, class Stored>
GroupRange groups_of_step(const AttendTile<Scalar, Stored>& tile, Index step) {
  GroupRange range{0, tile.groups};
  while (range.first < range.last && tile.last_key(range.first) <= step) ++range.first;
  while (range.first < range.last &&
         tile.first_key(range.last - 1) >=
             std::min(step + softmax_keys, tile.last_key(range.last - 1)))
    --range.last;
  return range;
}

/// The lines of `bytes` bytes from `from` on, in `parts` parts of which this is part `i`.
inline Ahead part_of(const void* from, Index bytes, Index i, Index parts) {
  const Index lines = detail::divide_up(bytes, detail::alignment);
  const Index first = lines * i / parts, last = lines * (i + 1) / parts;
  return {static_cast<const std::byte*>(from) + first * detail::alignment, last - first};
}

/// Scores of a step, panel by panel: a panel stays in the first-level cache while the rows go by, each
/// of which asks for its share of the same panel of the next step. A single group asks for the values behind the panel.
template <int Rows, class Scalar, class Stored>
void score_step(const AttendTile<Scalar, Stored>& tile, GroupRange groups, Index step) {
  constexpr Index columns = packets_beside<Rows> * lanes<Scalar>;
  const Index panel = tile.layout.key_dim * block_keys;
  const Index share = detail::divide_up(panel, groups.last - groups.first);
  for (Index half = 0; half < softmax_keys; half += block_keys) {
    const Index next = step + softmax_keys + half;
    const Stored* next_keys = Rows == panel_rows && tile.has_step(next) ? tile.block(next) : nullptr;
    const Stored* values = nullptr;
    if (Rows != panel_rows && tile.has_step(step + half))
      values = tile.block(step + half) + tile.layout.values_offset();
    for (Index column = 0; column < block_keys; column += columns) {
      const Ahead ahead =
          values == nullptr
              ? Ahead{}
              : part_of(values, tile.layout.stored_channels() * block_keys * Index{sizeof(Stored)},
                        column / columns, block_keys / columns);
      for (Index group = groups.first; group < groups.last; ++group) {
        if (next_keys != nullptr && column == 0)
          fetch(next_keys + (group - groups.first) * share, share);
        score_group<Rows>(tile, group, step, step + half, column, ahead);
      }
    }
  }
}

/// weights ← weights ⊙ the scales of their values, over `packets` packets of a row from `key` on; 0 stays 0, whatever stands
/// where no value is.
template <class Scalar, class Stored>
void scale_weights(const AttendTile<Scalar, Stored>& tile, Index key, Index packets,
                   Scalar* weights) {
  const Packet<Scalar> least = packet::broadcast<Scalar>(std::numeric_limits<Scalar>::min());
  for (Index j = 0; j < packets; ++j, key += lanes<Scalar>, weights += lanes<Scalar>) {
    const Packet<Scalar> weight = packet::load<Scalar>(weights);
    const Packet<Scalar> scale = packet::load<Scalar>(tile.layout.value_scales(tile.block(key)) +
                                                      key % block_keys);
    packet::store<Scalar>(weights, packet::select_less(weight, least, packet::zero<Scalar>(),
                                                       packet::mul(weight, scale)));
  }
}

/// Exponentials of a step in place, and the rows' sums.
template <class Scalar, class Stored>
void softmax_step(const AttendTile<Scalar, Stored>& tile, GroupRange groups, Index step, Scalar* maximum) {
  const Index rows = tile.group_rows;
  raise_maxima(tile.lane_maxima, groups.first * rows, groups.last * rows, tile.step_maximum,
               maximum, tile.factor);
  for (Index group = groups.first; group < groups.last; ++group) {
    const Index low = std::max(tile.first_key(group) - step, Index{0}) / lanes<Scalar>;
    const Index high =
        detail::divide_up(std::min(tile.last_key(group) - step, softmax_keys), lanes<Scalar>);
    for (Index r = group * rows; r < (group + 1) * rows; ++r)
      exponentiate(tile.scores + r * softmax_keys + low * lanes<Scalar>, high - low, maximum[r],
                   tile.factor[r], tile.lane_sums + r * lanes<Scalar>);
    if constexpr (KeyValueLayout<Scalar, Stored>::scaled)
      for (Index r = group * rows; r < (group + 1) * rows; ++r)
        scale_weights(tile, step + low * lanes<Scalar>, high - low,
                      tile.scores + r * softmax_keys + low * lanes<Scalar>);
  }
}

/// Values of a step, panel by panel. `segment`: the first key of the segment, whose first step
/// starts from zero. A single group asks for the keys of the next step.
template <int Rows, class Scalar, class Stored>
void value_step(const AttendTile<Scalar, Stored>& tile, GroupRange groups, Index step, Index segment,
                Scalar* output) {
  constexpr Index columns = packets_beside<Rows> * lanes<Scalar>;
  const KeyValueLayout<Scalar, Stored>& layout = tile.layout;
  const Index stride = layout.value_channels();
  const Stored* blocks[2] = {nullptr, nullptr};
  if (std::max(tile.first_key(groups.first), segment) < step + block_keys)
    blocks[0] = tile.block(step);
  if (tile.last_key(groups.last - 1) > step + block_keys) blocks[1] = tile.block(step + block_keys);
  StepValues<Stored> values;
  if (tile.irregular)
    for (const Stored* block : blocks)
      values.finite = values.finite && (block == nullptr || layout.values_finite(block));
  for (Index channel = 0; channel < stride; channel += columns) {
    const Index panel = channel / panel_columns * panel_columns;
    const Index width = layout.value_panel_width(panel);
    const Index offset = layout.value_panel_offset(panel) + channel - panel;
    for (Index half = 0; half < 2; ++half) {
      values.half[half] = blocks[half] == nullptr ? nullptr : blocks[half] + offset;
      const Index next = step + softmax_keys + half * block_keys;
      if (Rows != panel_rows && tile.has_step(next))
        values.ahead[half] =
            part_of(tile.block(next), layout.key_dim * block_keys * Index{sizeof(Stored)},
                    channel / columns, detail::divide_up(stride, columns));
    }
    values.width = width;
    const Index packets = std::min(stride - channel, columns) / lanes<Scalar>;
    const Index share = detail::divide_up(block_keys * width, groups.last - groups.first);
    for (Index group = groups.first; group < groups.last; ++group) {
      if (Rows == panel_rows && channel == panel)
        fetch_values(tile, step + softmax_keys, panel, (group - groups.first) * share, share);
      if (tile.last_key(group) <= step + softmax_keys)
        fetch_ahead(tile, group, channel, packets * lanes<Scalar>);
      if (group + 1 < groups.last)
        fetch_output(output + (group + 1) * Rows * stride + channel, Index{Rows}, stride, packets);
      const Continue start = std::max(tile.first_key(group), segment) >= step
                                 ? Continue::FromZero
                                 : Continue::TimesFactor;
      Scalar* to = output + group * Rows * stride + channel;
      with_packets<packets_beside<Rows>>(packets, [&]<int Packets>() {
        ValueGroup<Rows, Packets, Scalar, Stored>(tile, group, step, values, to, stride)
            .run(start, !values.finite);
      });
    }
  }
}

/// part = the tile's rows over the keys [first, last), which lie in one restart segment: steps of
/// softmax_keys at absolute multiples, ascending.
template <class Scalar, class Stored>
void attend_segment(const AttendTile<Scalar, Stored>& tile, Index first, Index last,
                    const SoftmaxPart<Scalar>& part) {
  const Index rows = tile.rows();
  std::fill(part.maximum, part.maximum + rows + lanes<Scalar>, minus_infinity<Scalar>);
  std::fill(tile.lane_sums, tile.lane_sums + rows * lanes<Scalar>, Scalar(0));
  for (Index step = first / softmax_keys * softmax_keys; step < last; step += softmax_keys) {
    const GroupRange groups = groups_of_step(tile, step);
    if (groups.first >= groups.last) continue;
    if (tile.irregular) std::fill(tile.hidden, tile.hidden + 2 * tile.groups, true);
    with_rows(tile.group_rows, [&]<int Rows>() { score_step<Rows>(tile, groups, step); });
    softmax_step(tile, groups, step, part.maximum);
    with_rows(tile.group_rows,
              [&]<int Rows>() { value_step<Rows>(tile, groups, step, first, part.output); });
  }
  for (Index r = 0; r < rows; ++r)
    part.sum[r] = packet::reduce_add(packet::load<Scalar>(tile.lane_sums + r * lanes<Scalar>));
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
