// SPDX-License-Identifier: MIT
// expect: the cache was made for a layer of the other scalar: make it from this layer
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16};

void append(MatrixView<const float> x, MatrixView<float> y) {
  const auto layer = compose<float>(shape, Causal{});
  const auto other = compose<double>(shape, Causal{});
  const auto weights = pack(layer, Parameters(layer));
  ContiguousCache cache(other, {.tokens = 64}, stored_as<bfloat16>);
  Workspace workspace(layer, {.tokens = 1});
  layer.extend({.x = x}, weights, cache, workspace, y);
}
