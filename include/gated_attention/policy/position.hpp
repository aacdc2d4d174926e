// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <string_view>

#include "gated_attention/core/shape.hpp"

namespace gated_attention {

/// Where a stage stands in the dataflow; the paper's G1 to G5 are Sdpa, Value, Key, Query, Output.
namespace at {
struct Query {};   ///< on the projected queries, [T, Hq, D]
struct Key {};     ///< on the projected keys, [T, Hkv, D]
struct Value {};   ///< on the projected values, [T, Hkv, Dv]
struct Sdpa {};    ///< on the output of scaled dot-product attention, [T, Hq, Dv]
struct Output {};  ///< behind the output projection, [T, E]
struct Scores {};  ///< on the scores before the softmax, [Hq, T, S]
}  // namespace at

/// The positions as run-time numbers, in the order of the dataflow.
enum class Position { query, key, value, sdpa, output, scores };

namespace detail {

template <class P>
struct PositionOf;
template <>
struct PositionOf<at::Query> {
  static constexpr Position value = Position::query;
};
template <>
struct PositionOf<at::Key> {
  static constexpr Position value = Position::key;
};
template <>
struct PositionOf<at::Value> {
  static constexpr Position value = Position::value;
};
template <>
struct PositionOf<at::Sdpa> {
  static constexpr Position value = Position::sdpa;
};
template <>
struct PositionOf<at::Output> {
  static constexpr Position value = Position::output;
};

template <class P>
concept RowPosition = requires { PositionOf<P>::value; };

constexpr std::string_view name_of(Position position) {
  constexpr std::string_view names[] = {"query", "key", "value", "sdpa", "output", "scores"};
  return names[static_cast<int>(position)];
}

/// How many heads a token has at a position; 1 at the output.
constexpr Index heads_at(Position position, const Shape& shape) {
  switch (position) {
    case Position::key:
    case Position::value:
      return shape.kv_heads;
    case Position::output:
      return 1;
    default:
      return shape.query_heads;
  }
}

/// Channels of a head at a position: head_dim, value_dim or model_dim.
constexpr Index width_at(Position position, const Shape& shape) {
  switch (position) {
    case Position::query:
    case Position::key:
      return shape.head_dim;
    case Position::output:
      return shape.model_dim;
    default:
      return shape.value_width();
  }
}

/// Whether what stands at a position belongs to the stream of keys and values: the context in cross-attention, else x.
constexpr bool is_key_side(Position position) { return position == Position::key || position == Position::value; }

/// Channels of the rows that a gate at a position reads.
constexpr Index source_dim(Position position, const Shape& shape) {
  return is_key_side(position) ? shape.key_source_dim() : shape.model_dim;
}

/// Extents of what a stage learns: weight [weight_rows, weight_columns], bias [bias] and, of a low-rank gate, down
/// [weight_columns, down_columns]; 0 where there is none.
struct StageTensors {
  Index weight_rows = 0;
  Index weight_columns = 0;
  Index bias = 0;
  Index down_columns = 0;

  constexpr Index count() const { return weight_rows * weight_columns + bias + weight_columns * down_columns; }
};

}  // namespace detail
}  // namespace gated_attention
