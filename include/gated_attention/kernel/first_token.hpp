// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "gated_attention/kernel/attend.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// scale · q·k of a query and key 0, behind the stages at Scores, in natural units; −∞ where the query does not see it.
template <class Stored, class Scalar>
Scalar first_key_score(const AttendArguments<Scalar>& call, double scale, Index s, Index t, Index h) {
  const AttendSequence& sequence = call.sequences[s];
  const KeyBounds& bounds = sequence.bounds;
  const bool kept = bounds.kept_end(t) > 0;
  if (bounds.first > 0 || !(kept || (bounds.begin(t) == 0 && bounds.end(t) > 0)))
    return minus_infinity<Scalar>;
  const bool in_cache = kept && !call.kept_q.empty();
  const Index kv_head = h / (call.query_heads / call.kv_heads);
  const Scalar* const q = (in_cache ? call.kept_q : call.q).row(sequence.first_token + t, h);
  const Stored* const block = sequence.blocks.template block<const Stored>(kv_head, 0);
  const KeyValueLayout<Scalar, Stored> layout{call.key_dim, call.value_dim};
  double product = 0;
  for (Index c = 0; c < call.key_dim; ++c)
    product += static_cast<double>(q[c]) * detail::widened<double>(block[c * block_keys]);
  if constexpr (KeyValueLayout<Scalar, Stored>::scaled) product *= static_cast<double>(layout.key_scales(block)[0]);
  Scalar scores[static_cast<std::size_t>(lanes<Scalar>)] = {static_cast<Scalar>(scale * product)};
  const ScoreRow row{.sequence = s,
                     .head = h,
                     .token = sequence.first_query + t,
                     .position = t + bounds.shift - (in_cache ? bounds.evicted(t) : 0),
                     .first_key = 0,
                     .keys = bounds.keys};
  for (Index i = 0; i < call.score_stage_count; ++i)
    call.score_stages[i].run(call.score_stages[i], row, scores, 1);
  return scores[0];
}

/// p[t, h] = exp(score of key 0 − lse[t, h]), the sink in lse: what each query gives to its sequence's first key, from
/// call.log_sum_exp and without the matrix; 0 where it does not see that key.
template <class Stored, class Scalar>
void record_first_token(const AttendArguments<Scalar>& call, double scale,
                        const MatrixView<Scalar>& to) {
  for (Index s = 0; s < call.sequence_count; ++s)
    for (Index t = 0; t < call.sequences[s].tokens; ++t)
      for (Index h = 0; h < call.query_heads; ++h) {
        const Index token = call.sequences[s].first_token + t;
        const Scalar score = first_key_score<Stored>(call, scale, s, t, h);
        double lse = static_cast<double>(call.log_sum_exp(token, h));
        if (call.sinks != nullptr) {
          const double sink = static_cast<double>(call.sinks[h]), high = std::max(lse, sink);
          lse = high + std::log(std::exp(lse - high) + std::exp(sink - high));
        }
        // A score of −∞ gives 0 also where lse is −∞: stages masked every key of the row.
        to(token, h) = score >= std::numeric_limits<Scalar>::lowest()
                           ? static_cast<Scalar>(std::exp(static_cast<double>(score) - lse))
                           : Scalar(0);
      }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
