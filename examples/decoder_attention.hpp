// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gated_attention/gated_attention.hpp"

// The attention of a decoder's blocks, whatever their layer's type and that of their caches.

namespace dense_decoder {

namespace ga = gated_attention;
using ga::Index;

/// Every call appends the tokens of x to those of the calls before and gives their outputs.
template <class Scalar>
class DecoderAttention {
 public:
  virtual ~DecoderAttention() = default;

  /// y = attention of block `layer`; x, y: [T, E]
  virtual void append(Index layer, ga::MatrixView<const Scalar> x, ga::MatrixView<Scalar> y) = 0;

  /// Forgets every token.
  virtual void reset() = 0;

  /// What is kept of the tokens, of all blocks.
  virtual Index cache_bytes() const = 0;

  /// Numbers that the blocks learned.
  virtual Index parameters() const = 0;

  virtual std::string description() const = 0;
};

/// The layer that all blocks share, and the weights of each.
template <class Layer>
struct BlockLayers {
  Layer layer;
  std::vector<ga::PackedWeights<Layer>> weights;

  /// `layers` blocks; fill(number, parameters) sets the parameters of each.
  template <class Fill>
  BlockLayers(const Layer& shared, Index layers, const Fill& fill) : layer(shared) {
    for (Index number = 0; number < layers; ++number) {
      ga::Parameters<typename Layer::Scalar> parameters(layer);
      fill(number, parameters);
      weights.push_back(pack(layer, parameters));
    }
  }

  Index parameters() const {
    return static_cast<Index>(weights.size()) * layer.parameter_count(layer.shape());
  }
};

/// With a cache for every block.
template <class Layer, class Cache>
class CachedAttention : public DecoderAttention<typename Layer::Scalar> {
 public:
  using Scalar = typename Layer::Scalar;

  /// make_cache() makes the cache of a block; limits.tokens is the longest chunk.
  template <class MakeCache>
  CachedAttention(BlockLayers<Layer> blocks, const ga::Limits& limits, const MakeCache& make_cache)
      : blocks_(std::move(blocks)), workspace_(blocks_.layer, limits) {
    for (std::size_t i = 0; i < blocks_.weights.size(); ++i) caches_.push_back(make_cache());
  }

  void append(Index layer, ga::MatrixView<const Scalar> x, ga::MatrixView<Scalar> y) override {
    const auto number = static_cast<std::size_t>(layer);
    blocks_.layer.extend({.x = x}, blocks_.weights[number], caches_[number], workspace_, y);
  }

  void reset() override {
    for (Cache& cache : caches_) cache.reset();
  }

  Index cache_bytes() const override {
    Index bytes = 0;
    for (const Cache& cache : caches_) bytes += cache.bytes();
    return bytes;
  }

  Index parameters() const override { return blocks_.parameters(); }
  std::string description() const override { return describe(blocks_.layer); }

 private:
  BlockLayers<Layer> blocks_;
  ga::Workspace<Layer> workspace_;
  std::vector<Cache> caches_;
};

}  // namespace dense_decoder
