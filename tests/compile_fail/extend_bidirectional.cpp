// SPDX-License-Identifier: MIT
// expect: a token that is appended to a cache cannot see later ones: give the layer Causal
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

void append(MatrixView<const float> x, MatrixView<float> y) {
  const auto layer = compose<float>(
      {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Bidirectional{});
  const auto weights = pack(layer, Parameters(layer));
  ContiguousCache cache(layer, {.tokens = 64});
  Workspace workspace(layer, {.tokens = 1});
  layer.extend({.x = x}, weights, cache, workspace, y);
}
