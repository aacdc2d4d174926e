// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/kernel/attend_tile.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

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
  for (Index r = 0; r < tile.group_rows; ++r) {
    Scalar* const row = scores + r * softmax_keys;
    const Index tile_row = group * tile.group_rows + r;
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
  for (Index r = group * tile.group_rows; r < (group + 1) * tile.group_rows; ++r) {
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

/// A piece of a group's scores: of the packets of keys from `first_key` on.
template <class Scalar, class Stored>
struct ScorePiece {
  Index group = 0;
  Index first_key = 0;
  const Stored* keys = nullptr;        ///< [depth][64], from that key on
  const Scalar* key_scales = nullptr;  ///< where keys have scales
  bool plain = false;                  ///< every row sees every key, and there are no stages
  bool fresh = false;                  ///< lane_maxima is written, not raised
  Scalar* scores = nullptr;            ///< [rows, softmax_keys]
  Scalar* lane_maxima = nullptr;
  Ahead ahead;
};

/// scores[r, :] = q[r, :] · keys, lane_maxima[r] = their maximum      Rows rows × Packets packets
template <int Rows, int Packets, class Scalar, class Stored>
void score_tile(const AttendTile<Scalar, Stored>& tile, const ScorePiece<Scalar, Stored>& piece) {
  const Index depth = tile.layout.key_dim;
  const Scalar* const q = tile.q + piece.group * Rows * depth;
  Scalar* const scores = piece.scores;
  Packet<Scalar> c[std::size_t{Rows}][std::size_t{Packets}];
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < Rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j) c[r][j] = packet::zero<Scalar>();
  }
  if constexpr (Rows != panel_rows)
    accumulate_ahead(c, q, depth, Index{1}, piece.keys, panel_columns, depth, piece.ahead);
  else
    accumulate(c, q, depth, Index{1}, piece.keys, panel_columns, depth);
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j) {
      const Packet<Scalar> scale = packet::load<Scalar>(piece.key_scales + j * lanes<Scalar>);
      GATED_ATTENTION_UNROLL
      for (int r = 0; r < Rows; ++r) c[r][j] = packet::mul(c[r][j], scale);
    }
  }
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < Rows; ++r) {
    GATED_ATTENTION_UNROLL
    for (int j = 0; j < Packets; ++j)
      packet::store<Scalar>(scores + r * softmax_keys + j * lanes<Scalar>, c[r][j]);
  }
  if (!piece.plain)
    return finish_scores(tile, piece.group, piece.first_key, Index{Packets}, piece.fresh, scores,
                         piece.lane_maxima);
  GATED_ATTENTION_UNROLL
  for (int r = 0; r < Rows; ++r) {
    Packet<Scalar> maximum = c[r][0];
    GATED_ATTENTION_UNROLL
    for (int j = 1; j < Packets; ++j) maximum = packet::max(maximum, c[r][j]);
    Scalar* lane_maximum = piece.lane_maxima + r * lanes<Scalar>;
    if (!piece.fresh) maximum = packet::max(maximum, packet::load<Scalar>(lane_maximum));
    packet::store<Scalar>(lane_maximum, maximum);
  }
}

/// What score_tile leaves of scores that are all −inf.
template <class Scalar>
void hide_scores(Index rows, Index packets, bool fresh, Scalar* scores, Scalar* lane_maxima) {
  const Packet<Scalar> hidden = packet::broadcast<Scalar>(minus_infinity<Scalar>);
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < packets; ++j)
      packet::store<Scalar>(scores + r * softmax_keys + j * lanes<Scalar>, hidden);
    if (fresh) packet::store<Scalar>(lane_maxima + r * lanes<Scalar>, hidden);
  }
}

/// Scores of one group over a micro-tile's columns of the 64-key block that starts at `block_key`, from `column` on, without
/// the packets at either end that no row sees.
template <int Rows, class Scalar, class Stored>
void score_group(const AttendTile<Scalar, Stored>& tile, Index group, Index step, Index block_key,
                 Index column, const Ahead& ahead) {
  constexpr Index width = lanes<Scalar>, together = stored_lanes<Scalar, Stored>;
  const Index base = block_key + column;
  const Index first = tile.first_key(group), last = tile.last_key(group);
  const Index low = std::max(first - base, Index{0}) / together * together / width;
  const Index high =
      std::min(detail::round_up(last - base, together) / width, Index{packets_beside<Rows>});
  if (low >= high) return;
  const Index from = base + low * width, row = group * Rows;
  const RowKeys* row_keys = tile.keys + row;
  const Stored* const block = tile.block(block_key);
  ScorePiece<Scalar, Stored> piece;
  piece.group = group;
  piece.first_key = from;
  piece.keys = block + (from - block_key);
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled)
    piece.key_scales = tile.layout.key_scales(block) + (from - block_key);
  piece.plain = tile.score_stage_count == 0 && row_keys[Rows - 1].begin <= from &&
                row_keys[0].end >= base + high * width;
  piece.fresh = from <= std::max(first, step);
  piece.scores = tile.scores + row * softmax_keys + (from - step);
  piece.lane_maxima = tile.lane_maxima + row * width;
  piece.ahead = ahead;
  if (tile.irregular) {
    if (stages_hide(tile, group, from, (high - low) * width))
      return hide_scores(Index{Rows}, high - low, piece.fresh, piece.scores, piece.lane_maxima);
    tile.hidden[2 * group + (block_key - step) / block_keys] = false;
  }
  with_packets<packets_beside<Rows>>(high - low, [&]<int Packets>() {
    score_tile<Rows, Packets>(tile, piece);
  });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
