// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/index.hpp"
#include "gated_attention/core/instruction_set.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// What the stages of one token read beside its rows.
template <class Scalar>
struct RowPlace {
  Index first_head = 0;                 ///< the head of rows[0]
  const Scalar* gate_logits = nullptr;  ///< the token's gate logits; a stage knows its own columns
  const Scalar* cosines = nullptr;      ///< the token's rotation: one number per rotated pair
  const Scalar* sines = nullptr;
};

/// One stage bound to its numbers: changes the rows of `heads` consecutive heads of one token in place.
///
/// A row has `width` channels and lies in memory that may be written up to a whole packet; what stands in that padding
/// influences nothing. Everything else that a stage reads (logits, parameters) is exact. The function is compiled once
/// per scalar and kind of stage, never per layer: a layer is a table of these.
template <class Scalar>
struct RowStage {
  using Run = void (*)(const RowStage& stage, Scalar* rows, Index heads, Index head_stride,
                       const RowPlace<Scalar>& place);

  Run run = nullptr;
  Index width = 0;                    ///< channels of one head's row
  Index logits_offset = 0;            ///< gate: column of its first logit in RowPlace::gate_logits
  Index logits_head_stride = 0;       ///< gate: columns from head to head; 0: one for all heads
  const Scalar* parameter = nullptr;  ///< norm weight or constant logits
  Scalar number = 0;                  ///< eps or factor
  Index first_dim = 0;                ///< rotation: its first channel
  Index pairs = 0;                    ///< rotation: pairs of channels, of which
  Index rotated_pairs = 0;            ///< the first so many turn
};

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
