// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "gated_attention/kernel/call.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// p[t, h, 0] = exp(scale · q[t, h, :]·k[0, h/G, :] − lse[t, h]): what a query gives to its sequence's first key, from the
/// log-sum-exp and without the matrix; 0 where it does not see that key.
template <class Scalar>
void record_first_token(const Call<Scalar>& call) {
  const LayerPlan<Scalar>& plan = call.plan;
  const Shape& shape = plan.shape;
  for (Index i = 0; i < call.sequence_count; ++i) {
    const AttendSequence<Scalar>& sequence = call.memory.sequences[i];
    const Index first_key = call.streams[plan.key_stream()].places[i].first_token;
    for (Index t = 0; t < sequence.tokens; ++t) {
      const Index token = sequence.first_token + t;
      const bool seen = sequence.bounds.begin(t) == 0 && sequence.bounds.end(t) > 0;
      for (Index h = 0; h < shape.query_heads; ++h) {
        const Scalar* const q = call.query_row(token) + h * plan.head_stride;
        const Scalar* const k =
            call.key_row(first_key) + plan.key_column + h / shape.group() * plan.head_stride;
        double product = 0;
        for (Index c = 0; c < shape.head_dim; ++c)
          product += static_cast<double>(q[c]) * static_cast<double>(k[c]);
        Scalar scores[static_cast<std::size_t>(lanes<Scalar>)] = {
            static_cast<Scalar>(plan.scale * product)};
        const ScoreRow row{.sequence = i,
                           .head = h,
                           .token = t,
                           .position = t + sequence.bounds.shift,
                           .first_key = 0,
                           .keys = sequence.bounds.keys};
        for (Index s = 0; s < call.score_stage_count; ++s)
          call.score_stages[s].run(call.score_stages[s], row, scores, 1);
        double lse = static_cast<double>(call.results.log_sum_exp(token, h));
        if (call.sinks() != nullptr) {
          const double sink = static_cast<double>(call.sinks()[h]), high = std::max(lse, sink);
          lse = high + std::log(std::exp(lse - high) + std::exp(sink - high));
        }
        // A score of −∞ gives 0 also where lse is −∞: stages masked every key of the row.
        const bool counts = seen && scores[0] >= std::numeric_limits<Scalar>::lowest();
        call.results.first_token_attention(token, h) =
            counts ? static_cast<Scalar>(std::exp(static_cast<double>(scores[0]) - lse)) : Scalar(0);
      }
    }
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
