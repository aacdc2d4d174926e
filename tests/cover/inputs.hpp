// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "gated_attention/core/batch.hpp"
#include "gated_attention/reference/description.hpp"

// What a layer is called with, drawn from a seed as its description and a situation ask for it.

namespace gated_attention::cover {

/// What a layer is run on. Contexts are for layers that have one, prefixes for PrefixCausal, views for ScoreBias and
/// BooleanMask.
struct Situation {
  std::vector<Index> lengths = {6, 0, 3};
  std::vector<Index> positions = {};
  std::vector<Index> context_lengths = {4, 2, 5};
  std::vector<Index> context_positions = {};
  Index prefix = 2;               ///< of every other sequence, the others have none
  bool one_view_of_heads = true;  ///< views are [1, …, S], else [Hq, …, S]
  bool one_view_of_tokens = false;
  Index threads = 1;
};

inline constexpr Index gap = 3;  ///< numbers behind each row, all NaN

/// A matrix whose rows lie between NaN.
template <class Scalar>
struct Rows {
  Index count = 0, width = 0;
  std::vector<Scalar> values;

  Rows() = default;
  Rows(Index row_count, Index row_width);  ///< of NaN
  Scalar* row(Index t) { return values.data() + t * (width + gap); }
  MatrixView<Scalar> view() { return {values.data(), count, width, width + gap}; }
  MatrixView<const Scalar> view() const { return {values.data(), count, width, width + gap}; }
};

template <class Scalar>
class Inputs {
 public:
  Inputs(const reference::Description& layer, const Situation& situation);
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  Batch<Scalar> batch() const;
  Limits limits() const;

  /// The tokens that a sequence's keys come from.
  const std::vector<Index>& key_lengths() const {
    return is_cross_ ? situation_.context_lengths : situation_.lengths;
  }
  bool is_cross() const { return is_cross_; }

  /// Puts NaN and infinities in the row of one key of every sequence that has keys: poisoned_key(S).
  void poison();
  static Index poisoned_key(Index keys) { return keys / 2; }

 private:
  void draw_views(const reference::Description& layer);

  Situation situation_;
  bool is_cross_;
  Rows<Scalar> x_, context_;
  std::vector<Index> prefixes_;
  std::vector<std::vector<Scalar>> biases_;
  std::vector<std::unique_ptr<bool[]>> masks_;
  std::vector<ScoreView<const Scalar>> bias_views_;
  std::vector<ScoreView<const bool>> mask_views_;
};

extern template struct Rows<float>;
extern template struct Rows<double>;
extern template class Inputs<float>;
extern template class Inputs<double>;

}  // namespace gated_attention::cover
