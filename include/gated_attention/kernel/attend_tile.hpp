// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "gated_attention/core/key_bounds.hpp"
#include "gated_attention/core/memory.hpp"
#include "gated_attention/core/view.hpp"
#include "gated_attention/cache/key_value_blocks.hpp"
#include "gated_attention/kernel/online_softmax.hpp"
#include "gated_attention/policy/score_stage.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// Rows of a micro-tile beside panel_rows, for tiles of that few rows: the heads of one new token.
inline constexpr int few_rows = 4, many_rows = panel_packets == 4 ? 8 : panel_rows;

/// Asks the second-level cache for the lines of `count` numbers from `from` on.
template <class T>
GATED_ATTENTION_INLINE void fetch(const T* from, Index count) {
  constexpr Index line = detail::alignment / static_cast<Index>(sizeof(T));
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
/// group_rows; the rows that fill the last group up are queries of zeros that see what the last
/// true row sees. Neither end of `keys` decreases with r.
template <class Scalar, class Stored>
struct AttendTile {
  KeyValueLayout<Scalar, Stored> layout;
  KeyValueSequence blocks;
  Index kv_head = 0;
  Index groups = 0;      ///< groups of group_rows rows
  Index group_rows = 0;  ///< one of those that with_rows knows

  // What the stages at Scores want to know; they cost nothing where there are none.
  const ScoreStage<Scalar>* score_stages = nullptr;
  Index score_stage_count = 0;
  Scalar score_unit = 1;   ///< log2(e): what scores are multiplied by behind their stages
  bool irregular = false;  ///< a stage may mask any key of any row
  Index sequence = 0;
  Index first_token = 0;  ///< the tile's first query, counted in its sequence
  Index first_query = 0;  ///< what query 0 of the sequence counts as in views of scores
  Index tokens = 0;
  Index group_heads = 1;  ///< G
  bool in_cache = false;  ///< these are kept keys, and positions count only the keys that are still there
  KeyBounds bounds;

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
  bool* hidden = nullptr;          ///< [groups, 2]: a stage masks the whole of a block of the step

  /// Takes what `rows` rows need from the arena, grouped in any way: at least many_rows.
  void take(detail::Arena& arena, Index rows) {
    q = arena.take<Scalar>(rows * layout.key_dim + lanes<Scalar>);
    keys = arena.take<RowKeys>(rows);
    scores = arena.take<Scalar>(rows * softmax_keys);
    lane_maxima = arena.take<Scalar>(rows * lanes<Scalar>);
    lane_sums = arena.take<Scalar>(rows * lanes<Scalar>);
    step_maximum = arena.take<Scalar>(rows + lanes<Scalar>);
    factor = arena.take<Scalar>(rows + lanes<Scalar>);
    hidden = arena.take<bool>(2 * detail::divide_up(rows, few_rows));
  }

  const Stored* block(Index key) const {
    return blocks.block<const Stored>(kv_head, key / block_keys);
  }
  /// The first and one past the last key that some row of the group sees.
  Index first_key(Index group) const { return keys[group * group_rows].begin; }
  Index last_key(Index group) const { return keys[(group + 1) * group_rows - 1].end; }
  /// Where the scores of row r from `key` on stand.
  ScoreRow score_row(Index r, Index key) const {
    const Index row = std::min(r, tokens * group_heads - 1);
    const Index token = first_token + row / group_heads;
    return {.sequence = sequence,
            .head = kv_head * group_heads + row % group_heads,
            .token = first_query + token,
            .position = token + bounds.shift - (in_cache ? bounds.evicted(token) : 0),
            .first_key = key,
            .keys = bounds.keys};
  }
  Index rows() const { return groups * group_rows; }
  /// Does a step follow that starts at `step`?
  bool has_step(Index step) const { return step < last_key(groups - 1); }
};

/// Packets of a micro-tile of so many rows: what the registers hold.
template <int Rows>
inline constexpr int packets_beside = Rows > panel_rows ? panel_packets / 2 : panel_packets;

/// How the rows of a tile are grouped. A group that is alone reads each key and value once, at the speed of memory: its kernels
/// ask for what comes next as they go.
constexpr Index group_rows_for(Index rows) {
  return rows <= few_rows ? few_rows : rows <= many_rows ? many_rows : panel_rows;
}

/// Calls body<Rows>() with what group_rows_for said.
template <class Body>
GATED_ATTENTION_INLINE void with_rows(Index group_rows, const Body& body) {
  if (group_rows == few_rows) return body.template operator()<few_rows>();
  if constexpr (many_rows != panel_rows)
    if (group_rows == many_rows) return body.template operator()<many_rows>();
  body.template operator()<panel_rows>();
}

/// Calls body<packets>(), 1 ≤ packets ≤ Most.
template <int Most, class Body>
GATED_ATTENTION_INLINE void with_packets(Index packets, const Body& body) {
  if constexpr (Most > 1) {
    if (packets < Most) return with_packets<Most - 1>(packets, body);
  }
  body.template operator()<Most>();
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
