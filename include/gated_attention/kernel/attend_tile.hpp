// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/core/view.hpp"
#include "gated_attention/kernel/key_value_blocks.hpp"
#include "gated_attention/kernel/online_softmax.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// Asks the second-level cache for the lines of `count` numbers from `from` on.
template <class Scalar>
GATED_ATTENTION_INLINE void fetch(const Scalar* from, Index count) {
  constexpr Index line = detail::alignment / static_cast<Index>(sizeof(Scalar));
  for (Index i = 0; i < count; i += line) packet::prefetch_far(from + i);
}

/// The keys one row of a tile sees: [begin, end), absolute.
struct RowKeys {
  Index begin = 0;
  Index end = 0;
};

/// Rows of queries against one sequence of keys and values of one kv head, in a thread's own
/// memory.
///
/// Row r belongs to token r / G and to head r mod G of the group. Rows come in groups of
/// panel_rows; the rows that fill the last group up are queries of zeros that see what the last
/// true row sees. Neither end of `keys` decreases with r.
template <class Scalar>
struct AttendTile {
  KeyValueLayout<Scalar> layout;
  KeyValueSequence<const Scalar> blocks;
  Index kv_head = 0;
  Index groups = 0;  ///< groups of panel_rows rows

  /// What the epilogue of the tile's rows will touch: row r of each, where it is not empty, comes into
  /// cache during the last step that the row takes part in. [tokens, G heads, width]
  HeadsView<const Scalar> ahead[2];

  Scalar* q = nullptr;             ///< [rows, key_dim], times the score scale; a packet more
  RowKeys* keys = nullptr;         ///< [rows]
  Scalar* scores = nullptr;        ///< [rows, softmax_keys], then their exponentials
  Scalar* lane_maxima = nullptr;   ///< [rows, lanes], of the step
  Scalar* lane_sums = nullptr;     ///< [rows, lanes], of the segment
  Scalar* step_maximum = nullptr;  ///< [rows + lanes]
  Scalar* factor = nullptr;        ///< [rows + lanes], 2^(old maximum − new maximum)

  /// Takes what `rows` rows need from the arena; rows is a multiple of panel_rows.
  void take(detail::Arena& arena, Index rows) {
    q = arena.take<Scalar>(rows * layout.key_dim + lanes<Scalar>);
    keys = arena.take<RowKeys>(rows);
    scores = arena.take<Scalar>(rows * softmax_keys);
    lane_maxima = arena.take<Scalar>(rows * lanes<Scalar>);
    lane_sums = arena.take<Scalar>(rows * lanes<Scalar>);
    step_maximum = arena.take<Scalar>(rows + lanes<Scalar>);
    factor = arena.take<Scalar>(rows + lanes<Scalar>);
  }

  const Scalar* block(Index key) const { return blocks.block(kv_head, key / block_keys); }
  /// The first and one past the last key that some row of the group sees.
  Index first_key(Index group) const { return keys[group * panel_rows].begin; }
  Index last_key(Index group) const { return keys[group * panel_rows + panel_rows - 1].end; }
  /// Does a step follow that starts at `step`?
  bool has_step(Index step) const { return step < last_key(groups - 1); }
};

/// The columns of a micro-tile.
template <class Scalar>
inline constexpr Index tile_columns = panel_packets* lanes<Scalar>;

/// The lanes of `value` whose key is in [begin, end); −inf in the others. Lane i holds key
/// first_key + i.
template <class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> visible_scores(const Packet<Scalar>& value, Index first_key,
                                                     const RowKeys& keys) {
  const auto lane_of = [&](Index key) {
    return packet::broadcast<Scalar>(
        static_cast<Scalar>(std::clamp(key - first_key, Index{0}, lanes<Scalar>)));
  };
  const Packet<Scalar> lane = packet::ramp<Scalar>();
  const Packet<Scalar> hidden = packet::broadcast<Scalar>(minus_infinity<Scalar>);
  return packet::select_less(lane, lane_of(keys.end),
                             packet::select_less(lane, lane_of(keys.begin), hidden, value), hidden);
}

/// scores[r, :] = q[r, :] · keys, lane_maxima[r] = their maximum      panel_rows rows × Packets
/// packets
///
/// keys: [depth][64]. With row_keys, the scores of keys that a row does not see are −inf. `fresh`:
/// lane_maxima is written, not raised.
template <int Packets, class Scalar>
void score_tile(const Scalar* q, Index depth, const Scalar* keys, const RowKeys* row_keys,
                Index first_key, bool fresh, Scalar* scores, Scalar* lane_maxima) {
  Packet<Scalar> c[panel_rows][std::size_t{Packets}];
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < panel_rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j) c[r][j] = packet::zero<Scalar>();
  }
  accumulate<panel_rows, Packets>(c, q, depth, Index{1}, keys, panel_columns, depth);
  if (row_keys != nullptr) {
    GATED_ATTENTION_UNROLL
    for (int r = 0; r < panel_rows; ++r) {
      GATED_ATTENTION_UNROLL
      for (int j = 0; j < Packets; ++j)
        c[r][j] = visible_scores<Scalar>(c[r][j], first_key + j * lanes<Scalar>, row_keys[r]);
    }
  }
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < panel_rows; ++r) {
    Packet<Scalar> maximum = c[r][0];
    GATED_ATTENTION_UNROLL
    for (int j = 1; j < Packets; ++j) maximum = packet::max(maximum, c[r][j]);
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j)
      packet::store<Scalar>(scores + r * softmax_keys + j * lanes<Scalar>, c[r][j]);
    Scalar* lane_maximum = lane_maxima + r * lanes<Scalar>;
    if (!fresh) maximum = packet::max(maximum, packet::load<Scalar>(lane_maximum));
    packet::store<Scalar>(lane_maximum, maximum);
  }
}

/// Scores of one group over the columns [column, column + tile_columns) of the 64-key block that
/// starts at `block_key`, without the packets at either end that no row sees.
template <class Scalar>
void score_group(const AttendTile<Scalar>& tile, Index group, Index step, Index block_key,
                 Index column) {
  constexpr Index width = lanes<Scalar>;
  const Index base = block_key + column;
  const Index first = tile.first_key(group), last = tile.last_key(group);
  const Index low = std::max(first - base, Index{0}) / width;
  const Index high = std::min(detail::divide_up(last - base, width), Index{panel_packets});
  if (low >= high) return;
  const Index from = base + low * width, row = group * panel_rows;
  const RowKeys* row_keys = tile.keys + row;
  const bool all = row_keys[panel_rows - 1].begin <= from && row_keys[0].end >= base + high * width;
  const bool fresh = from <= std::max(first, step);
  const Scalar* q = tile.q + row * tile.layout.key_dim;
  const Scalar* keys = tile.block(block_key) + (from - block_key);
  Scalar* scores = tile.scores + row * softmax_keys + (from - step);
  const auto run = [&]<int Packets>() {
    score_tile<Packets>(q, tile.layout.key_dim, keys, all ? nullptr : row_keys, from, fresh, scores,
                        tile.lane_maxima + row * width);
  };
  switch (high - low) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    case 3:
      if constexpr (panel_packets > 2) return run.template operator()<3>();
      [[fallthrough]];
    default:
      if constexpr (panel_packets > 2) return run.template operator()<4>();
  }
}

/// How a row's running output enters a step.
enum class Continue {
  FromZero,     ///< its memory is not read
  TimesFactor,  ///< the maximum may have risen: times 2^(old − new)
  AsItIs
};

/// output[r, :] = start(output[r, :]) + Σ_key weights[r, key]·values[key, :]      Rows rows ×
/// Packets packets
///
/// weights: [rows, softmax_keys]. values: the panel of either block of the step, [64 keys][width],
/// of which the keys [begin, end) of the step enter, ascending.
template <int Rows, int Packets, class Scalar>
void value_tile(const Scalar* weights, const Scalar* const (&values)[2], Index width, Index begin,
                Index end, Continue start, const Scalar* factor, Scalar* output,
                Index output_stride) {
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
    if (first < last)
      accumulate<Rows, Packets>(c, weights + half * block_keys + first, softmax_keys, Index{1},
                                values[half] + first * width, width, last - first);
  }
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < Rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j)
      packet::store<Scalar>(output + r * output_stride + j * lanes<Scalar>, c[r][j]);
  }
}

/// One group's share of a step's values in Packets packets of channels from `channel` on. The keys
/// that all rows see go together; what some rows see before and after them (the triangles of a
/// diagonal and of a window's edge) goes row by row, so that each row sums its own keys in
/// ascending order and reads no other.
template <int Packets, class Scalar>
void value_group(const AttendTile<Scalar>& tile, Index group, Index step, Continue start,
                 const Scalar* const (&values)[2], Index width, Scalar* output,
                 Index output_stride) {
  const Index row = group * panel_rows;
  const RowKeys* keys = tile.keys + row;
  const Scalar* weights = tile.scores + row * softmax_keys;
  const Scalar* factor = tile.factor + row;
  const auto inside = [&](Index key) { return std::clamp(key - step, Index{0}, softmax_keys); };
  const auto row_by_row = [&](Index from, Index to, Continue how) {
    for (Index r = 0; r < panel_rows; ++r) {
      const Index begin = std::max(inside(keys[r].begin), from),
                  end = std::min(inside(keys[r].end), to);
      if (begin >= end && how == Continue::AsItIs) continue;
      value_tile<1, Packets>(weights + r * softmax_keys, values, width, begin, end, how, factor + r,
                             output + r * output_stride, output_stride);
    }
  };
  const Index begin = inside(keys[panel_rows - 1].begin), end = inside(keys[0].end);
  if (begin >= end) return row_by_row(0, softmax_keys, start);
  if (inside(keys[0].begin) < begin) {
    row_by_row(0, begin, start);
    start = Continue::AsItIs;
  }
  value_tile<panel_rows, Packets>(weights, values, width, begin, end, start, factor, output,
                                  output_stride);
  if (inside(keys[panel_rows - 1].end) > end) row_by_row(end, softmax_keys, Continue::AsItIs);
}

/// Brings `channels` channels of what the epilogue of a group's rows needs into cache.
template <class Scalar>
void fetch_ahead(const AttendTile<Scalar>& tile, Index group, Index channel, Index channels) {
  for (const HeadsView<const Scalar>& view : tile.ahead) {
    if (view.empty()) continue;
    const Index last = std::min((group + 1) * panel_rows, view.tokens() * view.heads());
    for (Index r = group * panel_rows; r < last; ++r)
      fetch(view.row(r / view.heads(), r % view.heads()) + channel, channels);
  }
}

/// The share [from, from + count) of a value panel of either block of the step that starts at `step`.
template <class Scalar>
void fetch_values(const AttendTile<Scalar>& tile, Index step, Index panel, Index from,
                  Index count) {
  for (const Index key : {step, step + block_keys})
    if (tile.has_step(key))
      fetch(tile.block(key) + tile.layout.value_panel_offset(panel) + from, count);
}

/// The rows that the next micro-tile continues from, into the first-level cache.
template <class Scalar>
GATED_ATTENTION_INLINE void fetch_output(const Scalar* output, Index stride, Index packets) {
  for (Index r = 0; r < panel_rows; ++r)
    for (Index j = 0; j < packets; ++j)
      packet::prefetch_near(output + r * stride + j * lanes<Scalar>);
}

/// The groups of a tile that see a key of a step: neighbours, since neither end of their keys
/// decreases.
struct GroupRange {
  Index first = 0;
  Index last = 0;
};

template <class Scalar>
GroupRange groups_of_step(const AttendTile<Scalar>& tile, Index step) {
  GroupRange range{0, tile.groups};
  while (range.first < range.last && tile.last_key(range.first) <= step) ++range.first;
  while (range.first < range.last &&
         tile.first_key(range.last - 1) >=
             std::min(step + softmax_keys, tile.last_key(range.last - 1)))
    --range.last;
  return range;
}

/// Scores of a step, panel by panel: a panel stays in the first-level cache while the rows go by, each
/// of which asks for its share of the same panel of the next step.
template <class Scalar>
void score_step(const AttendTile<Scalar>& tile, GroupRange groups, Index step) {
  const Index panel = tile.layout.key_dim * block_keys;
  const Index share = detail::divide_up(panel, groups.last - groups.first);
  for (Index half = 0; half < softmax_keys; half += block_keys) {
    const Index next = step + softmax_keys + half;
    const Scalar* next_keys = tile.has_step(next) ? tile.block(next) : nullptr;
    for (Index column = 0; column < block_keys; column += tile_columns<Scalar>)
      for (Index group = groups.first; group < groups.last; ++group) {
        if (next_keys != nullptr && column == 0)
          fetch(next_keys + (group - groups.first) * share, share);
        score_group(tile, group, step, step + half, column);
      }
  }
}

/// Exponentials of a step in place, and the rows' sums.
template <class Scalar>
void softmax_step(const AttendTile<Scalar>& tile, GroupRange groups, Index step, Scalar* maximum) {
  raise_maxima(tile.lane_maxima, groups.first * panel_rows, groups.last * panel_rows,
               tile.step_maximum, maximum, tile.factor);
  for (Index group = groups.first; group < groups.last; ++group) {
    const Index low = std::max(tile.first_key(group) - step, Index{0}) / lanes<Scalar>;
    const Index high =
        detail::divide_up(std::min(tile.last_key(group) - step, softmax_keys), lanes<Scalar>);
    for (Index r = group * panel_rows; r < (group + 1) * panel_rows; ++r)
      exponentiate(tile.scores + r * softmax_keys + low * lanes<Scalar>, high - low, maximum[r],
                   tile.factor[r], tile.lane_sums + r * lanes<Scalar>);
  }
}

/// Values of a step, panel by panel. `segment`: the first key of the segment, whose first step
/// starts from zero.
template <class Scalar>
void value_step(const AttendTile<Scalar>& tile, GroupRange groups, Index step, Index segment,
                Scalar* output) {
  const KeyValueLayout<Scalar>& layout = tile.layout;
  const Index stride = layout.value_channels();
  const Scalar* blocks[2] = {tile.block(step), nullptr};
  if (tile.last_key(groups.last - 1) > step + block_keys) blocks[1] = tile.block(step + block_keys);
  for (Index channel = 0; channel < stride; channel += tile_columns<Scalar>) {
    const Index panel = channel / panel_columns * panel_columns;
    const Index width = layout.value_panel_width(panel);
    const Index offset = layout.value_panel_offset(panel) + channel - panel;
    const Scalar* const values[2] = {blocks[0] + offset,
                                     blocks[1] == nullptr ? nullptr : blocks[1] + offset};
    const Index packets = std::min(stride - channel, tile_columns<Scalar>) / lanes<Scalar>;
    const Index share = detail::divide_up(block_keys * width, groups.last - groups.first);
    for (Index group = groups.first; group < groups.last; ++group) {
      if (channel == panel)
        fetch_values(tile, step + softmax_keys, panel, (group - groups.first) * share, share);
      if (tile.last_key(group) <= step + softmax_keys)
        fetch_ahead(tile, group, channel, packets * lanes<Scalar>);
      if (group + 1 < groups.last)
        fetch_output(output + (group + 1) * panel_rows * stride + channel, stride, packets);
      const Continue start = std::max(tile.first_key(group), segment) >= step
                                 ? Continue::FromZero
                                 : Continue::TimesFactor;
      Scalar* to = output + group * panel_rows * stride + channel;
      const auto run = [&]<int Packets>() {
        value_group<Packets>(tile, group, step, start, values, width, to, stride);
      };
      switch (packets) {
        case 1:
          run.template operator()<1>();
          break;
        case 2:
          run.template operator()<2>();
          break;
        default:
          if constexpr (panel_packets > 2)
            packets == 3 ? run.template operator()<3>() : run.template operator()<4>();
      }
    }
  }
}

/// part = the tile's rows over the keys [first, last), which lie in one restart segment: steps of
/// softmax_keys at absolute multiples, ascending.
template <class Scalar>
void attend_segment(const AttendTile<Scalar>& tile, Index first, Index last,
                    const SoftmaxPart<Scalar>& part) {
  const Index rows = tile.groups * panel_rows;
  std::fill(part.maximum, part.maximum + rows + lanes<Scalar>, minus_infinity<Scalar>);
  std::fill(tile.lane_sums, tile.lane_sums + rows * lanes<Scalar>, Scalar(0));
  for (Index step = first / softmax_keys * softmax_keys; step < last; step += softmax_keys) {
    const GroupRange groups = groups_of_step(tile, step);
    if (groups.first >= groups.last) continue;
    score_step(tile, groups, step);
    softmax_step(tile, groups, step, part.maximum);
    value_step(tile, groups, step, first, part.output);
  }
  for (Index r = 0; r < rows; ++r)
    part.sum[r] = packet::reduce_add(packet::load<Scalar>(tile.lane_sums + r * lanes<Scalar>));
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
