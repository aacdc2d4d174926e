// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "gated_attention/policy/activation.hpp"
#include "gated_attention/policy/rope.hpp"

// The formulas of a layer, each written once, in double and without any thought of speed.

namespace gated_attention::reference {

/// Numbers [tokens, heads, width], zero at first.
struct Tensor {
  Index tokens = 0;
  Index heads = 0;
  Index width = 0;
  std::vector<double> values;

  Tensor() = default;
  Tensor(Index token_count, Index head_count, Index head_width)
      : tokens(token_count),
        heads(head_count),
        width(head_width),
        values(static_cast<std::size_t>(token_count * head_count * head_width)) {}

  double& operator()(Index token, Index head, Index channel) {
    return values.data()[(token * heads + head) * width + channel];
  }
  double operator()(Index token, Index head, Index channel) const {
    return values.data()[(token * heads + head) * width + channel];
  }
};

inline double sigmoid(double z) {
  return 1 / (1 + std::exp(-z));
}

/// s = activation(z). A type of the user's says it itself: static double reference(double).
template <class Activation>
double activation(double z) {
  constexpr bool the_activation_is_known_in_double =
      BuiltInActivation<Activation> || ReferenceActivation<Activation>;
  static_assert(the_activation_is_known_in_double,
                "gated_attention: the reference needs your activation's value in double: give it "
                "static double reference(double z)");
  if constexpr (std::is_same_v<Activation, Sigmoid>)
    return sigmoid(z);
  else if constexpr (std::is_same_v<Activation, Silu>)
    return z * sigmoid(z);
  else if constexpr (std::is_same_v<Activation, NonSparseSigmoid>)
    return 0.5 + 0.5 * sigmoid(z);
  else if constexpr (std::is_same_v<Activation, Identity>)
    return z;
  else if constexpr (std::is_same_v<Activation, Tanh>)
    return std::tanh(z);
  else if constexpr (std::is_same_v<Activation, Softplus>)
    return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
  else if constexpr (std::is_same_v<Activation, TwiceSigmoid>)
    return 2 * sigmoid(z);
  else if constexpr (the_activation_is_known_in_double)
    return Activation::reference(z);
  else
    return 0;
}

/// y[t, h, c] = Σ_i x[t, i] · W[h·width + c, i] + b[h·width + c]      b: [heads·width], or empty
inline Tensor project(const Tensor& x, const Tensor& w, const std::vector<double>& b, Index heads,
                      Index width) {
  const Index depth = x.heads * x.width;
  Tensor y(x.tokens, heads, width);
  for (Index t = 0; t < x.tokens; ++t)
    for (Index row = 0; row < heads * width; ++row) {
      double sum = b.empty() ? 0 : b.data()[row];
      for (Index i = 0; i < depth; ++i)
        sum += x.values.data()[t * depth + i] * w.values.data()[row * depth + i];
      y.values.data()[t * heads * width + row] = sum;
    }
  return y;
}

/// y = x / √(mean(x²) + eps) ⊙ m      the mean over `group` heads together: 1, or all
///
/// m: [group·width], the multiplier itself (w or 1 + w), empty for none. Zeros stay zeros.
inline void normalize(Tensor& x, Index group, const std::vector<double>& m, double eps) {
  for (Index t = 0; t < x.tokens; ++t)
    for (Index first = 0; first < x.heads; first += group) {
      double* const row = &x(t, first, 0);
      const Index count = group * x.width;
      double squares = 0;
      for (Index i = 0; i < count; ++i) squares += row[i] * row[i];
      const double mean = squares / static_cast<double>(count) + eps;
      const double factor = mean == 0 ? 0 : 1 / std::sqrt(mean);
      for (Index i = 0; i < count; ++i) row[i] *= factor * (m.empty() ? 1 : m.data()[i]);
    }
}

/// A layer's Rope with all numbers filled in.
struct Rotation {
  bool interleaved = false;
  double theta = 1e4;
  Index rotary_dim = 0;
  Index first_dim = 0;
  Index rotated_pairs = 0;
  Optional<Yarn> yarn = {};

  /// θ^(−2i/rotary_dim); with YaRN times (1 − r) + r/factor, where r rises from 0 to 1 between the
  /// pair that turns beta_fast times within the original length and the one that turns beta_slow
  /// times.
  double frequency(Index i) const {
    const double dim = static_cast<double>(rotary_dim), pair = static_cast<double>(i);
    const double plain = std::pow(theta, -2 * pair / dim);
    if (!yarn) return plain;
    const auto pair_that_turns = [&](double times) {
      return dim * std::log(yarn->original_max_position / (2 * std::numbers::pi * times)) /
             (2 * std::log(theta));
    };
    double low = pair_that_turns(yarn->beta_fast), high = pair_that_turns(yarn->beta_slow);
    if (yarn->truncate) low = std::floor(low), high = std::ceil(high);
    low = std::clamp(low, 0.0, dim - 1);
    high = std::clamp(high, 0.0, dim - 1);
    if (low == high) high += 0.001;
    const double r = std::clamp((pair - low) / (high - low), 0.0, 1.0);
    return plain * ((1 - r) + r / yarn->factor);
  }

  /// What cos and sin are multiplied by: as given; else g(mscale)/g(mscale_all_dim) where both are
  /// given and not 0; else g(1)      g(m) = 0.1·m·ln(factor) + 1, or 1 for a factor up to 1
  double attention_factor() const {
    if (!yarn) return 1;
    if (yarn->attention_factor) return *yarn->attention_factor;
    const auto g = [&](double m) {
      return yarn->factor > 1 ? 0.1 * m * std::log(yarn->factor) + 1 : 1.0;
    };
    const double mscale = yarn->mscale.value_or(0), all_dim = yarn->mscale_all_dim.value_or(0);
    return mscale != 0 && all_dim != 0 ? g(mscale) / g(all_dim) : g(1);
  }
};

/// (a, b) ← (a·cos − b·sin, b·cos + a·sin) of angle position·frequency(i)      i < rotated_pairs
inline void rotate(Tensor& x, const Rotation& rotation, const std::vector<Index>& positions) {
  const Index half = rotation.rotary_dim / 2;
  for (Index t = 0; t < x.tokens; ++t)
    for (Index i = 0; i < rotation.rotated_pairs; ++i) {
      const double angle = static_cast<double>(positions.data()[t]) * rotation.frequency(i);
      const double cosine = rotation.attention_factor() * std::cos(angle);
      const double sine = rotation.attention_factor() * std::sin(angle);
      const Index first = rotation.first_dim + (rotation.interleaved ? 2 * i : i);
      const Index second = rotation.interleaved ? first + 1 : first + half;
      for (Index h = 0; h < x.heads; ++h) {
        const double a = x(t, h, first), b = x(t, h, second);
        x(t, h, first) = a * cosine - b * sine;
        x(t, h, second) = b * cosine + a * sine;
      }
    }
}

/// Which keys a query sees, by their positions in the key sequence.
struct Visible {
  Index past = std::numeric_limits<Index>::max();    ///< keys before the query's own position
  Index future = std::numeric_limits<Index>::max();  ///< keys behind it
  bool top_left = false;  ///< query t stands at key t; else at key t + S − T, unless told otherwise
  bool prefixed = false;  ///< every query also sees the keys of its sequence's prefix
  Index kept = 0;         ///< every later query also sees so many keys from the first on
  bool in_cache = false;  ///< positions count only the keys that a query sees

  bool operator()(Index query, Index key, Index prefix = 0) const {
    if (prefixed && key < prefix) return true;
    if (is_kept(query, key)) return true;
    return key <= query ? query - key <= past : key - query <= future;
  }

  /// Whether a key is seen only because it is kept: from before the query's window.
  bool is_kept(Index query, Index key) const { return key < kept && key < query - past; }

  /// Keys between the kept ones and the window, which begins at key b = max(0, query − past): b − min(kept, b)
  Index evicted(Index query) const {
    const Index begin = std::max(query - past, Index{0});
    return begin - std::min(kept, begin);
  }
};

/// One stage on scores as plain numbers.
struct ScoreStage {
  enum class Kind { softcap, alibi, bias, boolean, function };

  Kind kind = Kind::softcap;
  double cap = 0;                   ///< softcap
  std::vector<double> slopes = {};  ///< alibi: one per query head
  /// function: the user's, of (head, position of the query, key, score)
  std::function<double(Index, Index, Index, double)> function = {};
};

/// What a sequence's call brings to its scores: [Hq or 1, T or 1, S] each, where the layer asks for
/// it. `mask` holds 1 for a key that is seen and 0 for one that is not.
struct ScoreInputs {
  Tensor bias = {};
  Tensor mask = {};
  Index prefix = 0;

  static double at(const Tensor& view, Index head, Index token, Index key) {
    return view(view.tokens == 1 ? 0 : head, view.heads == 1 ? 0 : token, key);
  }
};

/// What stands between q·k and the probabilities.
struct Scoring {
  Visible visible = {};
  double scale = 1;                     ///< multiplies q·k
  std::vector<ScoreStage> stages = {};  ///< in written order
  std::vector<double> sinks = {};       ///< one per query head, or none
  std::optional<Index> offset = {};     ///< the key that query 0 stands at, where it is told
};

/// Slopes of Press et al. 2022 for H heads: for H a power of two 2^(−8/H), its square, its cube, …;
/// else those of the next lower power, then the first, third, fifth, … of twice that power.
inline std::vector<double> alibi_slopes(Index heads) {
  Index power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (Index i = 1; i <= power; ++i)
    slopes.push_back(std::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(power)));
  for (Index i = 1; static_cast<Index>(slopes.size()) < heads; i += 2)
    slopes.push_back(std::pow(2.0, -4.0 * static_cast<double>(i) / static_cast<double>(power)));
  return slopes;
}

/// The score of one query and key after all stages; −∞ once it is −∞. `score`: scale·q·k
inline double staged_score(const Scoring& scoring, const ScoreInputs& inputs, Index head,
                           Index token, Index position, Index key, double score) {
  constexpr double masked = -std::numeric_limits<double>::infinity();
  for (const ScoreStage& stage : scoring.stages) {
    if (score == masked) return masked;
    switch (stage.kind) {
      case ScoreStage::Kind::softcap:
        score = stage.cap * std::tanh(score / stage.cap);
        break;
      case ScoreStage::Kind::alibi:
        score -= stage.slopes.data()[head] * std::abs(static_cast<double>(position - key));
        break;
      case ScoreStage::Kind::bias: {
        const double bias = ScoreInputs::at(inputs.bias, head, token, key);
        score = bias == masked ? masked : score + bias;
        break;
      }
      case ScoreStage::Kind::boolean:
        if (ScoreInputs::at(inputs.mask, head, token, key) == 0) score = masked;
        break;
      case ScoreStage::Kind::function:
        score = stage.function(head, position, key, score);
        break;
    }
  }
  return score;
}

/// The softmax attention of one sequence.
struct Attention {
  Tensor output;       ///< [T, Hq, Dv]
  Tensor log_sum_exp;  ///< [T, Hq, 1], without the sink
  Tensor first_key;    ///< [T, Hq, 1], the probability of key 0
};

/// o[t, h, :] = Σ_s p[s] v[s, g, :]      p[s] = e^score[s] / (Σ e^score + e^sink[h])      g = h / (Hq/Hkv)
///
/// over the keys s that query t sees, score = stages(scale · q[t, h, :]·k[s, g, :]). Query t stands at
/// key t + S − T, so the last query at the last key, where nothing else is said. A query that sees no
/// key gives 0 and a log-sum-exp of −∞; what is not seen is not read. At in-cache positions the query meets
/// kept keys as kept_q[t, h, :] and stands nearer to them by the keys that it no longer sees.
/// q, kept_q: [T, Hq, D], k: [S, Hkv, D], v: [S, Hkv, Dv]
inline Attention attend(const Tensor& q, const Tensor& k, const Tensor& v, const Scoring& scoring,
                        const ScoreInputs& inputs = {}, const Tensor& kept_q = {}) {
  const Index keys = k.tokens, group = q.heads / k.heads;
  const Index shift = scoring.offset.value_or(scoring.visible.top_left ? 0 : keys - q.tokens);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Attention result{Tensor(q.tokens, q.heads, v.width), Tensor(q.tokens, q.heads, 1),
                   Tensor(q.tokens, q.heads, 1)};
  std::vector<double> scores(static_cast<std::size_t>(keys));
  for (Index t = 0; t < q.tokens; ++t)
    for (Index h = 0; h < q.heads; ++h) {
      double largest = -infinity, sum = 0;
      for (Index s = 0; s < keys; ++s) {
        scores.data()[s] = -infinity;
        Index position = t + shift;
        if (!scoring.visible(position, s, inputs.prefix)) continue;
        const bool moved = scoring.visible.in_cache && scoring.visible.is_kept(position, s);
        if (moved) position -= scoring.visible.evicted(position);
        double dot = 0;
        for (Index c = 0; c < q.width; ++c)
          dot += (moved ? kept_q : q)(t, h, c) * k(s, h / group, c);
        scores.data()[s] = staged_score(scoring, inputs, h, t, position, s, scoring.scale * dot);
        largest = std::max(largest, scores.data()[s]);
      }
      for (Index s = 0; s < keys; ++s) {
        if (scores.data()[s] == -infinity) continue;
        const double weight = std::exp(scores.data()[s] - largest);
        sum += weight;
        if (s == 0) result.first_key(t, h, 0) = weight;
        for (Index c = 0; c < v.width; ++c) result.output(t, h, c) += weight * v(s, h / group, c);
      }
      result.log_sum_exp(t, h, 0) = largest + std::log(sum);
      if (largest == -infinity) continue;
      const double sink = scoring.sinks.empty() ? -infinity : scoring.sinks.data()[h];
      // Σ e^score + e^sink, over e^largest; of the two the larger is counted from, so that none overflows.
      const double top = std::max(largest, sink);
      const double whole = sum * std::exp(largest - top) + std::exp(sink - top);
      const double factor = std::exp(largest - top) / whole;
      result.first_key(t, h, 0) *= factor;
      for (Index c = 0; c < v.width; ++c) result.output(t, h, c) *= factor;
    }
  return result;
}

/// The same without stages on scores.
inline Attention attend(const Tensor& q, const Tensor& k, const Tensor& v, const Visible& visible,
                        double scale) {
  return attend(q, k, v, Scoring{.visible = visible, .scale = scale});
}

}  // namespace gated_attention::reference
