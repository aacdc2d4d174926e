// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/instruction_set.hpp"
#include "gated_attention/layer/parameters.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// A published layer, opened: the layer and its parameters.
template <class Layer>
struct OpenedLayer {
  Layer layer;
  Parameters<typename Layer::Scalar> parameters;
};

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
