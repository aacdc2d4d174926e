// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gated_attention/kernel/attend.hpp"
#include "gated_attention/policy/score_functions.hpp"

// The attention kernel on sequences of numbers, and its formula in double.

namespace gated_attention::attend_cases {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

inline std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

inline KeyBounds causal(Index tokens, Index keys) {
  return {.keys = keys, .shift = keys - tokens, .after = 0};
}

/// One sequence: its numbers as rows, k [S, Hkv, D], v [S, Hkv, Dv], q [T, Hq, D]; of use or empty:
/// kept_q [T, Hq, D] for the kept keys, bias [Hq, T, S] on the scores.
struct Case {
  Index query_heads = 1, kv_heads = 1, key_dim = 1, value_dim = 1, tokens = 0;
  KeyBounds bounds;
  std::vector<double> q, k, v, kept_q, bias;

  Case(Index hq, Index hkv, Index d, Index dv, Index t, const KeyBounds& b)
      : query_heads(hq), kv_heads(hkv), key_dim(d), value_dim(dv), tokens(t), bounds(b) {
    q.resize(at(t * hq * d));
    k.resize(at(b.keys * hkv * d));
    v.resize(at(b.keys * hkv * dv));
  }

  /// Numbers that float holds exactly, so that float and double see the same inputs.
  Case& random(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (auto* to : {&q, &k, &v, &kept_q, &bias})
      for (double& x : *to) x = static_cast<double>(normal(generator));
    return *this;
  }

  double& bias_at(Index head, Index token, Index key) {
    return bias[at((head * tokens + token) * bounds.keys + key)];
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(key_dim)); }
  std::string name() const {
    return std::to_string(query_heads) + "/" + std::to_string(kv_heads) + "/" +
           std::to_string(key_dim) + "/" + std::to_string(value_dim) +
           " T=" + std::to_string(tokens) + " S=" + std::to_string(bounds.keys) +
           " shift=" + std::to_string(bounds.shift) + " before=" + std::to_string(bounds.before) +
           " after=" + std::to_string(bounds.after) + " prefix=" + std::to_string(bounds.prefix) +
           " kept=" + std::to_string(bounds.kept);
  }
};

/// Is key s one of the kept keys to query t, from before its window?
inline bool is_kept(const KeyBounds& b, Index t, Index s) {
  return s < b.kept && b.before >= 0 && s < t + b.shift - b.before;
}

/// Does query t see key s? From the words of KeyBounds, without its functions.
inline bool sees(const KeyBounds& b, Index t, Index s) {
  const Index distance = s - (t + b.shift);
  const bool behind = b.before < 0 || -distance <= b.before;
  return is_kept(b, t, s) || (behind && (b.after < 0 || distance <= b.after || s < b.prefix));
}

/// softmax(scale·q·kᵀ + bias)·v in double, and the log-sum-exp.
inline void naive(const Case& c, std::vector<double>& out, std::vector<double>& lse) {
  out.assign(at(c.tokens * c.query_heads * c.value_dim), 0);
  lse.assign(at(c.tokens * c.query_heads), -infinity);
  std::vector<double> score(at(c.bounds.keys));
  for (Index t = 0; t < c.tokens; ++t)
    for (Index h = 0; h < c.query_heads; ++h) {
      const Index kv = h / (c.query_heads / c.kv_heads);
      double maximum = -infinity, sum = 0;
      for (Index s = 0; s < c.bounds.keys; ++s) {
        score[at(s)] = -infinity;
        if (!sees(c.bounds, t, s)) continue;
        const bool kept = is_kept(c.bounds, t, s) && !c.kept_q.empty();
        double x = 0;
        for (Index d = 0; d < c.key_dim; ++d)
          x += (kept ? c.kept_q : c.q)[at((t * c.query_heads + h) * c.key_dim + d)] *
               c.k[at((s * c.kv_heads + kv) * c.key_dim + d)];
        x *= c.scale();
        if (!c.bias.empty()) {
          const double bias = c.bias[at((h * c.tokens + t) * c.bounds.keys + s)];
          x = bias == -infinity ? bias : x + bias;
        }
        score[at(s)] = x;
        maximum = std::max(maximum, x);
      }
      double* row = &out[at((t * c.query_heads + h) * c.value_dim)];
      for (Index s = 0; s < c.bounds.keys; ++s) {
        if (score[at(s)] == -infinity) continue;
        const double p = std::exp(score[at(s)] - maximum);
        sum += p;
        for (Index d = 0; d < c.value_dim; ++d)
          row[d] += p * c.v[at((s * c.kv_heads + kv) * c.value_dim + d)];
      }
      if (sum == 0) continue;
      for (Index d = 0; d < c.value_dim; ++d) row[d] /= sum;
      lse[at(t * c.query_heads + h)] = maximum + std::log(sum);
    }
}

/// How a call is made; none of it may change a bit of the result.
struct How {
  Index threads = 1;
  double scratch = nan;    ///< what the scratch holds before
  double unwritten = nan;  ///< what lanes without a key hold
};

template <class Scalar>
struct Result {
  std::vector<Scalar> out, attention, lse;
};

/// Memory for the blocks of a sequence, every number in it `unwritten`, scales too.
template <class Scalar, class Stored>
detail::AlignedBytes unwritten_blocks(Index bytes, double unwritten) {
  detail::AlignedBytes memory(std::max(bytes, Index{1}));
  const auto fill = [&](auto number) {
    using Number = decltype(number);
    auto* const numbers = reinterpret_cast<Number*>(memory.data());
    std::fill_n(numbers, bytes / static_cast<Index>(sizeof(Number)), number);
  };
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled)
    fill(static_cast<Scalar>(unwritten));  // what the keys then are matters less than their scales
  else
    fill(detail::narrowed<Stored>(static_cast<Scalar>(unwritten)));
  return memory;
}

/// Writes a sequence's keys and values to its blocks.
template <class Scalar, class Stored>
void write_blocks(const Case& c, const KeyValueLayout<Scalar, Stored>& layout,
                  const KeyValueSequence& blocks) {
  const std::vector<Scalar> k(c.k.begin(), c.k.end()), v(c.v.begin(), c.v.end());
  for (Index h = 0; h < c.kv_heads; ++h)
    for (Index s = 0; s < c.bounds.keys; s += block_keys) {
      const Index n = std::min(block_keys, c.bounds.keys - s);
      Stored* const block = blocks.block<Stored>(h, s / block_keys);
      kernel::write_keys(block, layout, 0, n, &k[at((s * c.kv_heads + h) * c.key_dim)],
                         c.kv_heads * c.key_dim);
      kernel::write_values(block, layout, 0, n, &v[at((s * c.kv_heads + h) * c.value_dim)],
                           c.kv_heads * c.value_dim);
    }
}

/// Appends rows with `gap` numbers behind each.
template <class Scalar>
void append_rows(std::vector<Scalar>& to, const std::vector<double>& rows, Index width, Index gap,
                 double between) {
  for (std::size_t row = 0; row < rows.size() / at(width); ++row) {
    for (Index d = 0; d < width; ++d)
      to.push_back(static_cast<Scalar>(rows[row * at(width) + at(d)]));
    to.insert(to.end(), at(gap), static_cast<Scalar>(between));
  }
}

/// Runs a call whose results are set up, on scratch that holds how.scratch.
template <class Stored, class Scalar>
void attend_on_scratch(const kernel::AttendArguments<Scalar>& call, Index tokens, const How& how) {
  const kernel::AttendLimits limits{call.query_heads, call.kv_heads, call.key_dim,
                                    call.value_dim,   tokens,        call.sequence_count,
                                    how.threads};
  const Index bytes = kernel::attend_scratch_bytes<Scalar>(limits);
  detail::AlignedBytes scratch_memory(bytes);
  auto* numbers = reinterpret_cast<Scalar*>(scratch_memory.data());
  std::fill(numbers, numbers + bytes / static_cast<Index>(sizeof(Scalar)),
            static_cast<Scalar>(how.scratch));
  detail::Arena arena(scratch_memory.data());
  const kernel::AttendScratch<Scalar> scratch(arena, limits);
  kernel::attend<Stored>(call, scratch, how.threads);
}

/// Packs the sequences' keys and values, as Stored, and runs them as one batch; the q rows have gaps
/// of NaN, the output rows gaps that must stay.
template <class Scalar, class Stored = Scalar>
Result<Scalar> run(const std::vector<const Case*>& batch, const How& how = {},
                   const std::vector<RowStage<Scalar>>& stages = {},
                   const std::vector<Scalar>& logits = {}, Index logits_stride = 0) {
  const Case& first = *batch[0];
  constexpr Index gap = 3;
  const Index q_width = first.key_dim + gap, out_width = first.value_dim + gap,
              hq = first.query_heads;
  const KeyValueLayout<Scalar, Stored> layout{first.key_dim, first.value_dim};
  Index tokens = 0;
  std::vector<Scalar> q, kept_q;
  std::vector<detail::AlignedBytes> memory;
  std::vector<kernel::AttendSequence> sequences;
  std::vector<std::vector<Scalar>> biases;
  std::vector<ScoreView<const Scalar>> bias_views;
  for (const Case* c : batch) {
    append_rows(q, c->q, c->key_dim, gap, nan);
    append_rows(kept_q, c->kept_q, c->key_dim, gap, nan);
    const Index blocks = detail::divide_up(c->bounds.keys, block_keys), block = layout.bytes();
    memory.push_back(unwritten_blocks<Scalar, Stored>(c->kv_heads * blocks * block, how.unwritten));
    const KeyValueSequence kv{
        .base = memory.back().data(), .block_stride = block, .head_stride = blocks * block};
    write_blocks(*c, layout, kv);
    sequences.push_back(
        {.first_token = tokens, .tokens = c->tokens, .bounds = c->bounds, .blocks = kv});
    if (!c->bias.empty()) {
      biases.emplace_back(c->bias.begin(), c->bias.end());
      bias_views.push_back({biases.back().data(), hq, c->tokens, c->bounds.keys});
    }
    tokens += c->tokens;
  }

  const Scalar kept = Scalar(-77);
  std::vector<Scalar> out(at(tokens * hq * out_width + 1), kept), attention = out;
  Result<Scalar> result;
  result.lse.assign(at(tokens * hq + 1), kept);
  kernel::AttendArguments<Scalar> call;
  call.query_heads = hq;
  call.kv_heads = first.kv_heads;
  call.key_dim = first.key_dim;
  call.value_dim = first.value_dim;
  q.push_back(Scalar(0));
  call.q = {q.data(), tokens, hq, first.key_dim, hq * q_width, q_width};
  if (!kept_q.empty())
    call.kept_q = {kept_q.data(), tokens, hq, first.key_dim, hq * q_width, q_width};
  ScoreStage<Scalar> bias_stage{.run = &kernel::run_score_bias<Scalar>,
                                .hides = &kernel::score_bias_hides<Scalar>,
                                .masks = true,
                                .state = bias_views.data()};
  call.score_stages = &bias_stage;
  call.score_stage_count = bias_views.empty() ? 0 : 1;
  call.score_scale = kernel::score_scale<Scalar>(first.scale(), call.score_stage_count);
  call.sequences = sequences.data();
  call.sequence_count = static_cast<Index>(sequences.size());
  call.stages = stages.data();
  call.stage_count = static_cast<Index>(stages.size());
  call.gate_logits = logits.empty() ? nullptr : logits.data();
  call.gate_token_stride = logits_stride;
  call.out = {out.data(), tokens, hq, first.value_dim, hq * out_width, out_width};
  call.attention = {attention.data(), tokens, hq, first.value_dim, hq * out_width, out_width};
  call.log_sum_exp = {result.lse.data(), tokens, hq};
  attend_on_scratch<Stored>(call, tokens, how);

  for (Index row = 0; row <= tokens * hq; ++row)
    for (Index d = 0; d < out_width && at(row * out_width + d) < out.size(); ++d) {
      const std::size_t i = at(row * out_width + d);
      if (row < tokens * hq && d < first.value_dim) {
        result.out.push_back(out[i]);
        result.attention.push_back(attention[i]);
      } else {
        EXPECT_EQ(out[i], kept) << "written past a row of the output";
        EXPECT_EQ(attention[i], kept);
      }
    }
  EXPECT_EQ(result.lse.back(), kept);
  result.lse.pop_back();
  return result;
}

template <class Scalar>
bool same_bits(const std::vector<Scalar>& a, const std::vector<Scalar>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Scalar)) == 0);
}

template <class Scalar>
bool same_bits(const Result<Scalar>& a, const Result<Scalar>& b) {
  return same_bits(a.out, b.out) && same_bits(a.attention, b.attention) && same_bits(a.lse, b.lse);
}

template <class Scalar>
std::vector<Scalar> part(const std::vector<Scalar>& all, Index from, Index count) {
  return {all.begin() + from, all.begin() + from + count};
}

/// Rows of the tokens [from, from + count).
template <class Scalar>
Result<Scalar> tokens_of(const Result<Scalar>& all, const Case& c, Index from, Index count) {
  const Index hq = c.query_heads, row = hq * c.value_dim;
  return {part(all.out, from * row, count * row), part(all.attention, from * row, count * row),
          part(all.lse, from * hq, count * hq)};
}

/// The same keys and values, the queries [from, from + count) alone; of a case without bias.
inline Case queries_of(const Case& c, Index from, Index count) {
  Case some = c;
  some.tokens = count;
  some.bounds.shift += from;
  const Index row = c.query_heads * c.key_dim;
  some.q = part(c.q, from * row, count * row);
  if (!c.kept_q.empty()) some.kept_q = part(c.kept_q, from * row, count * row);
  return some;
}

/// Every mask of numbers over T queries and S keys.
inline std::vector<KeyBounds> masks(Index t, Index s) {
  return {causal(t, s),
          {.keys = s},
          {.keys = s, .shift = 0, .after = 0},
          {.keys = s, .shift = s - t - 3, .after = 0},
          {.keys = s, .shift = s - t + 2, .after = 0},
          {.keys = s, .shift = s - t, .before = 0, .after = 0},
          {.keys = s, .shift = s - t, .before = 6, .after = 0},
          {.keys = s, .shift = s - t, .before = 99, .after = 0},
          {.keys = s, .shift = s - t, .before = 5, .after = 3},
          {.keys = s, .shift = s - t + 40, .before = 5, .after = 70},
          {.keys = s, .shift = s - t, .before = 30},
          {.keys = s, .shift = s - t, .after = 0, .prefix = s / 2},
          {.keys = s, .shift = s - t, .before = 0, .after = 0, .kept = 1},
          {.keys = s, .shift = s - t, .before = 20, .after = 0, .kept = 5},
          {.keys = s, .shift = s - t, .before = 3, .after = 0, .kept = 70},
          {.keys = s, .shift = s - t + 9, .before = 40, .after = 0, .kept = 64}};
}

/// Puts `value` into key s and its value row and expects that no row that does not see s changes,
/// and that every row that does becomes NaN where the value is.
template <class Scalar, class Stored = Scalar>
void expect_contained(const Case& clean, const Result<Scalar>& expected, Index s, double value) {
  Case spoiled = clean;
  const Index heads = clean.kv_heads;
  std::fill_n(&spoiled.k[at(s * heads * clean.key_dim)], heads * clean.key_dim, value);
  std::fill_n(&spoiled.v[at(s * heads * clean.value_dim)], heads * clean.value_dim, value);
  const Result<Scalar> got = run<Scalar, Stored>({&spoiled});
  for (Index t = 0; t < clean.tokens; ++t) {
    const Result<Scalar> row = tokens_of(got, clean, t, 1);
    if (!sees(clean.bounds, t, s)) {
      ASSERT_TRUE(same_bits(row, tokens_of(expected, clean, t, 1)))
          << clean.name() << ": key " << s << " = " << value << " reached token " << t;
    } else if (std::isnan(value)) {
      for (const Scalar x : row.out) ASSERT_TRUE(std::isnan(x)) << clean.name() << " token " << t;
    }
  }
}

}  // namespace gated_attention::attend_cases
