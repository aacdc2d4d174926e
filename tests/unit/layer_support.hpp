// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include "gated_attention/layer/gated_attention.hpp"
#include "gated_attention/reference/reference.hpp"
#include "unit/reference_support.hpp"

// A whole layer against the reference.

namespace gated_attention::layers {

using support::at;
using support::infinity;
using support::message_of;
using support::normal_numbers;
using support::relative_error;

template <class Scalar>
constexpr double tolerance() {
  return std::is_same_v<Scalar, float> ? 6e-6 : 1e-12;
}

template <class Scalar>
Parameters<Scalar> drawn(Parameters<Scalar> parameters, std::uint64_t seed = 11) {
  std::mt19937_64 engine(seed);
  support::draw(parameters, engine);
  return parameters;
}

/// What a call gives.
template <class Scalar>
struct Given {
  std::vector<Scalar> y, attention, lse, first;
  std::vector<Scalar> scores[5];
};

/// Memory for results of the extents that the reference gives, filled with NaN.
template <class Scalar>
Results<Scalar> results_in(Given<Scalar>& given, const reference::Result& like) {
  const auto take = [](std::vector<Scalar>& to, const reference::Tensor& tensor) {
    to.assign(tensor.values.size(), std::numeric_limits<Scalar>::quiet_NaN());
    return to.empty() ? HeadsView<Scalar>()
                      : HeadsView<Scalar>(to.data(), tensor.tokens, tensor.heads, tensor.width);
  };
  const Index tokens = like.log_sum_exp.tokens, heads = like.log_sum_exp.heads;
  take(given.y, like.y);
  take(given.lse, like.log_sum_exp);
  take(given.first, like.first_token_attention);
  return {.attention = take(given.attention, like.attention),
          .log_sum_exp = {given.lse.data(), tokens, heads},
          .first_token_attention = {given.first.data(), tokens, heads},
          .gate_scores = {take(given.scores[0], like.gate_scores[0]),
                          take(given.scores[1], like.gate_scores[1]),
                          take(given.scores[2], like.gate_scores[2]),
                          take(given.scores[3], like.gate_scores[3]),
                          take(given.scores[4], like.gate_scores[4])}};
}

template <class Scalar>
void expect_near(const Given<Scalar>& given, const reference::Result& expected) {
  EXPECT_LE(relative_error(given.y, expected.y.values), tolerance<Scalar>());
  EXPECT_LE(relative_error(given.attention, expected.attention.values), tolerance<Scalar>());
  EXPECT_LE(relative_error(given.lse, expected.log_sum_exp.values), tolerance<Scalar>());
  EXPECT_LE(relative_error(given.first, expected.first_token_attention.values),
            tolerance<Scalar>());
  for (std::size_t p = 0; p < 5; ++p)
    EXPECT_LE(relative_error(given.scores[p], expected.gate_scores[p].values), tolerance<Scalar>())
        << "gate scores of position " << p;
}

inline Index sequences_of(std::span<const Index> lengths) {
  return lengths.empty() ? 1 : static_cast<Index>(lengths.size());
}

/// Runs a layer on a batch; returns what it gives after comparing it with the reference.
template <class Layer, class Scalar = typename Layer::Scalar>
Given<Scalar> check(const Layer& layer, const Parameters<Scalar>& parameters,
                    const Batch<Scalar>& batch) {
  const reference::Result expected = reference::forward(layer, parameters, batch);
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, {.tokens = batch.x.rows(),
                              .sequences = sequences_of(batch.lengths),
                              .threads = 1,
                              .context_tokens = batch.context.rows()});
  Given<Scalar> given;
  const Results<Scalar> results = results_in(given, expected);
  layer.forward(batch, weights, workspace,
                {given.y.data(), batch.x.rows(), layer.shape().model_dim}, results);
  expect_near(given, expected);
  return given;
}

}  // namespace gated_attention::layers
