// SPDX-License-Identifier: MIT
// Short names at file scope, before the library: its headers shadow none of them, whatever is composed.
#include <cmath>
#include <cstdio>
#include <vector>

extern std::vector<float> x, y, q, k, v;
extern int s, t, i;

std::vector<float> x(16 * 24, 0.5F), y(16 * 24), q(1), k(1), v(1);
int s = 0, t = 0, i = 0;

#include <gated_attention/gated_attention.hpp>
#include <gated_attention/reference/reference.hpp>

using namespace gated_attention;

struct Further {
  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>& place, const Packet<Scalar>& score) const {
    return packet::sub(score, packet::sub(packet::broadcast<Scalar>(place.position), place.keys));
  }
  double reference(Index, Index position, Index key, double score) const {
    return score - static_cast<double>(position - key);
  }
};

/// Σ |y| of a layer, which the reference also runs.
template <class Layer>
double run(const Layer& layer, const Batch<float>& batch) {
  Parameters parameters(layer);
  initialize(parameters, 1, 0.5);
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, {.tokens = 16, .threads = 2, .context_tokens = batch.context.rows()});
  layer.forward(batch, weights, workspace, {y.data(), 16, 24});
  double sum = 0;
  for (const float value : y) sum += std::abs(static_cast<double>(value));
  const reference::Result expected = reference::forward(layer, parameters, batch);
  double wanted = 0;
  for (const double value : expected.y.values) wanted += std::abs(value);
  std::printf("%g, %g\n", sum, wanted);
  return std::abs(sum - wanted) < 1e-4 * wanted ? sum : 0;
}

/// Appends the rows to a cache of every kind.
template <class Layer>
double extend(const Layer& layer) {
  Parameters parameters(layer);
  initialize(parameters, 1, 0.5);
  const auto weights = pack(layer, parameters, stored_as<half>);
  Workspace workspace(layer, {.tokens = 16, .threads = 2});
  RingCache ring(layer, {});
  ContiguousCache rounded(layer, {.tokens = 16}, stored_as<std::int8_t>);
  PagedCache paged(layer, {.pages = 2}, stored_as<bfloat16>);
  const auto append = [&](auto& cache) {
    layer.extend({.x = {x.data(), 16, 24}}, weights, cache, workspace, {y.data(), 16, 24});
    cache.truncate(0, 12);
  };
  append(ring);
  append(rounded);
  append(paged);
  paged.fork(0, 0, 4);
  return std::abs(static_cast<double>(y[0]));
}

int main() {
  const Shape self{.model_dim = 24, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
  Shape cross = self;
  cross.context_dim = 24;
  const MatrixView<const float> rows(x.data(), 16, 24);
  const std::vector<float> zeros(16);
  const bool all[16] = {true, true};
  const ScoreView<const float> bias(zeros.data(), 1, 1, 16);
  const ScoreView<const bool> mask(all, 1, 1, 16);
  const auto windowed =
      compose<float>(self, QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4}, Softcap{.cap = 20}, Alibi{},
                     SlidingWindow{.window = 9}, LearnedSink{}, Gate<at::Sdpa>{});
  const double own = run(windowed, {.x = rows}), appended = extend(windowed);
  const double other = run(
      compose<float>(cross, ProjectionBias<at::Query, at::Output>{},
                     BidirectionalWindow{.left = 4, .right = 4}, SoftmaxScale{.scale = 0.5},
                     ScoreBias{}, BooleanMask{}, Score<Further>{}, Activate<at::Value, Tanh>{},
                     Gate<at::Sdpa, LowRank<2>, HeadMean>{},
                     Gate<at::Key, FirstChannels<3>, Bias>{}, Gate<at::Output, Constant, Add>{}),
      {.x = rows, .context = rows, .score_bias = {&bias, 1}, .boolean_mask = {&mask, 1}});

  const Attend<float, PrefixCausal, Gate<at::Sdpa, Headwise>> attend({4, 2, 6, 6});
  AttendWorkspace workspace(attend, {.tokens = 16, .keys = 16, .threads = 1});
  const HeadsView<const float> queries(x.data(), 16, 4, 6), keys(x.data(), 16, 2, 6);
  const Index prefix = 3;
  attend({.q = queries,
          .k = keys,
          .v = keys,
          .gate_logits = {x.data(), 16, 4, 1},
          .prefixes = {&prefix, 1}},
         workspace, {y.data(), 16, 4, 6});
  const bool unused = s + t + i == 0 && q.size() + k.size() + v.size() == 3;
  return own > 0 && other > 0 && appended > 0 && y[0] > 0 && unused ? 0 : 1;
}
