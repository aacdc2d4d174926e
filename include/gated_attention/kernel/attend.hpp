// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>
#include <thread>

#include "gated_attention/core/batch.hpp"
#include "gated_attention/core/key_bounds.hpp"
#include "gated_attention/core/parallel.hpp"
#include "gated_attention/core/view.hpp"
#include "gated_attention/kernel/attend_segment.hpp"
#include "gated_attention/policy/row_stage.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// One sequence of a batch.
struct AttendSequence {
  Index first_token = 0;  ///< its first row of q, gate logits and out
  Index tokens = 0;
  KeyBounds bounds;
  KeyValueSequence blocks;
  Index first_query = 0;  ///< what its first row counts as in views of scores: rows before it came in an earlier pass
};

/// out[t, h, :] = stages(Σ_s p[s]·v[s, h / G, :])    p = softmax over the keys s that t sees of
/// scale·q[t, h, :]·k[s, h / G, :]
///
/// G = query_heads / kv_heads. A query that sees nothing gives exactly 0 before the stages. Keys and values are stored as
/// the function is told.
template <class Scalar>
struct AttendArguments {
  Index query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  HeadsView<const Scalar> q;       ///< [T, Hq, D], exact
  HeadsView<const Scalar> kept_q;  ///< optional [T, Hq, D]: what meets the kept keys, at in-cache positions
  Scalar score_scale = 1;     ///< scale·log2(e); with stages at Scores, scale
  const ScoreStage<Scalar>* score_stages = nullptr;  ///< at Scores, in order
  Index score_stage_count = 0;
  const Scalar* sinks = nullptr;  ///< optional [Hq]: logits that the softmax counts beside the keys
  const AttendSequence* sequences = nullptr;
  Index sequence_count = 0;
  const RowStage<Scalar>* stages = nullptr;  ///< at Sdpa, in order
  Index stage_count = 0;
  const Scalar* gate_logits = nullptr;  ///< of token t: gate_logits + t·gate_token_stride
  Index gate_token_stride = 0;
  HeadsView<Scalar> out;             ///< [T, Hq, Dv], exact
  HeadsView<Scalar> attention;       ///< optional [T, Hq, Dv]: the output before the stages
  PartialAttention<Scalar> partial;  ///< optional: the rows before 1/sum; out is then not written
  MatrixView<Scalar>
      log_sum_exp;  ///< optional [T, Hq]: ln Σ e^score over the keys, without sinks; −inf where none is seen
};

/// AttendArguments::score_scale for a scale of q·k: scores in units of log2, natural where stages work on them.
template <class Scalar>
Scalar score_scale(double scale, Index score_stage_count) {
  return static_cast<Scalar>(score_stage_count > 0 ? scale : scale * std::numbers::log2e);
}

/// What bounds the scratch of attend: numbers of the call, or of the largest call.
struct AttendLimits {
  Index query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  Index tokens = 0;  ///< of all sequences together
  Index sequences = 0;
  Index threads = 1;
};

/// One tile of queries, once for each kv head.
struct AttendItem {
  Index sequence = 0;
  Index first_token = 0;  ///< within the sequence
  Index tokens = 0;
  Index weight = 0;      ///< pairs of query and visible key, about
  Index first_work = 0;  ///< pieces of work of the items before it
  Index pieces = 1;      ///< that the keys are divided into: one, or the segments that are summed apart
  Index turn = 0;        ///< where its running totals lie, in several pieces; kv_heads of them
};

/// Rows of a tile where there is work for all: enough that a panel in the first-level cache serves
/// many, few enough that queries, scores and outputs stay in the second.
inline constexpr Index attend_rows = 192;

/// Rows of the smallest tile that work is cut into for the sake of more threads.
inline constexpr Index attend_least_rows = 24;

/// Whole tokens of about `rows` rows, without padding rows where that is possible.
constexpr Index tokens_of_rows(Index rows, Index heads_per_group) {
  const Index tokens = std::max(rows / heads_per_group, Index{1});
  const Index even = panel_rows / std::gcd(Index{panel_rows}, heads_per_group);
  return tokens > even ? tokens / even * even : tokens;
}

/// Tiles' running totals that many threads may need at once: a tile of a kv head is divided only where it is more than its
/// share of the work.
constexpr Index attend_totals(Index threads) { return threads > 1 ? 4 * threads : 0; }

/// attend's memory: the list of tiles; for each thread, one tile; and the totals of tiles that several threads work on.
/// Laid out by the arena, or only counted.
template <class Scalar>
struct AttendScratch {
  AttendItem* items = nullptr;
  std::byte* memory = nullptr;
  Index thread_bytes = 0;
  Index rows = 0;  ///< of the largest tile
  std::byte* totals = nullptr;
  Index total_bytes = 0;
  Index* turns = nullptr;  ///< the piece whose part a total waits for

  AttendScratch() = default;
  AttendScratch(detail::Arena& arena, const AttendLimits& limits) {
    const Index group = limits.query_heads / limits.kv_heads;
    const Index most =
        std::min(tokens_of_rows(attend_rows, group), std::max(limits.tokens, Index{1}));
    rows = std::max(detail::round_up(most * group, panel_rows), Index{many_rows});
    items = arena.take<AttendItem>(limits.tokens / tokens_of_rows(attend_least_rows, group) +
                                   limits.sequences);
    detail::Arena one;
    SoftmaxPart<Scalar> parts[2];
    AttendTile<Scalar, Scalar> tile;
    tile.layout = {limits.key_dim, limits.value_dim};
    take(one, tile, parts);
    thread_bytes = one.used();
    memory = arena.take<std::byte>(
        detail::checked_product(thread_bytes, limits.threads, "attend scratch"));
    detail::Arena total;
    parts[0].take(total, rows, tile.layout.value_channels());
    total_bytes = total.used();
    const Index shared = attend_totals(limits.threads);
    totals =
        arena.take<std::byte>(detail::checked_product(total_bytes, shared, "attend scratch"));
    turns = arena.take<Index>(shared);
  }

  /// Lays out the tile of one thread; tile.layout is set.
  template <class Stored>
  void take(detail::Arena& arena, AttendTile<Scalar, Stored>& tile,
            SoftmaxPart<Scalar> (&parts)[2]) const {
    tile.take(arena, rows);
    for (SoftmaxPart<Scalar>& part : parts) part.take(arena, rows, tile.layout.value_channels());
  }

  SoftmaxPart<Scalar> total(Index turn, Index value_channels) const {
    detail::Arena arena(totals + turn * total_bytes);
    SoftmaxPart<Scalar> part;
    part.take(arena, rows, value_channels);
    return part;
  }
};

/// The bytes that AttendScratch takes from an arena: linear in tokens, sequences and threads.
template <class Scalar>
Index attend_scratch_bytes(const AttendLimits& limits) {
  detail::Arena arena;
  AttendScratch<Scalar>(arena, limits);
  return arena.used();
}

/// The keys that a tile's rows see, in the segments that are summed apart and merged in this order: the kept keys, then the
/// others, each cut at absolute multiples of restart_keys.
struct KeySegments {
  RowKeys kept, others;

  KeySegments(const KeyBounds& bounds, Index first_token, Index tokens)
      : kept{std::min(bounds.first, bounds.kept_end(first_token)),
             bounds.kept_end(first_token + tokens - 1)},
        others{bounds.begin(first_token), bounds.end(first_token + tokens - 1)} {}

  static Index count(const RowKeys& keys) {
    return keys.begin >= keys.end ? 0 : (keys.end - 1) / restart_keys - keys.begin / restart_keys + 1;
  }
  Index kept_count() const { return count(kept); }
  Index count() const { return count(kept) + count(others); }

  RowKeys operator[](Index i) const {
    const RowKeys& keys = i < kept_count() ? kept : others;
    const Index segment = keys.begin / restart_keys + (i < kept_count() ? i : i - kept_count());
    return {std::max(keys.begin, segment * restart_keys),
            std::min(keys.end, (segment + 1) * restart_keys)};
  }
};

/// Cuts the sequences into tiles, heaviest first, and those that are more than their share of the work into the segments of
/// their keys; returns how many tiles. The cut depends on tokens and threads; no bit of the result does.
template <class Scalar>
Index list_items(const AttendArguments<Scalar>& call, Index threads, AttendItem* items) {
  constexpr Index items_per_thread = 4;
  Index tokens = 0, count = 0;
  for (Index s = 0; s < call.sequence_count; ++s) tokens += call.sequences[s].tokens;
  const Index share =
      threads > 1 ? tokens * call.query_heads / (threads * items_per_thread) : attend_rows;
  const Index step = tokens_of_rows(std::clamp(share, attend_least_rows, attend_rows),
                                    call.query_heads / call.kv_heads);
  Index work = 0;
  for (Index s = 0; s < call.sequence_count; ++s) {
    const AttendSequence& sequence = call.sequences[s];
    for (Index t = 0; t < sequence.tokens; t += step) {
      const Index here = std::min(step, sequence.tokens - t), middle = t + here / 2;
      const Index keys = sequence.bounds.kept_end(middle) + sequence.bounds.end(middle) -
                         sequence.bounds.begin(middle);
      items[count] = {.sequence = s, .first_token = t, .tokens = here, .weight = here * keys};
      work += items[count++].weight;
    }
  }
  if (threads > 1)
    std::sort(items, items + count,
              [](const AttendItem& a, const AttendItem& b) { return a.weight > b.weight; });
  Index turns = 0, pieces = 0;
  for (Index i = 0; i < count; ++i) {
    AttendItem& item = items[i];
    item.first_work = pieces;
    // Fewer than attend_totals tiles of a kv head can be this heavy.
    if (threads > 1 && static_cast<double>(item.weight) * static_cast<double>(attend_totals(threads)) >
                           static_cast<double>(work) * static_cast<double>(call.kv_heads)) {
      const KeyBounds& bounds = call.sequences[item.sequence].bounds;
      item.pieces =
          std::max(KeySegments(bounds, item.first_token, item.tokens).count(), Index{1});
      if (item.pieces > 1) {
        item.turn = turns;
        turns += call.kv_heads;
      }
    }
    pieces += item.pieces;
  }
  return count;
}

/// tile.q and tile.keys of an item's rows, for its kept keys or for the others; fills the last group up.
template <class Scalar, class Stored>
void read_queries(const AttendArguments<Scalar>& call, const AttendItem& item, bool kept,
                  AttendTile<Scalar, Stored>& tile) {
  const AttendSequence& sequence = call.sequences[item.sequence];
  const Index group = call.query_heads / call.kv_heads, rows = item.tokens * group,
              dim = call.key_dim;
  const Packet<Scalar> scale = packet::broadcast<Scalar>(call.score_scale);
  constexpr Index rows_ahead = 12;  // what hides the way to memory
  tile.in_cache = kept && !call.kept_q.empty();
  const HeadsView<const Scalar>& q = tile.in_cache ? call.kept_q : call.q;
  const auto row = [&](Index r) {
    return q.row(sequence.first_token + item.first_token + r / group,
                 tile.kv_head * group + r % group);
  };
  Scalar* to = tile.q;
  for (Index r = 0; r < rows; ++r, to += dim) {
    const Index token = item.first_token + r / group;
    const Scalar* from = row(r);
    if (r + rows_ahead < rows) fetch(row(r + rows_ahead), dim);
    for (Index c = 0; c < dim;
         c += lanes<Scalar>)  // the last packet's padding is overwritten by the next row
      packet::store<Scalar>(to + c, packet::mul(packet::load_at<Scalar>(from, c, dim), scale));
    const KeyBounds& bounds = sequence.bounds;
    if (kept)
      tile.keys[r] = {std::min(bounds.first, bounds.kept_end(token)), bounds.kept_end(token)};
    else
      tile.keys[r] = {bounds.begin(token), bounds.end(token)};
  }
  tile.group_rows = group_rows_for(rows);
  tile.groups = detail::divide_up(rows, tile.group_rows);
  std::fill(to, tile.q + tile.rows() * dim, Scalar(0));
  std::fill(tile.keys + rows, tile.keys + tile.rows(), tile.keys[rows - 1]);
}

/// row ← row · factor; 0 where nothing was seen
template <class Scalar>
void normalize_row(Scalar* row, Index channels, Scalar sum, Scalar factor) {
  if (sum == Scalar(0)) {
    std::fill(row, row + channels, Scalar(0));
    return;
  }
  const Packet<Scalar> scale = packet::broadcast<Scalar>(factor);
  for (Index c = 0; c < channels; c += lanes<Scalar>)
    packet::store<Scalar>(row + c, packet::mul(packet::load<Scalar>(row + c), scale));
}

/// A token's G rows as a partial result.
template <class Scalar>
void record_partial(const AttendArguments<Scalar>& call, Index token, Index first_head, Index group,
                    Index stride, const Scalar* maximum, const Scalar* sum, Scalar* rows) {
  const PartialAttention<Scalar>& partial = call.partial;
  for (Index g = 0; g < group; ++g) {
    partial.maximum(token, first_head + g) = maximum[g];
    partial.sum(token, first_head + g) = sum[g];
    Scalar* const to = partial.output.row(token, first_head + g);
    if (sum[g] == Scalar(0))
      std::fill(to, to + partial.output.width(), Scalar(0));
    else
      std::copy(rows + g * stride, rows + g * stride + partial.output.width(), to);
  }
}

/// 1 / (sum + 2^(sink − maximum)), the sink a logit in natural units: what a row's output is multiplied by.
template <class Scalar>
Scalar factor_with_sink(Scalar maximum, Scalar sum, Scalar sink) {
  const Scalar logit = sink * static_cast<Scalar>(std::numbers::log2e);
  if (!(logit > maximum)) return Scalar(1) / (sum + std::exp2(logit - maximum));
  const Scalar shrink = std::exp2(maximum - logit);
  return shrink / (sum * shrink + Scalar(1));
}

template <class Scalar>
void copy_row(const Scalar* from, Index width, Scalar* to) {
  Index c = 0;
  for (; c + lanes<Scalar> <= width; c += lanes<Scalar>)
    packet::store<Scalar>(to + c, packet::load<Scalar>(from + c));
  if (c < width) packet::store_partial<Scalar>(to + c, packet::load<Scalar>(from + c), width - c);
}

/// The epilogue of one token's G rows while they are in cache: 1/sum, the records, the stages, and
/// out.
template <class Scalar>
void finish_token(const AttendArguments<Scalar>& call, Index token, Index first_head, Index group,
                  Index stride, const Scalar* maximum, const Scalar* sum, Scalar* rows) {
  for (Index g = 0; g < group; ++g) {
    normalize_row(rows + g * stride, stride, sum[g],
                  call.sinks == nullptr
                      ? Scalar(1) / sum[g]
                      : factor_with_sink(maximum[g], sum[g], call.sinks[first_head + g]));
    if (!call.attention.empty())
      copy_row(rows + g * stride, call.value_dim, call.attention.row(token, first_head + g));
    if (!call.log_sum_exp.empty()) {
      constexpr double ln2 = 0.69314718055994530942;
      call.log_sum_exp(token, first_head + g) = static_cast<Scalar>(
          static_cast<double>(maximum[g]) * ln2 + std::log(static_cast<double>(sum[g])));
    }
  }
  RowPlace<Scalar> place;
  place.first_head = first_head;
  if (call.gate_logits != nullptr)
    place.gate_logits = call.gate_logits + token * call.gate_token_stride;
  for (Index i = 0; i < call.stage_count; ++i)
    call.stages[i].run(call.stages[i], rows, group, stride, place);
  for (Index g = 0; g < group; ++g)
    copy_row(rows + g * stride, call.value_dim, call.out.row(token, first_head + g));
}

/// The epilogue on merged parts, token by token. rows: [G, stride], of the caller's.
template <class Scalar>
void finish_partial(const AttendArguments<Scalar>& call, const PartialAttention<Scalar>& merged,
                    Index group, Index stride, Scalar* rows) {
  for (Index t = 0; t < merged.output.tokens(); ++t)
    for (Index head = 0; head < call.query_heads; head += group) {
      for (Index g = 0; g < group; ++g)
        std::copy_n(merged.output.row(t, head + g), call.value_dim, rows + g * stride);
      finish_token(call, t, head, group, stride, merged.maximum.row(t) + head,
                   merged.sum.row(t) + head, rows);
    }
}

/// What finish_token will touch of the item's tokens: the output, and the logits of the first elementwise gate.
template <class Scalar, class Stored>
void look_ahead(const AttendArguments<Scalar>& call, const AttendItem& item,
                AttendTile<Scalar, Stored>& tile) {
  const Index group = call.query_heads / call.kv_heads, head = tile.kv_head * group;
  const Index token = call.sequences[item.sequence].first_token + item.first_token;
  tile.ahead[0] = {call.out.row(token, head), item.tokens,           group, call.value_dim,
                   call.out.token_stride(),   call.out.head_stride()};
  for (Index i = 0; i < call.stage_count && call.gate_logits != nullptr; ++i) {
    const RowStage<Scalar>& stage = call.stages[i];
    if (stage.logits_head_stride < call.value_dim || !tile.ahead[1].empty()) continue;
    tile.ahead[1] = {call.gate_logits + token * call.gate_token_stride + stage.logits_offset +
                         head * stage.logits_head_stride,
                     item.tokens,
                     group,
                     call.value_dim,
                     call.gate_token_stride,
                     stage.logits_head_stride};
  }
}

/// Whose turn it is to join the total of a tile of a kv head.
class Turn {
 public:
  Turn(Index* turns, Index tile) : next_(turns[tile]) {}

  /// Pieces are handed out in ascending order, so that those before this one are done or at work.
  void wait_for(Index piece) const {
    while (next_.load(std::memory_order_acquire) != piece) std::this_thread::yield();
  }
  void pass_on(Index piece) const { next_.store(piece + 1, std::memory_order_release); }

 private:
  std::atomic_ref<Index> next_;
};

/// The epilogue of a tile, or its record as a partial result.
template <class Scalar>
void finish_item(const AttendArguments<Scalar>& call, const AttendItem& item, Index kv_head,
                 Index stride, const SoftmaxPart<Scalar>& total) {
  const Index group = call.query_heads / call.kv_heads;
  const Index first_token = call.sequences[item.sequence].first_token + item.first_token;
  for (Index t = 0; t < item.tokens; ++t) {
    const auto finish = call.partial.empty() ? &finish_token<Scalar> : &record_partial<Scalar>;
    finish(call, first_token + t, kv_head * group, group, stride, total.maximum + t * group,
           total.sum + t * group, total.output + t * group * stride);
  }
}

/// One tile of queries against the keys it sees, or against one piece of them: restart segments in ascending order,
/// merged; the last of them is followed by the epilogue.
template <class Stored, class Scalar>
void attend_item(const AttendArguments<Scalar>& call, const AttendItem& item, Index piece,
                 Index kv_head, const AttendScratch<Scalar>& scratch, Index thread) {
  const AttendSequence& sequence = call.sequences[item.sequence];
  detail::Arena arena(scratch.memory + thread * scratch.thread_bytes);
  AttendTile<Scalar, Stored> tile;
  SoftmaxPart<Scalar> parts[2];
  tile.layout = {call.key_dim, call.value_dim};
  scratch.take(arena, tile, parts);
  tile.blocks = sequence.blocks;
  tile.kv_head = kv_head;
  tile.score_stages = call.score_stages;
  tile.score_stage_count = call.score_stage_count;
  tile.score_unit = static_cast<Scalar>(std::numbers::log2e);
  for (Index i = 0; i < call.score_stage_count; ++i)
    tile.irregular = tile.irregular || call.score_stages[i].masks;
  tile.sequence = item.sequence;
  tile.first_token = item.first_token;
  tile.first_query = sequence.first_query;
  tile.tokens = item.tokens;
  tile.group_heads = call.query_heads / call.kv_heads;
  tile.bounds = sequence.bounds;
  look_ahead(call, item, tile);

  const KeySegments segments(sequence.bounds, item.first_token, item.tokens);
  const Index stride = tile.layout.value_channels(), count = segments.count();
  const Index rows = item.tokens * tile.group_heads;
  const bool alone = item.pieces == 1;
  const Index first = alone ? 0 : piece, last = alone ? count : piece + 1;
  const SoftmaxPart<Scalar> total =
      alone ? parts[0] : scratch.total(item.turn + kv_head, stride);
  for (Index i = first; i < last; ++i) {
    if (i == first || i == segments.kept_count())
      read_queries(call, item, i < segments.kept_count(), tile);
    const RowKeys keys = segments[i];
    attend_segment(tile, keys.begin, keys.end, i == 0 ? total : parts[1]);
    if (!alone) Turn(scratch.turns, item.turn + kv_head).wait_for(i);
    if (i != 0) merge(total, parts[1], rows, stride);
  }
  if (count == 0) {
    std::fill(total.maximum, total.maximum + rows, minus_infinity<Scalar>);
    std::fill(total.sum, total.sum + rows, Scalar(0));
  }
  if (last == count) finish_item(call, item, kv_head, stride, total);
  if (!alone) Turn(scratch.turns, item.turn + kv_head).pass_on(piece);
}

/// Multiply-adds of a call, about.
template <class Scalar>
double attend_work(const AttendArguments<Scalar>& call) {
  double pairs = 0;
  for (Index s = 0; s < call.sequence_count; ++s) {
    const AttendSequence& sequence = call.sequences[s];
    const Index middle = sequence.tokens / 2;
    pairs += static_cast<double>(sequence.tokens) *
             static_cast<double>(sequence.bounds.kept_end(middle) + sequence.bounds.end(middle) -
                                 sequence.bounds.begin(middle));
  }
  return pairs * static_cast<double>(call.query_heads * (call.key_dim + call.value_dim));
}

/// Runs the call on at most `threads` threads; scratch was laid out for at least as many of
/// everything. Keys and values are stored as Stored.
template <class Stored, class Scalar>
void attend(const AttendArguments<Scalar>& call, const AttendScratch<Scalar>& scratch,
            Index threads) {
  const Index team = threads_for(threads, attend_work(call));
  const Index tiles = list_items(call, team, scratch.items);
  if (tiles == 0) return;
  std::fill(scratch.turns, scratch.turns + attend_totals(team), Index{0});
  const AttendItem* const items = scratch.items;
  const Index pieces = items[tiles - 1].first_work + items[tiles - 1].pieces;
  parallel_for(team, pieces * call.kv_heads, [&](Index work, Index thread) {
    const Index piece = work / call.kv_heads;
    const AttendItem& found =
        *(std::upper_bound(items, items + tiles, piece,
                           [](Index wanted, const AttendItem& item) { return wanted < item.first_work; }) -
          1);
    attend_item<Stored>(call, found, piece - found.first_work, work % call.kv_heads, scratch, thread);
  });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
