// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "gated_attention/core/view.hpp"

namespace gated_attention {

/// How open a gate is: over all its scores, their mean and the shares that lie below 0.01 and below 0.1 (the paper's
/// Table 4 and Fig. 3). NaN for no scores.
struct GateStatistics {
  double mean = 0;
  double below_0_01 = 0;
  double below_0_1 = 0;
};

/// Statistics of scores as Results::gate_scores holds them, [T, heads, width].
template <class Scalar>
GateStatistics gate_statistics(const HeadsView<Scalar>& scores) {
  double sum = 0, below_0_01 = 0, below_0_1 = 0;
  for (Index t = 0; t < scores.tokens(); ++t)
    for (Index h = 0; h < scores.heads(); ++h)
      for (Index c = 0; c < scores.width(); ++c) {
        const double score = static_cast<double>(scores(t, h, c));
        sum += score;
        below_0_01 += score < 0.01 ? 1 : 0;
        below_0_1 += score < 0.1 ? 1 : 0;
      }
  const double count = static_cast<double>(scores.tokens() * scores.heads() * scores.width());
  return {sum / count, below_0_01 / count, below_0_1 / count};
}

/// Mean of a matrix, as of Results::first_token_attention: the paper's F-Attn of one layer.
template <class Scalar>
double mean(const MatrixView<Scalar>& values) {
  double sum = 0;
  for (Index i = 0; i < values.rows(); ++i)
    for (Index j = 0; j < values.columns(); ++j) sum += static_cast<double>(values(i, j));
  return sum / static_cast<double>(values.rows() * values.columns());
}

}  // namespace gated_attention
