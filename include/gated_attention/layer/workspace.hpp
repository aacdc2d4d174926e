// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/kernel/call.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The scratch memory of a layer's calls, and the threads they run on: the only allocation. One call at a time uses it;
/// what it holds between calls means nothing. Movable, not copyable.
template <class Layer>
class Workspace {
 public:
  using Scalar = typename Layer::Scalar;

  /// Allocates what calls within the limits need.
  Workspace(const Layer& layer, const Limits& limits)
      : owned_(layer.workspace_bytes(limits)), limits_(Layer::complete(limits)), shape_(layer.shape()) {
    lay_out(layer, owned_.data());
  }

  /// Uses the caller's memory, which outlives the workspace: at least layer.workspace_bytes(limits) bytes on a 64-byte
  /// boundary; less is a ShapeError with both numbers.
  Workspace(const Layer& layer, const Limits& limits, std::span<std::byte> memory)
      : limits_(Layer::complete(limits)), shape_(layer.shape()) {
    const Index needed = layer.workspace_bytes(limits);
    if (static_cast<Index>(memory.size()) < needed)
      detail::raise<ShapeError>("Workspace: the memory has ", memory.size(), " bytes, the limits need ", needed);
    if (reinterpret_cast<std::uintptr_t>(memory.data()) % detail::alignment != 0)
      detail::raise<ShapeError>("Workspace: the memory lies ",
                                reinterpret_cast<std::uintptr_t>(memory.data()) % detail::alignment,
                                " bytes past a boundary of ", detail::alignment);
    lay_out(layer, memory.data());
  }

  const Limits& limits() const { return limits_; }
  const Shape& shape() const { return shape_; }
  const kernel::WorkspaceMemory<Scalar>& memory() const { return memory_; }

 private:
  void lay_out(const Layer& layer, std::byte* memory) {
    detail::Arena arena(memory);
    memory_ = kernel::take_workspace<Scalar>(arena, layer.plan(), limits_);
  }

  detail::AlignedBytes owned_;
  Limits limits_;
  Shape shape_;
  kernel::WorkspaceMemory<Scalar> memory_;
};

template <class Layer>
Workspace(const Layer&, const Limits&) -> Workspace<Layer>;

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
