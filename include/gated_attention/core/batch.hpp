// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "gated_attention/core/view.hpp"

namespace gated_attention {

/// One sequence's view of a tensor over its scores, [Hq or 1, T or 1, S]: element (h, t, s) at
/// data[h·head_stride + t·token_stride + s]; a stride of 0 is one row for all.
template <class T>
struct ScoreView {
  T* data = nullptr;
  Index heads = 0;   ///< Hq or 1
  Index tokens = 0;  ///< T or 1
  Index keys = 0;    ///< S
  Index head_stride = 0;
  Index token_stride = 0;

  constexpr ScoreView() = default;
  constexpr ScoreView(T* from, Index head_count, Index token_count, Index key_count)
      : data(from),
        heads(head_count),
        tokens(token_count),
        keys(key_count),
        head_stride(head_count == 1 ? 0 : token_count * key_count),
        token_stride(token_count == 1 ? 0 : key_count) {}
  constexpr ScoreView(T* from, Index head_count, Index token_count, Index key_count, Index stride_of_heads,
                      Index stride_of_tokens)
      : data(from),
        heads(head_count),
        tokens(token_count),
        keys(key_count),
        head_stride(stride_of_heads),
        token_stride(stride_of_tokens) {}

  constexpr T* row(Index head, Index token) const { return data + head * head_stride + token * token_stride; }
};

/// What a call reads: the rows of whole sequences, or of what each sequence gets to a cache, back to back.
template <class Scalar>
struct Batch {
  MatrixView<const Scalar> x = {};         ///< [T, E], the pre-normed hidden states
  std::span<const Index> lengths = {};     ///< tokens of each sequence, summing to T, zeros allowed; empty: one sequence
  std::span<const Index> positions = {};   ///< of each row, for Rope; empty: 0, 1, … in each sequence, or on from a cache
  MatrixView<const Scalar> context = {};   ///< [S, context_dim], cross-attention: where keys and values come from
  std::span<const Index> context_lengths = {};    ///< tokens of each sequence's context; empty: one sequence
  std::span<const Index> context_positions = {};  ///< of each row of the context, for Rope; empty: 0, 1, … in each
  std::span<const Index> prefixes = {};    ///< PrefixCausal: keys that every query of a sequence sees, one per sequence
  std::span<const ScoreView<const Scalar>> score_bias = {};  ///< ScoreBias: one view per sequence
  std::span<const ScoreView<const bool>> boolean_mask = {};  ///< BooleanMask: one view per sequence
};

/// Where the scores of the gates go: for each position those of the last gate written there, after its activation,
/// [T, heads, width]; heads is 1 for SharedHeads and HeadMean, width is 1 for Headwise. Empty: not wanted.
template <class Scalar>
struct GateScores {
  HeadsView<Scalar> query = {};
  HeadsView<Scalar> key = {};
  HeadsView<Scalar> value = {};
  HeadsView<Scalar> sdpa = {};
  HeadsView<Scalar> output = {};  ///< [T, 1, E]
};

/// What a call can give beside y; an empty view is not wanted and costs nothing.
template <class Scalar>
struct Results {
  HeadsView<Scalar> attention = {};     ///< [T, Hq, Dv], the SDPA output before any stage at Sdpa
  MatrixView<Scalar> log_sum_exp = {};  ///< [T, Hq], ln Σ exp(score) over the keys (no sink); −∞ where none is seen
  MatrixView<Scalar> first_token_attention = {};  ///< [T, Hq], the probability of each sequence's first token; wants
                                                  ///< log_sum_exp beside it
  GateScores<Scalar> gate_scores = {};
};

/// What attention over some of the keys leaves of its rows, for `merge`:
///
///   maximum[t, h] = max_s s[s]    sum[t, h] = Σ_s 2^(s[s] − maximum)    output[t, h, :] = Σ_s 2^(s[s] − maximum)·v[s, :]
///
/// Scores are in units of log2: a row's log-sum-exp is ln 2·maximum + ln sum. Where no key was seen, maximum is −∞ and sum
/// and output are 0.
template <class Scalar>
struct PartialAttention {
  MatrixView<Scalar> maximum;  ///< [T, Hq]
  MatrixView<Scalar> sum;      ///< [T, Hq]
  HeadsView<Scalar> output;    ///< [T, Hq, Dv]

  bool empty() const { return output.empty(); }
};

/// How large a workspace is to be.
struct Limits {
  Index tokens = 0;     ///< of a whole batch
  Index sequences = 1;  ///< in a batch
  Index threads = 0;    ///< 0: what OpenMP would give
  Index context_tokens = 0;  ///< of a batch's contexts; 0 where they are prepared beforehand
};

}  // namespace gated_attention
