// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/core/view.hpp"

namespace gated_attention {

/// How the rows of a stored query matrix [out, in] hold the rows of the query and of its gate. G =
/// Hq/Hkv, D head_dim; the gate has W rows a head: D elementwise, 1 headwise.
///
///   Separate      query rows alone, head after head; the gate has a matrix of its own
///   PerKvGroup    for each kv head: [G·D query rows of its G heads | G·W gate rows of its G heads]
///   PerQueryHead  for each query head: [D query rows | W gate rows]
///
/// PerKvGroup and PerQueryHead are the same only where G = 1. The widths are equal, so a wrong
/// choice cannot be told from the numbers: there is no default and nothing here guesses.
enum class QueryPacking : std::uint8_t { Separate, PerKvGroup, PerQueryHead };

constexpr std::string_view name_of(QueryPacking packing) {
  switch (packing) {
    case QueryPacking::Separate:
      return "Separate";
    case QueryPacking::PerKvGroup:
      return "PerKvGroup";
    case QueryPacking::PerQueryHead:
      return "PerQueryHead";
  }
  return "unknown";
}

/// A packing with its numbers: which row of the packed matrix is which row of the query and of the
/// gate. Weights, biases, their gradients and per-row scales are all permuted by the same two
/// functions.
struct PackedQuery {
  QueryPacking packing;
  Index query_heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;
  Index gate_dim = 0;  ///< gate rows a head: head_dim elementwise, 1 headwise

  constexpr Index query_rows() const { return query_heads * head_dim; }
  constexpr Index gate_rows() const {
    return packing == QueryPacking::Separate ? 0 : query_heads * gate_dim;
  }
  constexpr Index rows() const { return query_rows() + gate_rows(); }

  /// The packed row of channel c of the query of head h.
  constexpr Index query_row(Index h, Index c) const { return first_row(h, head_dim, 0) + c; }

  /// The packed row of channel c of the gate of head h; nowhere in a Separate packing.
  constexpr Index gate_row(Index h, Index c) const { return first_row(h, gate_dim, head_dim) + c; }

 private:
  /// Of head h: the rows of all blocks before its own, the query rows that come first in its block
  /// if it is the gate
  /// (`before` a head), and the `dim` rows of each head of the block before h.
  constexpr Index first_row(Index h, Index dim, Index before) const {
    if (packing == QueryPacking::Separate) return h * dim;
    const Index heads = packing == QueryPacking::PerKvGroup ? query_heads / kv_heads : 1;
    return (h / heads) * heads * (head_dim + gate_dim) + heads * before + (h % heads) * dim;
  }
};

namespace detail {

/// A ShapeError unless the layout's numbers are a layer's.
inline void check_packing(const PackedQuery& layout, const char* function) {
  if (layout.query_heads < 1 || layout.kv_heads < 1 || layout.query_heads % layout.kv_heads != 0)
    raise<ShapeError>(function, ": ", layout.query_heads, " query heads must be a multiple of ",
                      layout.kv_heads, " kv heads");
  if (layout.head_dim < 1 || layout.gate_dim < 0 ||
      (layout.gate_dim > 1 && layout.gate_dim != layout.head_dim))
    raise<ShapeError>(function, ": a gate has 1 row a head or as many as head_dim, ",
                      layout.head_dim, "; it has ", layout.gate_dim);
  checked_product(layout.query_heads, checked_product(2, layout.head_dim, function), function);
}

inline void check_packed_extent(const char* function, const char* what, Index rows, Index expected,
                                const PackedQuery& layout) {
  if (rows != expected)
    raise<ShapeError>(function, ": ", what, " has ", rows, " rows, packing ",
                      name_of(layout.packing), " of ", layout.query_heads, " heads of ",
                      layout.head_dim, " with ", layout.gate_dim, " gate rows each takes ",
                      expected);
}

inline void check_packed_extents(const char* function, const PackedQuery& layout, Index packed,
                                 Index query, Index gate) {
  check_packing(layout, function);
  check_packed_extent(function, "packed", packed, layout.rows(), layout);
  check_packed_extent(function, "query", query, layout.query_rows(), layout);
  check_packed_extent(function, "gate", gate, layout.gate_rows(), layout);
}

inline void check_packed_columns(const char* function, Index packed, Index query, Index gate,
                                 Index gate_rows) {
  if (query != packed)
    raise<ShapeError>(function, ": query has ", query, " columns, packed has ", packed);
  if (gate_rows != 0 && gate != packed)
    raise<ShapeError>(function, ": gate has ", gate, " columns, packed has ", packed);
}

/// Calls query(row, packed_row) and gate(row, packed_row) for every row of either, in ascending
/// order of `row`.
template <class Query, class Gate>
void for_each_packed_row(const PackedQuery& layout, const Query& query, const Gate& gate) {
  for (Index h = 0; h < layout.query_heads; ++h)
    for (Index c = 0; c < layout.head_dim; ++c)
      query(h * layout.head_dim + c, layout.query_row(h, c));
  if (layout.packing == QueryPacking::Separate) return;
  for (Index h = 0; h < layout.query_heads; ++h)
    for (Index c = 0; c < layout.gate_dim; ++c)
      gate(h * layout.gate_dim + c, layout.gate_row(h, c));
}

}  // namespace detail

/// query[h·D + c, :] = packed[query_row(h, c), :],  gate[h·W + c, :] = packed[gate_row(h, c), :]
///   packed: [layout.rows(), in], query: [Hq·D, in], gate: [Hq·W, in] (no rows in a Separate
///   packing)
/// The views must not overlap. A ShapeError names both numbers, before anything is written.
template <class Scalar>
void split_query(const PackedQuery& layout, std::type_identity_t<MatrixView<const Scalar>> packed,
                 MatrixView<Scalar> query, std::type_identity_t<MatrixView<Scalar>> gate) {
  detail::check_packed_extents("split_query", layout, packed.rows(), query.rows(), gate.rows());
  detail::check_packed_columns("split_query", packed.columns(), query.columns(), gate.columns(),
                               gate.rows());
  const Index columns = packed.columns();
  detail::for_each_packed_row(
      layout,
      [&](Index row, Index packed_row) {
        std::copy_n(packed.row(packed_row), columns, query.row(row));
      },
      [&](Index row, Index packed_row) {
        std::copy_n(packed.row(packed_row), columns, gate.row(row));
      });
}

/// The inverse of split_query: packed[query_row(h, c), :] = query[h·D + c, :], and the gate's rows
/// likewise.
template <class Scalar>
void join_query(const PackedQuery& layout, std::type_identity_t<MatrixView<const Scalar>> query,
                std::type_identity_t<MatrixView<const Scalar>> gate, MatrixView<Scalar> packed) {
  detail::check_packed_extents("join_query", layout, packed.rows(), query.rows(), gate.rows());
  detail::check_packed_columns("join_query", packed.columns(), query.columns(), gate.columns(),
                               gate.rows());
  const Index columns = packed.columns();
  detail::for_each_packed_row(
      layout,
      [&](Index row, Index packed_row) {
        std::copy_n(query.row(row), columns, packed.row(packed_row));
      },
      [&](Index row, Index packed_row) {
        std::copy_n(gate.row(row), columns, packed.row(packed_row));
      });
}

namespace detail {

/// The vector as a matrix of one column.
template <class T>
MatrixView<T> column_of(std::span<T> vector) {
  return {vector.data(), static_cast<Index>(vector.size()), 1};
}

}  // namespace detail

/// split_query of a bias:      packed: [layout.rows()], query: [Hq·D], gate: [Hq·W]
template <class Scalar>
void split_query_bias(const PackedQuery& layout,
                      std::type_identity_t<std::span<const Scalar>> packed, std::span<Scalar> query,
                      std::type_identity_t<std::span<Scalar>> gate) {
  split_query<Scalar>(layout, detail::column_of(packed), detail::column_of(query),
                      detail::column_of(gate));
}

/// join_query of a bias.
template <class Scalar>
void join_query_bias(const PackedQuery& layout, std::type_identity_t<std::span<const Scalar>> query,
                     std::type_identity_t<std::span<const Scalar>> gate, std::span<Scalar> packed) {
  join_query<Scalar>(layout, detail::column_of(query), detail::column_of(gate),
                     detail::column_of(packed));
}

}  // namespace gated_attention
