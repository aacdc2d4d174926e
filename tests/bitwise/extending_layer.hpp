// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bitwise/running_layer.hpp"

// A layer that appends to a cache, in scratch and caches whose memory held NaN before.

namespace gated_attention::test {

/// Every byte 0xff: NaN in every scalar, −1 in int8 and Index.
inline void poison(std::byte* memory, Index bytes) {
  if (bytes > 0) std::memset(memory, 0xff, static_cast<std::size_t>(bytes));
}

/// All that a cache has not been given yet becomes NaN; so does what it has been given.
template <class Cache>
void poison(Cache& cache) {
  poison(cache.blocks(0).base, cache.bytes());
}

/// What a call appends: rows back to back, with a length for each sequence.
template <class Scalar>
struct Tokens {
  std::vector<Scalar> x;
  std::vector<Index> lengths;
  std::vector<Index> prefixes = {};  ///< PrefixCausal: one per sequence
};

/// What a call gives of its tokens.
template <class Scalar>
struct Outputs {
  std::vector<Scalar> y, log_sum_exp;  ///< [T, E], [T, Hq]
};

/// The numbers that ScoreBias and BooleanMask take in these tests, a function of absolute query and key: about a seventh of
/// the keys is masked.
inline std::uint32_t noise(Index query, Index key) {
  std::uint32_t bits = static_cast<std::uint32_t>(query) * 2654435761U;
  bits ^= static_cast<std::uint32_t>(key) * 2246822519U;
  bits ^= bits >> 15;
  bits *= 3266489917U;
  return bits ^ (bits >> 13);
}

/// One view of scores per sequence for a call that appends `lengths` behind `pasts`.
template <class T>
class ScoreViews {
 public:
  ScoreViews(const std::vector<Index>& lengths, const std::vector<Index>& pasts,
             T (*number)(std::uint32_t)) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const Index tokens = lengths[i], keys = pasts[i] + tokens;
      memory_.push_back(std::make_unique<T[]>(static_cast<std::size_t>(tokens * keys)));
      T* to = memory_.back().get();
      views_.emplace_back(to, Index{1}, tokens, keys, Index{0}, keys);
      for (Index t = 0; t < tokens; ++t)
        for (Index s = 0; s < keys; ++s) *to++ = number(noise(pasts[i] + t, s));
    }
  }
  std::span<const ScoreView<const T>> views() const { return views_; }

 private:
  std::vector<std::unique_ptr<T[]>> memory_;
  std::vector<ScoreView<const T>> views_;
};

/// How a call is run.
struct Run {
  Index threads = 1;
  Index spare_tokens = 0;  ///< that the workspace was made for beyond those of the call
  bool in_place = false;   ///< y is x
};

/// function(batch, workspace, y, results) on tokens behind `pasts`, the workspace full of NaN.
template <class Running, class Function>
Outputs<typename Running::Scalar> call_poisoned(const Running& running,
                                                const Tokens<typename Running::Scalar>& tokens,
                                                const std::vector<Index>& pasts, const Run& run,
                                                const Function& function) {
  using Scalar = typename Running::Scalar;
  using Layer = typename Running::Layer;
  static thread_local detail::AlignedBytes scratch;
  const Index rows = static_cast<Index>(tokens.x.size()) / running.model_dim(),
              heads = running.layer.shape().query_heads;
  const Limits limits{.tokens = rows + run.spare_tokens,
                      .sequences = static_cast<Index>(tokens.lengths.size()),
                      .threads = run.threads};
  const Index bytes = running.layer.workspace_bytes(limits);
  if (scratch.size() < bytes) scratch = detail::AlignedBytes(bytes);
  poison(scratch.data(), bytes);
  Workspace<Layer> workspace(running.layer, limits,
                             {scratch.data(), static_cast<std::size_t>(bytes)});

  Outputs<Scalar> outputs;
  if (run.in_place)
    outputs.y = tokens.x;
  else
    outputs.y.assign(tokens.x.size(), nan<Scalar>);
  outputs.log_sum_exp.assign(static_cast<std::size_t>(rows * heads), nan<Scalar>);
  Batch<Scalar> batch{
      .x = {run.in_place ? outputs.y.data() : tokens.x.data(), rows, running.model_dim()},
      .lengths = tokens.lengths,
      .prefixes = tokens.prefixes};
  constexpr bool biased = Layer::template has_stage<ScoreBias>,
                 masked = Layer::template has_stage<BooleanMask>;
  const std::vector<Index> none;
  const ScoreViews<Scalar> bias(biased ? tokens.lengths : none, pasts, [](std::uint32_t bits) {
    return bits % 7 == 0 ? -infinity<Scalar> : static_cast<Scalar>(bits % 1000) / 500;
  });
  const ScoreViews<bool> mask(masked ? tokens.lengths : none, pasts,
                              [](std::uint32_t bits) { return bits % 7 != 0; });
  batch.score_bias = bias.views();
  batch.boolean_mask = mask.views();
  function(batch, workspace, MatrixView<Scalar>(outputs.y.data(), rows, running.model_dim()),
           Results<Scalar>{.log_sum_exp = {outputs.log_sum_exp.data(), rows, heads}});
  return outputs;
}

template <class Running, class Cache>
Outputs<typename Running::Scalar> extend(const Running& running, Cache& cache,
                                         const Tokens<typename Running::Scalar>& tokens,
                                         const Run& run = {}) {
  std::vector<Index> pasts;
  for (Index s = 0; s < cache.sequences(); ++s) pasts.push_back(cache.size(s));
  return call_poisoned(running, tokens, pasts, run,
                       [&](const auto& batch, auto& workspace, const auto& y, const auto& results) {
                         running.layer.extend(batch, running.weights, cache, workspace, y, results);
                       });
}

template <class Running>
Outputs<typename Running::Scalar> forward(const Running& running,
                                          const Tokens<typename Running::Scalar>& tokens,
                                          const Run& run = {}) {
  return call_poisoned(running, tokens, std::vector<Index>(tokens.lengths.size()), run,
                       [&](const auto& batch, auto& workspace, const auto& y, const auto& results) {
                         running.layer.forward(batch, running.weights, workspace, y, results);
                       });
}

/// What all is compared with: one extend of a whole sequence, alone, on one thread, to a ContiguousCache.
template <class Stored, class Running>
Outputs<typename Running::Scalar> extend_alone(const Running& running,
                                               const std::vector<typename Running::Scalar>& x,
                                               Index prefix = 0) {
  using Layer = typename Running::Layer;
  const Index tokens = static_cast<Index>(x.size()) / running.model_dim();
  ContiguousCache<Layer, Stored> cache(running.layer, {.tokens = tokens});
  poison(cache);
  std::vector<Index> prefixes;
  if (Layer::template has_stage<PrefixCausal>) prefixes.push_back(prefix);
  return extend(running, cache, {x, {tokens}, prefixes});
}

/// How attend goes about a call that appends `lengths` behind `pasts` in one pass.
struct AttendDivision {
  Index threads = 1;      ///< that it wakes
  Index most_pieces = 1;  ///< of a tile: segments of keys that are summed apart
};

template <class Layer>
AttendDivision attend_division(const Layer& layer, const std::vector<Index>& lengths,
                               const std::vector<Index>& pasts, Index threads) {
  using Scalar = typename Layer::Scalar;
  const Shape& shape = layer.shape();
  std::vector<kernel::AttendSequence> sequences;
  Index tokens = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back({.first_token = tokens,
                         .tokens = lengths[i],
                         .bounds = layer.mask().bounds(lengths[i], pasts[i] + lengths[i]),
                         .blocks = {}});
    tokens += lengths[i];
  }
  kernel::AttendArguments<Scalar> call;
  call.query_heads = shape.query_heads;
  call.kv_heads = shape.kv_heads;
  call.key_dim = shape.head_dim;
  call.value_dim = shape.value_width();
  call.sequences = sequences.data();
  call.sequence_count = static_cast<Index>(sequences.size());
  std::vector<kernel::AttendItem> items(static_cast<std::size_t>(tokens) + lengths.size());
  AttendDivision division;
  division.threads = kernel::threads_for(threads, kernel::attend_work(call));
  const Index count = kernel::list_items(call, division.threads, items.data());
  for (Index i = 0; i < count; ++i)
    division.most_pieces =
        std::max(division.most_pieces, items[static_cast<std::size_t>(i)].pieces);
  return division;
}

}  // namespace gated_attention::test
