// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "gated_attention/math/rms_norm.hpp"
#include "gated_attention/math/rotary.hpp"
#include "gated_attention/policy/row_stage.hpp"
#include "gated_attention/policy/stage_list.hpp"

// The stages' formulas on the rows of one token. Each function is compiled once per scalar and choice of axes; which
// layer it serves it does not know.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

template <class Combine, class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> combine(const Packet<Scalar>& value, const Packet<Scalar>& score) {
  if constexpr (std::is_same_v<Combine, Multiply>)
    return packet::mul(value, score);
  else
    return packet::add(value, score);
}

/// y[h, c] ← y[h, c] ∘ activation(logit[h, c]), or one logit a head      ∘ is ⊙ or +
template <class Scalar, class Combine, class Activation, bool elementwise>
void run_gate(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
               const RowPlace<Scalar>& place) {
  const Scalar* logits = (stage.parameter != nullptr ? stage.parameter : place.gate_logits) +
                         stage.logits_offset + place.first_head * stage.logits_head_stride;
  for (Index h = 0; h < heads; ++h, rows += head_stride, logits += stage.logits_head_stride) {
    if constexpr (elementwise) {
      for (Index i = 0; i < stage.width; i += lanes<Scalar>) {
        const Packet<Scalar> score =
            packet::activate<Activation, Scalar>(packet::load_at<Scalar>(logits, i, stage.width));
        packet::store<Scalar>(rows + i, combine<Combine, Scalar>(packet::load<Scalar>(rows + i), score));
      }
    } else {
      const Packet<Scalar> score = packet::activate<Activation, Scalar>(packet::broadcast<Scalar>(*logits));
      for (Index i = 0; i < stage.width; i += lanes<Scalar>)
        packet::store<Scalar>(rows + i, combine<Combine, Scalar>(packet::load<Scalar>(rows + i), score));
    }
  }
}

/// scores[c] = activation(logits[c])      c = 0 … count − 1; scores may be logits
template <class Scalar, class Activation>
void activate_logits(const Scalar* logits, Index count, Scalar* scores) {
  for (Index i = 0; i < count; i += lanes<Scalar>) {
    const Packet<Scalar> score = packet::activate<Activation, Scalar>(packet::load_at<Scalar>(logits, i, count));
    if (i + lanes<Scalar> <= count)
      packet::store<Scalar>(scores + i, score);
    else
      packet::store_partial<Scalar>(scores + i, score, count - i);
  }
}

/// y ← activation(y)
template <class Scalar, class Activation>
void run_activate(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
                   const RowPlace<Scalar>&) {
  for (Index h = 0; h < heads; ++h, rows += head_stride)
    for (Index i = 0; i < stage.width; i += lanes<Scalar>)
      packet::store<Scalar>(rows + i, packet::activate<Activation, Scalar>(packet::load<Scalar>(rows + i)));
}

/// y ← factor · y
template <class Scalar>
void run_scale(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
                const RowPlace<Scalar>&) {
  const Packet<Scalar> factor = packet::broadcast<Scalar>(stage.number);
  for (Index h = 0; h < heads; ++h, rows += head_stride)
    for (Index i = 0; i < stage.width; i += lanes<Scalar>)
      packet::store<Scalar>(rows + i, packet::mul(packet::load<Scalar>(rows + i), factor));
}

/// y ← y / √(mean(y²) + eps) ⊙ m, the mean over one head or over all heads of the token
template <class Scalar, bool over_row>
void run_normalize(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
                    const RowPlace<Scalar>&) {
  if constexpr (over_row)
    rms_norm_row<Scalar>(rows, heads, head_stride, stage.width, stage.parameter, stage.number);
  else
    rms_norm_heads<Scalar>(rows, heads, head_stride, stage.width, stage.parameter, stage.number);
}

/// (a, b) ← (a·cos − b·sin, b·cos + a·sin) for the first rotated_pairs pairs
template <class Scalar, class Pairing>
void run_rotate(const RowStage<Scalar>& stage, Scalar* rows, Index heads, Index head_stride,
                 const RowPlace<Scalar>& place) {
  for (Index h = 0; h < heads; ++h, rows += head_stride) {
    if constexpr (std::is_same_v<Pairing, pairing::Half>)
      rotate_half<Scalar>(rows, stage.first_dim, stage.pairs, stage.rotated_pairs, place.cosines, place.sines);
    else
      rotate_interleaved<Scalar>(rows, stage.first_dim, stage.pairs, stage.rotated_pairs, place.cosines,
                                 place.sines);
  }
}

/// The function that runs a (written-out) row stage.
template <class Scalar, class Stage>
constexpr typename RowStage<Scalar>::Run row_function() {
  if constexpr (detail::is_gate<Stage>) {
    // Averaged scores are made once a token, in `prepare`; what is left to do at the position is to combine them.
    using Activation = std::conditional_t<Stage::averaged, Identity, typename Stage::activation>;
    return &run_gate<Scalar, typename Stage::combine, detail::ActivationOn<Scalar, Activation>,
                     Stage::elementwise>;
  } else if constexpr (detail::is_normalize<Stage>) {
    return &run_normalize<Scalar, Stage::norm::over_row>;
  } else if constexpr (detail::is_activate<Stage>) {
    return &run_activate<Scalar, detail::ActivationOn<Scalar, typename Stage::activation>>;
  } else if constexpr (detail::is_rope<Stage>) {
    return &run_rotate<Scalar, typename Stage::pairing_order>;
  } else {
    return &run_scale<Scalar>;
  }
}

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
