// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "gated_attention/gated_attention.hpp"

// A recorded batch appended to a cache in chunks, gathered from its sequences and put back in their places.

namespace gated_attention::test {

/// Whether a layer can be extended: no token sees a later one.
template <class Layer>
inline constexpr bool is_extendable =
    !(Layer::template has_stage<Bidirectional> || Layer::template has_stage<BidirectionalWindow> ||
      Layer::template has_stage<CausalTopLeft>);

/// The rows of a batch that one chunk takes: `tokens` of each sequence from `first` on.
class Chunk {
 public:
  void take(Index row, Index tokens) {
    lengths.push_back(tokens);
    for (Index t = 0; t < tokens; ++t) rows.push_back(row + t);
  }

  Index tokens() const { return static_cast<Index>(rows.size()); }

  std::vector<Index> lengths, rows;
};

/// Rows of a whole result that a chunk writes: its own memory, then its places.
template <class Scalar>
class ChunkRows {
 public:
  ChunkRows(const HeadsView<Scalar>& whole, const Chunk& chunk) : whole_(whole), chunk_(chunk) {
    if (whole.empty()) return;
    memory_.assign(static_cast<std::size_t>(chunk.tokens() * whole.heads() * whole.width()),
                   std::numeric_limits<Scalar>::quiet_NaN());
  }

  HeadsView<Scalar> view() {
    if (whole_.empty()) return {};
    return {memory_.data(), chunk_.tokens(), whole_.heads(), whole_.width()};
  }

  void put_back() {
    const HeadsView<Scalar> own = view();
    for (Index t = 0; !own.empty() && t < own.tokens(); ++t)
      for (Index h = 0; h < own.heads(); ++h)
        std::copy_n(own.row(t, h), own.width(),
                    whole_.row(chunk_.rows[static_cast<std::size_t>(t)], h));
  }

 private:
  HeadsView<Scalar> whole_;
  const Chunk& chunk_;
  std::vector<Scalar> memory_;
};

/// A call of a layer whose type is forgotten.
template <class Scalar>
using LayerCall =
    std::function<void(const Batch<Scalar>&, MatrixView<Scalar>, const Results<Scalar>&)>;

/// Chunk i of a batch: sizes[i mod their number] ≥ 1 tokens of every sequence, as long as it has them, and in the first
/// chunk its prefix at least. `taken`: of each sequence in the chunks before, and then with this one.
template <class Scalar>
Chunk next_chunk(const Batch<Scalar>& batch, const std::vector<Index>& sizes, std::size_t i,
                 std::vector<Index>& taken) {
  Chunk chunk;
  Index start = 0;
  for (std::size_t s = 0; s < taken.size(); ++s) {
    const Index length = batch.lengths.empty() ? batch.x.rows() : batch.lengths[s];
    Index size = sizes[i % sizes.size()];
    if (i == 0 && !batch.prefixes.empty()) size = std::max(size, batch.prefixes[s]);
    size = std::min(size, length - taken[s]);
    chunk.take(start + taken[s], size);
    taken[s] += size;
    start += length;
  }
  return chunk;
}

/// y and the results of a batch, chunk by chunk.
template <class Scalar>
void call_in_chunks(const LayerCall<Scalar>& extend, const Batch<Scalar>& batch,
                    const std::vector<Index>& sizes, const MatrixView<Scalar>& y,
                    const Results<Scalar>& results) {
  const Index dim = y.columns();
  std::vector<Index> taken(std::max<std::size_t>(1, batch.lengths.size()));
  for (std::size_t i = 0;; ++i) {
    const Chunk chunk = next_chunk(batch, sizes, i, taken);
    if (chunk.tokens() == 0) return;
    std::vector<Scalar> x;
    for (const Index row : chunk.rows) x.insert(x.end(), batch.x.row(row), batch.x.row(row) + dim);
    ChunkRows<Scalar> own_y({y.data(), y.rows(), 1, dim}, chunk),
        attention(results.attention, chunk);
    const GateScores<Scalar>& scores = results.gate_scores;
    ChunkRows<Scalar> query(scores.query, chunk), key(scores.key, chunk),
        value(scores.value, chunk), sdpa(scores.sdpa, chunk), output(scores.output, chunk);
    extend({.x = {x.data(), chunk.tokens(), dim},
            .lengths = chunk.lengths,
            .prefixes = batch.prefixes},
           {own_y.view().data(), chunk.tokens(), dim},
           {.attention = attention.view(),
            .gate_scores = {query.view(), key.view(), value.view(), sdpa.view(), output.view()}});
    for (ChunkRows<Scalar>* rows : {&own_y, &attention, &query, &key, &value, &sdpa, &output})
      rows->put_back();
  }
}

/// The cache that suits a layer: a ring where it has a window.
template <class Layer>
auto suitable_cache(const Layer& layer, Index tokens, Index sequences) {
  if constexpr (Layer::template has_stage<SlidingWindow>)
    return RingCache<Layer>(layer, {.sequences = sequences});
  else
    return ContiguousCache<Layer>(layer, {.tokens = tokens, .sequences = sequences});
}

}  // namespace gated_attention::test
