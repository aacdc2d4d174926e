// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/kernel/call.hpp"

namespace gated_attention {

/// How large a Context is to be.
struct ContextLimits {
  Index tokens = 0;     ///< of all contexts of a batch
  Index sequences = 1;  ///< in a batch
};

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Keys and values of a cross-attention layer's contexts, prepared once by prepare_context and read by many calls of
/// forward, also at the same time. Belongs to the instruction set it was made for. Movable, not copyable.
template <class Layer>
class Context {
 public:
  using Scalar = typename Layer::Scalar;

  Context(const Layer& layer, const ContextLimits& limits)
      : shape_(layer.shape()), limits_(limits), places_(static_cast<std::size_t>(checked(limits).sequences)) {
    const KeyValueLayout<Scalar> layout{shape_.head_dim, shape_.value_width()};
    const Index bytes = detail::checked_product(kernel::most_blocks(limits.tokens, limits.sequences),
                                                 shape_.kv_heads * layout.bytes(), "Context");
    memory_ = detail::AlignedBytes(bytes);
  }

  const ContextLimits& limits() const { return limits_; }
  const Shape& shape() const { return shape_; }
  /// Sequences that are prepared; 0 before the first prepare_context.
  Index sequences() const { return sequences_; }
  /// Keys of a sequence.
  Index keys(Index sequence = 0) const { return places_[static_cast<std::size_t>(sequence)].tokens; }

  // For the layer.
  std::byte* blocks() { return memory_.data(); }
  const std::byte* blocks() const { return memory_.data(); }
  kernel::SequencePlace* places() { return places_.data(); }
  const kernel::SequencePlace* places() const { return places_.data(); }
  void set_sequences(Index sequences) { sequences_ = sequences; }

 private:
  static const ContextLimits& checked(const ContextLimits& limits) {
    if (limits.tokens < 0 || limits.sequences < 1)
      detail::raise<ShapeError>("Context: limits of ", limits.tokens, " tokens and ", limits.sequences,
                                " sequences, the least are 0 and 1");
    return limits;
  }

  Shape shape_;
  ContextLimits limits_;
  std::vector<kernel::SequencePlace> places_;
  Index sequences_ = 0;
  detail::AlignedBytes memory_;
};

template <class Layer>
Context(const Layer&, const ContextLimits&) -> Context<Layer>;

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
