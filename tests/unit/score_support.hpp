// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <type_traits>

#include "gated_attention/layer/attend.hpp"
#include "gated_attention/reference/reference.hpp"
#include "unit/own_stages.hpp"
#include "unit/reference_support.hpp"

// Attention without projections, with stages on its scores, against the reference.

namespace gated_attention::scores {

using own::Fading;
using support::at;
using support::infinity;
using support::message_of;
using support::normal_numbers;
using support::relative_error;
using support::same_bits;

template <class Scalar>
constexpr double tolerance() {
  return std::is_same_v<Scalar, float> ? 4e-6 : 1e-13;
}

template <class Wanted, class... Stages>
inline constexpr bool has = (... || std::is_same_v<Wanted, Stages>);

/// The numbers of a ragged batch: three sequences, one of more than 128 keys, one without queries and
/// one with more queries than keys.
template <class Scalar>
struct Problem {
  static constexpr Index query_heads = 4, kv_heads = 2, key_dim = 6, value_dim = 5;
  std::vector<Index> lengths = {7, 0, 9}, key_lengths = {150, 4, 6};
  std::vector<Index> prefixes = {20, 1, 3};
  std::vector<Scalar> q, k, v, sinks;
  std::vector<std::vector<Scalar>> biases;
  std::vector<std::unique_ptr<bool[]>> masks;
  std::vector<ScoreView<const Scalar>> bias_views;
  std::vector<ScoreView<const bool>> mask_views;

  explicit Problem(std::uint64_t seed = 3) {
    std::mt19937_64 engine(seed);
    q = numbers(tokens() * query_heads * key_dim, engine);
    k = numbers(keys() * kv_heads * key_dim, engine);
    v = numbers(keys() * kv_heads * value_dim, engine);
    sinks = numbers(query_heads, engine);
    // Of each sequence another kind: all extents, one row for all, one head for all.
    add_views(query_heads, 7, 150, engine);
    add_views(1, 1, 4, engine);
    add_views(1, 9, 6, engine);
    // Whole blocks of the long sequence are masked: by the bias the first 64 keys, by the mask the
    // next; and of the short one a whole row, by both.
    for (Index row = 0; row < query_heads * 7; ++row)
      for (Index s = 0; s < 64; ++s) {
        biases[0][at(row * 150 + s)] = -std::numeric_limits<Scalar>::infinity();
        masks[0][at(row * 150 + 64 + s)] = false;
      }
    for (Index s = 0; s < 6; ++s) {
      biases[2][at(5 * 6 + s)] = -std::numeric_limits<Scalar>::infinity();
      masks[2][at(5 * 6 + s)] = false;
    }
  }

  static Index sum(const std::vector<Index>& lengths) {
    Index all = 0;
    for (const Index length : lengths) all += length;
    return all;
  }
  Index tokens() const { return sum(lengths); }
  Index keys() const { return sum(key_lengths); }

  static std::vector<Scalar> numbers(Index count, std::mt19937_64& engine) {
    return normal_numbers<Scalar>(count, engine, 1.5);
  }

  void add_views(Index heads, Index rows, Index count, std::mt19937_64& engine) {
    std::uniform_real_distribution<double> uniform;
    const Index all = heads * rows * count;
    biases.push_back(numbers(all, engine));
    masks.push_back(std::make_unique<bool[]>(at(all)));
    for (Index i = 0; i < all; ++i) {
      masks.back()[at(i)] = uniform(engine) < 0.8;
      if (uniform(engine) < 0.2) biases.back()[at(i)] = -std::numeric_limits<Scalar>::infinity();
    }
    bias_views.push_back({biases.back().data(), heads, rows, count});
    mask_views.push_back({masks.back().get(), heads, rows, count});
  }

  /// What a layer of these stages is called with.
  template <class... Stages>
  AttendBatch<Scalar> batch() const {
    AttendBatch<Scalar> batch;
    batch.q = {q.data(), tokens(), query_heads, key_dim};
    batch.k = {k.data(), keys(), kv_heads, key_dim};
    batch.v = {v.data(), keys(), kv_heads, value_dim};
    batch.lengths = lengths;
    batch.key_lengths = key_lengths;
    if (has<PrefixCausal, Stages...>) batch.prefixes = prefixes;
    if (has<LearnedSink, Stages...>) batch.sinks = sinks;
    if (has<ScoreBias, Stages...>) batch.score_bias = bias_views;
    if (has<BooleanMask, Stages...>) batch.boolean_mask = mask_views;
    return batch;
  }

  static constexpr AttendShape shape() { return {query_heads, kv_heads, key_dim, value_dim}; }
};

/// The scoring of a list of stages, by the reference's own reading.
template <class... Stages>
reference::Scoring scoring_of(const AttendShape& shape, const Stages&... stages) {
  reference::Description layer;
  layer.shape = {.query_heads = shape.query_heads, .kv_heads = shape.kv_heads};
  layer.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  (reference::Describe{layer}(stages), ...);
  return {.visible = layer.visible, .scale = layer.scale, .stages = layer.score_stages};
}

template <class Scalar>
reference::Tensor rows_of(const HeadsView<const Scalar>& view, Index first, Index count) {
  reference::Tensor rows(count, view.heads(), view.width());
  for (Index t = 0; t < count; ++t)
    for (Index h = 0; h < view.heads(); ++h)
      for (Index c = 0; c < view.width(); ++c)
        rows(t, h, c) = static_cast<double>(view(first + t, h, c));
  return rows;
}

template <class Scalar>
reference::ScoreInputs inputs_of(const AttendBatch<Scalar>& batch, std::size_t sequence) {
  reference::ScoreInputs inputs;
  if (!batch.prefixes.empty()) inputs.prefix = batch.prefixes[sequence];
  if (!batch.score_bias.empty()) inputs.bias = reference::tensor_of(batch.score_bias[sequence]);
  if (!batch.boolean_mask.empty()) inputs.mask = reference::tensor_of(batch.boolean_mask[sequence]);
  return inputs;
}

/// What a call gives, [T, Hq, Dv] and [T, Hq].
template <class Scalar>
struct Given {
  std::vector<Scalar> out, lse;
};

template <class Layer, class Scalar = typename Layer::Scalar>
Given<Scalar> run(const Layer& layer, const AttendBatch<Scalar>& batch, Index threads = 1) {
  const Index tokens = batch.q.tokens(), heads = layer.shape().query_heads;
  constexpr Scalar unwritten = std::numeric_limits<Scalar>::quiet_NaN();
  Given<Scalar> given{std::vector<Scalar>(at(tokens * heads * batch.v.width()), unwritten),
                      std::vector<Scalar>(at(tokens * heads), unwritten)};
  AttendWorkspace workspace(
      layer, {.tokens = tokens,
              .keys = batch.k.tokens(),
              .sequences = std::max<Index>(1, static_cast<Index>(batch.lengths.size())),
              .threads = threads});
  layer(batch, workspace, {given.out.data(), tokens, heads, batch.v.width()},
        {.log_sum_exp = {given.lse.data(), tokens, heads}});
  return given;
}

/// A layer whose type is forgotten.
template <class Scalar>
using Call = std::function<Given<Scalar>(const AttendBatch<Scalar>&, Index threads)>;

/// The reference's answer to a batch, all sequences back to back.
template <class Scalar>
reference::Attention answer(const reference::Scoring& scoring, const AttendBatch<Scalar>& batch) {
  reference::Attention all;
  Index first = 0, first_key = 0;
  std::vector<Index> lengths(batch.lengths.begin(), batch.lengths.end());
  std::vector<Index> key_lengths(batch.key_lengths.begin(), batch.key_lengths.end());
  if (lengths.empty()) lengths = {batch.q.tokens()};
  if (key_lengths.empty()) key_lengths = {batch.k.tokens()};
  const auto append = [](reference::Tensor& to, const reference::Tensor& part) {
    to.values.insert(to.values.end(), part.values.begin(), part.values.end());
  };
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const reference::Attention part = reference::attend(
        rows_of(batch.q, first, lengths[i]), rows_of(batch.k, first_key, key_lengths[i]),
        rows_of(batch.v, first_key, key_lengths[i]), scoring, inputs_of(batch, i));
    append(all.output, part.output);
    append(all.log_sum_exp, part.log_sum_exp);
    first += lengths[i];
    first_key += key_lengths[i];
  }
  return all;
}

/// Whether a row sees one of the keys.
inline bool sees(const reference::Scoring& scoring, const reference::ScoreInputs& inputs,
                 Index head, Index token, Index shift, const std::set<Index>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](Index key) {
    return support::sees(scoring, inputs, head, token, token + shift, key);
  });
}

/// Not-a-number and infinities in the rows of some keys change no bit of the rows that do not see
/// them. Returns how many rows those are.
template <class Scalar>
Index expect_hidden_rows_unread(const Call<Scalar>& call, const reference::Scoring& scoring,
                                const Problem<Scalar>& problem, const AttendBatch<Scalar>& batch,
                                const Given<Scalar>& clean, const std::set<Index>& poisoned) {
  std::vector<Scalar> k = problem.k, v = problem.v;
  const Scalar bad[] = {std::numeric_limits<Scalar>::quiet_NaN(),
                        std::numeric_limits<Scalar>::infinity(),
                        -std::numeric_limits<Scalar>::infinity()};
  const Index heads = problem.query_heads, width = problem.value_dim;
  Index first_key = 0;
  for (const Index keys : problem.key_lengths) {
    for (const Index key : poisoned) {
      if (key >= keys) continue;
      const Index key_row = (first_key + key) * problem.kv_heads;
      for (Index i = 0; i < problem.kv_heads * problem.key_dim; ++i)
        k[at(key_row * problem.key_dim + i)] = bad[(key + i) % 3];
      for (Index i = 0; i < problem.kv_heads * width; ++i)
        v[at(key_row * width + i)] = bad[(key + i) % 3];
    }
    first_key += keys;
  }
  AttendBatch<Scalar> other = batch;
  other.k = {k.data(), problem.keys(), problem.kv_heads, problem.key_dim};
  other.v = {v.data(), problem.keys(), problem.kv_heads, width};
  const Given<Scalar> given = call(other, 1);
  Index first = 0, unread = 0;
  for (std::size_t i = 0; i < problem.lengths.size(); ++i) {
    const Index length = problem.lengths[i], keys = problem.key_lengths[i];
    const reference::ScoreInputs inputs = inputs_of(batch, i);
    std::set<Index> present;
    for (const Index key : poisoned)
      if (key < keys) present.insert(key);
    for (Index t = 0; t < length; ++t)
      for (Index h = 0; h < heads; ++h) {
        const Index shift = scoring.visible.top_left ? 0 : keys - length;
        if (sees(scoring, inputs, h, t, shift, present)) continue;
        if (!present.empty()) ++unread;
        const Index row = (first + t) * heads + h;
        EXPECT_TRUE(same_bits(&given.out[at(row * width)], &clean.out[at(row * width)], width))
            << "row " << t << " of sequence " << i << ", head " << h;
        EXPECT_TRUE(same_bits(&given.lse[at(row)], &clean.lse[at(row)], 1));
        for (Index c = 0; c < width; ++c)
          EXPECT_TRUE(std::isfinite(given.out[at(row * width + c)]));
      }
    first += length;
  }
  return unread;
}

/// A layer against the reference, rows that see nothing as exact zeros, and hidden rows of k and v
/// unread.
template <class Scalar>
void check_call(const Call<Scalar>& call, const reference::Scoring& scoring,
                const Problem<Scalar>& problem, const AttendBatch<Scalar>& batch, bool hides_keys) {
  const Given<Scalar> given = call(batch, 1);
  const reference::Attention expected = answer(scoring, batch);
  EXPECT_LE(relative_error(given.out, expected.output.values), tolerance<Scalar>());
  EXPECT_LE(relative_error(given.lse, expected.log_sum_exp.values), tolerance<Scalar>());
  for (std::size_t row = 0; row < given.lse.size(); ++row)
    if (expected.log_sum_exp.values[row] == -infinity) {
      EXPECT_EQ(given.lse[row], -std::numeric_limits<Scalar>::infinity());
      for (Index c = 0; c < problem.value_dim; ++c)
        EXPECT_EQ(given.out[row * at(problem.value_dim) + at(c)], Scalar(0));
    }
  const Given<Scalar> on_threads = call(batch, 2);
  EXPECT_TRUE(
      same_bits(given.out.data(), on_threads.out.data(), static_cast<Index>(given.out.size())));
  Index unread = 0;
  for (const std::set<Index>& poisoned :
       {std::set<Index>{5}, std::set<Index>{0, 149}, std::set<Index>{70, 145}})
    unread += expect_hidden_rows_unread(call, scoring, problem, batch, given, poisoned);
  EXPECT_TRUE(unread > 0 || !hides_keys);
}

template <class Scalar, class... Stages>
void check(const Stages&... stages) {
  const Problem<Scalar> problem;
  const Attend<Scalar, Stages...> layer(problem.shape(), stages...);
  const AttendBatch<Scalar> batch = problem.template batch<Stages...>();
  reference::Scoring scoring = scoring_of(problem.shape(), stages...);
  scoring.sinks.assign(batch.sinks.begin(), batch.sinks.end());
  constexpr bool hides_keys =
      !has<Bidirectional, Stages...> || has<ScoreBias, Stages...> || has<BooleanMask, Stages...>;
  check_call<Scalar>(
      [&](const AttendBatch<Scalar>& b, Index threads) { return run(layer, b, threads); }, scoring,
      problem, batch, hides_keys);
}

}  // namespace gated_attention::scores
