// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/index.hpp"

namespace gated_attention {

/// The extents of a layer: E model_dim, Hq query_heads, Hkv kv_heads, D head_dim of query and key, Dv value_dim.
///
/// Hq is a multiple of Hkv; each kv head serves Hq/Hkv consecutive query heads. head_dim is independent of model_dim.
/// value_dim 0 means head_dim. context_dim 0 means self-attention; otherwise keys and values come from a context of that
/// width (cross-attention), queries and the gates at query, sdpa and output from x.
struct Shape {
  Index model_dim = 0;
  Index query_heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;
  Index value_dim = 0;
  Index context_dim = 0;

  constexpr bool is_cross() const { return context_dim > 0; }
  /// Channels of the rows that keys and values are projected from.
  constexpr Index key_source_dim() const { return is_cross() ? context_dim : model_dim; }
  constexpr Index value_width() const { return value_dim == 0 ? head_dim : value_dim; }
  constexpr Index group() const { return query_heads / kv_heads; }
  constexpr bool operator==(const Shape&) const = default;
};

/// A shape known at compile time, given to compose or GatedAttention in place of the run-time one: what a shape gets
/// wrong is then a compile error.
template <Shape shape>
struct Static {
  static constexpr Shape value = shape;
};
}  // namespace gated_attention
