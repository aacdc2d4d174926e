// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/index.hpp"
#include "gated_attention/core/instruction_set.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Where some neighbouring scores of one row stand.
struct ScoreRow {
  Index sequence = 0;   ///< of the batch
  Index head = 0;       ///< query head
  Index token = 0;      ///< the query, counted in its sequence
  Index position = 0;   ///< the query's own place among the keys
  Index first_key = 0;  ///< the key of the first score
  Index keys = 0;       ///< S: there is no key from here on, whatever a packet's last lanes hold
};

/// One stage on scores, bound to its numbers: changes `packets` packets of a row's scores in place.
///
/// Scores are in natural units. A lane that holds −∞ stays −∞. Lanes of keys that the mask hides hold anything and may
/// become anything. Compiled once per scalar and kind of stage (and per function of a user's), never per layer.
template <class Scalar>
struct ScoreStage {
  using Run = void (*)(const ScoreStage& stage, const ScoreRow& row, Scalar* scores, Index packets);
  /// Whether the stage masks `count` keys of a row from its first key on, all of them.
  using Hides = bool (*)(const ScoreStage& stage, const ScoreRow& row, Index count);

  Run run = nullptr;
  Hides hides = nullptr;  ///< null: cannot tell, or never
  bool masks = false;     ///< may make a score −∞
  Scalar number = 0;      ///< cap
  const void* state =
      nullptr;  ///< slopes, the batch's views (one per sequence), or a user's function
};

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
