// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>

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
template <class Scalar>
struct AttendSequence {
  Index first_token = 0;  ///< its first row of q, gate logits and out
  Index tokens = 0;
  KeyBounds bounds;
  KeyValueSequence<const Scalar> blocks;
};

/// out[t, h, :] = stages(Σ_s p[s]·v[s, h / G, :])    p = softmax over the keys s that t sees of
/// scale·q[t, h, :]·k[s, h / G, :]
///
/// G = query_heads / kv_heads. A query that sees nothing gives exactly 0 before the stages.
template <class Scalar>
struct AttendArguments {
  Index query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  HeadsView<const Scalar> q;  ///< [T, Hq, D], exact
  Scalar score_scale = 1;     ///< scale·log2(e); with stages at Scores, scale
  const ScoreStage<Scalar>* score_stages = nullptr;  ///< at Scores, in order
  Index score_stage_count = 0;
  const Scalar* sinks = nullptr;  ///< optional [Hq]: logits that the softmax counts beside the keys
  const AttendSequence<Scalar>* sequences = nullptr;
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
  Index weight = 0;  ///< pairs of query and visible key, about
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

/// attend's memory: the list of tiles and, for each thread, one tile. Laid out by the arena, or
/// only counted.
template <class Scalar>
struct AttendScratch {
  AttendItem* items = nullptr;
  std::byte* memory = nullptr;
  Index thread_bytes = 0;
  Index rows = 0;  ///< of the largest tile

  AttendScratch() = default;
  AttendScratch(detail::Arena& arena, const AttendLimits& limits) {
    const Index group = limits.query_heads / limits.kv_heads;
    const Index most =
        std::min(tokens_of_rows(attend_rows, group), std::max(limits.tokens, Index{1}));
    rows = detail::round_up(most * group, panel_rows);
    items = arena.take<AttendItem>(limits.tokens / tokens_of_rows(attend_least_rows, group) +
                                   limits.sequences);
    detail::Arena one;
    SoftmaxPart<Scalar> parts[2];
    AttendTile<Scalar> tile;
    tile.layout = {limits.key_dim, limits.value_dim};
    take(one, tile, parts);
    thread_bytes = one.used();
    memory = arena.take<std::byte>(
        detail::checked_product(thread_bytes, limits.threads, "attend scratch"));
  }

  /// Lays out the tile of one thread; tile.layout is set.
  void take(detail::Arena& arena, AttendTile<Scalar>& tile, SoftmaxPart<Scalar> (&parts)[2]) const {
    tile.take(arena, rows);
    for (SoftmaxPart<Scalar>& part : parts) part.take(arena, rows, tile.layout.value_channels());
  }
};

/// The bytes that AttendScratch takes from an arena: linear in tokens, sequences and threads.
template <class Scalar>
Index attend_scratch_bytes(const AttendLimits& limits) {
  detail::Arena arena;
  AttendScratch<Scalar>(arena, limits);
  return arena.used();
}

/// Cuts the sequences into tiles, heaviest first; returns how many. The cut depends on tokens and
/// threads; no bit of the result does.
template <class Scalar>
Index list_items(const AttendArguments<Scalar>& call, Index threads, AttendItem* items) {
  constexpr Index items_per_thread = 4;
  Index tokens = 0, count = 0;
  for (Index s = 0; s < call.sequence_count; ++s) tokens += call.sequences[s].tokens;
  const Index share =
      threads > 1 ? tokens * call.query_heads / (threads * items_per_thread) : attend_rows;
  const Index step = tokens_of_rows(std::clamp(share, attend_least_rows, attend_rows),
                                    call.query_heads / call.kv_heads);
  for (Index s = 0; s < call.sequence_count; ++s) {
    const AttendSequence<Scalar>& sequence = call.sequences[s];
    for (Index t = 0; t < sequence.tokens; t += step) {
      const Index here = std::min(step, sequence.tokens - t), middle = t + here / 2;
      items[count++] = {s, t, here,
                        here * (sequence.bounds.end(middle) - sequence.bounds.begin(middle))};
    }
  }
  if (threads > 1)
    std::sort(items, items + count,
              [](const AttendItem& a, const AttendItem& b) { return a.weight > b.weight; });
  return count;
}

/// tile.q and tile.keys of an item's rows; fills the last group up.
template <class Scalar>
void read_queries(const AttendArguments<Scalar>& call, const AttendItem& item,
                  AttendTile<Scalar>& tile) {
  const AttendSequence<Scalar>& sequence = call.sequences[item.sequence];
  const Index group = call.query_heads / call.kv_heads, rows = item.tokens * group,
              dim = call.key_dim;
  const Packet<Scalar> scale = packet::broadcast<Scalar>(call.score_scale);
  constexpr Index rows_ahead = 12;  // what hides the way to memory
  const auto row = [&](Index r) {
    return call.q.row(sequence.first_token + item.first_token + r / group,
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
    tile.keys[r] = {sequence.bounds.begin(token), sequence.bounds.end(token)};
  }
  tile.groups = detail::divide_up(rows, panel_rows);
  std::fill(to, tile.q + tile.groups * panel_rows * dim, Scalar(0));
  std::fill(tile.keys + rows, tile.keys + tile.groups * panel_rows, tile.keys[rows - 1]);
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
void record_partial(const PartialAttention<Scalar>& partial, Index token, Index first_head,
                    Index group, Index stride, const Scalar* maximum, const Scalar* sum,
                    const Scalar* rows) {
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
template <class Scalar>
void look_ahead(const AttendArguments<Scalar>& call, const AttendItem& item,
                AttendTile<Scalar>& tile) {
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

/// One tile of queries against all the keys it sees: restart segments in ascending order, merged,
/// then the epilogue.
template <class Scalar>
void attend_item(const AttendArguments<Scalar>& call, const AttendItem& item, Index kv_head,
                 const AttendScratch<Scalar>& scratch, Index thread) {
  const AttendSequence<Scalar>& sequence = call.sequences[item.sequence];
  detail::Arena arena(scratch.memory + thread * scratch.thread_bytes);
  AttendTile<Scalar> tile;
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
  tile.tokens = item.tokens;
  tile.group_heads = call.query_heads / call.kv_heads;
  tile.bounds = sequence.bounds;
  read_queries(call, item, tile);
  look_ahead(call, item, tile);

  const SoftmaxPart<Scalar>& total = parts[0];
  const Index rows = tile.groups * panel_rows, stride = tile.layout.value_channels();
  const Index begin = tile.keys[0].begin, end = tile.keys[rows - 1].end;
  if (begin >= end) {
    std::fill(total.maximum, total.maximum + rows, minus_infinity<Scalar>);
    std::fill(total.sum, total.sum + rows, Scalar(0));
  }
  for (Index first = begin; first < end; first = (first / restart_keys + 1) * restart_keys) {
    const Index last = std::min((first / restart_keys + 1) * restart_keys, end);
    attend_segment(tile, first, last, parts[first != begin]);
    if (first != begin) merge(total, parts[1], rows, stride);
  }
  const Index group = call.query_heads / call.kv_heads;
  for (Index t = 0; t < item.tokens && !call.partial.empty(); ++t)
    record_partial(call.partial, sequence.first_token + item.first_token + t, kv_head * group,
                   group, stride, total.maximum + t * group, total.sum + t * group,
                   total.output + t * group * stride);
  for (Index t = 0; t < item.tokens && call.partial.empty(); ++t)
    finish_token(call, sequence.first_token + item.first_token + t, kv_head * group, group, stride,
                 total.maximum + t * group, total.sum + t * group,
                 total.output + t * group * stride);
}

/// Multiply-adds of a call, about.
template <class Scalar>
double attend_work(const AttendArguments<Scalar>& call) {
  double pairs = 0;
  for (Index s = 0; s < call.sequence_count; ++s) {
    const AttendSequence<Scalar>& sequence = call.sequences[s];
    const Index middle = sequence.tokens / 2;
    pairs += static_cast<double>(sequence.tokens) *
             static_cast<double>(sequence.bounds.end(middle) - sequence.bounds.begin(middle));
  }
  return pairs * static_cast<double>(call.query_heads * (call.key_dim + call.value_dim));
}

/// Runs the call on at most `threads` threads; scratch was laid out for at least as many of
/// everything.
template <class Scalar>
void attend(const AttendArguments<Scalar>& call, const AttendScratch<Scalar>& scratch,
            Index threads) {
  const Index team = threads_for(threads, attend_work(call));
  const Index tiles = list_items(call, team, scratch.items);
  parallel_for(team, tiles * call.kv_heads, [&](Index item, Index thread) {
    attend_item(call, scratch.items[item / call.kv_heads], item % call.kv_heads, scratch, thread);
  });
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
