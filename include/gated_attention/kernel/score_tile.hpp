// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/kernel/attend_tile.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

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

/// What is left to do to raw scores of a group, `packets` packets of each row from `first_key` on, where rows do not see all
/// of them or stages change them: the stages, then the unit of the softmax, then −inf for what a row does not see, then
/// the maxima. `fresh`: lane_maxima is written, not raised.
template <class Scalar, class Stored>
void finish_scores(const AttendTile<Scalar, Stored>& tile, Index group, Index first_key, Index packets,
                   bool fresh, Scalar* scores, Scalar* lane_maxima) {
  const Packet<Scalar> unit =
      packet::broadcast<Scalar>(tile.score_stage_count > 0 ? tile.score_unit : Scalar(1));
  for (Index r = 0; r < panel_rows; ++r) {
    Scalar* const row = scores + r * softmax_keys;
    const Index tile_row = group * panel_rows + r;
    for (Index i = 0; i < tile.score_stage_count; ++i)
      tile.score_stages[i].run(tile.score_stages[i], tile.score_row(tile_row, first_key), row,
                               packets);
    Packet<Scalar> maximum = packet::broadcast<Scalar>(minus_infinity<Scalar>);
    if (!fresh) maximum = packet::load<Scalar>(lane_maxima + r * lanes<Scalar>);
    for (Index j = 0; j < packets; ++j) {
      Scalar* const at = row + j * lanes<Scalar>;
      const Packet<Scalar> score =
          visible_scores<Scalar>(packet::mul(packet::load<Scalar>(at), unit),
                                 first_key + j * lanes<Scalar>, tile.keys[tile_row]);
      packet::store<Scalar>(at, score);
      maximum = packet::max(score, maximum);
    }
    packet::store<Scalar>(lane_maxima + r * lanes<Scalar>, maximum);
  }
}

/// Whether some stage masks all that the rows of a group see of the `count` keys from `first_key` on.
template <class Scalar, class Stored>
bool stages_hide(const AttendTile<Scalar, Stored>& tile, Index group, Index first_key, Index count) {
  for (Index r = group * panel_rows; r < (group + 1) * panel_rows; ++r) {
    const Index begin = std::max(tile.keys[r].begin, first_key);
    const Index end = std::min(tile.keys[r].end, first_key + count);
    if (begin >= end) continue;
    const ScoreRow row = tile.score_row(r, begin);
    bool hidden = false;
    for (Index i = 0; i < tile.score_stage_count && !hidden; ++i) {
      const ScoreStage<Scalar>& stage = tile.score_stages[i];
      hidden = stage.hides != nullptr && stage.hides(stage, row, end - begin);
    }
    if (!hidden) return false;
  }
  return true;
}

/// scores[r, :] = q[r, :] · keys, lane_maxima[r] = their maximum
///   panel_rows rows × Packets packets of group `group`; keys: [depth][64]
///
/// `plain`: every row sees every key, and there are no stages. key_scales: of these keys, where they have scales.
template <int Packets, class Scalar, class Stored>
void score_tile(const AttendTile<Scalar, Stored>& tile, Index group, const Stored* keys,
                const Scalar* key_scales, bool plain, Index first_key, bool fresh, Scalar* scores,
                Scalar* lane_maxima) {
  const Index depth = tile.layout.key_dim;
  const Scalar* const q = tile.q + group * panel_rows * depth;
  Packet<Scalar> c[panel_rows][std::size_t{Packets}];
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < panel_rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j) c[r][j] = packet::zero<Scalar>();
  }
  accumulate<panel_rows, Packets>(c, q, depth, Index{1}, keys, panel_columns, depth);
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j) {
      const Packet<Scalar> scale = packet::load<Scalar>(key_scales + j * lanes<Scalar>);
      GATED_ATTENTION_UNROLL
      for (int r = 0; r < panel_rows; ++r) c[r][j] = packet::mul(c[r][j], scale);
    }
  }
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < panel_rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j)
      packet::store<Scalar>(scores + r * softmax_keys + j * lanes<Scalar>, c[r][j]);
  }
  if (!plain)
    return finish_scores(tile, group, first_key, Index{Packets}, fresh, scores, lane_maxima);
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < panel_rows; ++r) {
    Packet<Scalar> maximum = c[r][0];
    GATED_ATTENTION_UNROLL
    for (int j = 1; j < Packets; ++j) maximum = packet::max(maximum, c[r][j]);
    Scalar* lane_maximum = lane_maxima + r * lanes<Scalar>;
    if (!fresh) maximum = packet::max(maximum, packet::load<Scalar>(lane_maximum));
    packet::store<Scalar>(lane_maximum, maximum);
  }
}

/// What score_tile leaves of scores that are all −inf.
template <class Scalar>
void hide_scores(Index packets, bool fresh, Scalar* scores, Scalar* lane_maxima) {
  const Packet<Scalar> hidden = packet::broadcast<Scalar>(minus_infinity<Scalar>);
  for (Index r = 0; r < panel_rows; ++r) {
    for (Index j = 0; j < packets; ++j)
      packet::store<Scalar>(scores + r * softmax_keys + j * lanes<Scalar>, hidden);
    if (fresh) packet::store<Scalar>(lane_maxima + r * lanes<Scalar>, hidden);
  }
}

/// Scores of one group over the columns [column, column + tile_columns) of the 64-key block that
/// starts at `block_key`, without the packets at either end that no row sees.
template <class Scalar, class Stored>
void score_group(const AttendTile<Scalar, Stored>& tile, Index group, Index step, Index block_key,
                 Index column) {
  constexpr Index width = lanes<Scalar>;
  const Index base = block_key + column;
  const Index first = tile.first_key(group), last = tile.last_key(group);
  constexpr Index together = stored_lanes<Scalar, Stored>;
  const Index low = std::max(first - base, Index{0}) / together * together / width;
  const Index high =
      std::min(detail::round_up(last - base, together) / width, Index{panel_packets});
  if (low >= high) return;
  const Index from = base + low * width, row = group * panel_rows;
  const RowKeys* row_keys = tile.keys + row;
  const bool plain = tile.score_stage_count == 0 && row_keys[panel_rows - 1].begin <= from &&
                     row_keys[0].end >= base + high * width;
  const bool fresh = from <= std::max(first, step);
  const Stored* const block = tile.block(block_key);
  const Stored* const keys = block + (from - block_key);
  const Scalar* key_scales = nullptr;
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled)
    key_scales = tile.layout.key_scales(block) + (from - block_key);
  Scalar* scores = tile.scores + row * softmax_keys + (from - step);
  if (tile.irregular) {
    if (stages_hide(tile, group, from, (high - low) * width))
      return hide_scores(high - low, fresh, scores, tile.lane_maxima + row * width);
    tile.hidden[2 * group + (block_key - step) / block_keys] = false;
  }
  const auto run = [&]<int Packets>() {
    score_tile<Packets>(tile, group, keys, key_scales, plain, from, fresh, scores,
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

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
