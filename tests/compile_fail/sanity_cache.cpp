// SPDX-License-Identifier: MIT
// expect: success
// The correct neighbours of the misuses of caches beside this file.
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

constexpr Shape shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16};

void append(MatrixView<const float> x, MatrixView<float> y) {
  const auto layer = compose<float>(shape, SlidingWindow{.window = 32});
  const auto weights = pack(layer, Parameters(layer), stored_as<half>);
  Workspace workspace(layer, {.tokens = 1});
  ContiguousCache contiguous(layer, {.tokens = 64}, stored_as<float>);
  RingCache ring(layer, {}, stored_as<bfloat16>);
  PagedCache paged(layer, {.pages = 4}, stored_as<std::int8_t>);
  layer.extend({.x = x}, weights, contiguous, workspace, y);
  layer.extend({.x = x}, weights, ring, workspace, y);
  layer.extend({.x = x}, weights, paged, workspace, y);
}

void append(MatrixView<const double> x, MatrixView<double> y) {
  const auto layer = compose<double>(shape, PrefixCausal{});
  const auto weights = pack(layer, Parameters(layer), stored_as<float>);
  Workspace workspace(layer, {.tokens = 1});
  ContiguousCache cache(layer, {.tokens = 64}, stored_as<double>);
  const Index prefix = 1;
  layer.extend({.x = x, .prefixes = {&prefix, 1}}, weights, cache, workspace, y);
}
