// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "gated_attention/core/index.hpp"

namespace gated_attention {
namespace detail {

/// Every buffer starts on a cache line, whatever the packet width.
inline constexpr Index alignment = 64;

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{alignment}); }
};

/// Memory on a 64-byte boundary with one owner; nothing is constructed in it. Movable, not copyable.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(Index size)
      : memory_(static_cast<std::byte*>(
            ::operator new(static_cast<std::size_t>(size), std::align_val_t{alignment}))),
        size_(size) {}

  std::byte* data() const { return memory_.get(); }
  Index size() const { return size_; }

 private:
  std::unique_ptr<std::byte, FreeAligned> memory_;
  Index size_ = 0;
};

/// Hands out pieces of a piece of memory in order, each on a cache line. Started from null it only counts, so that the
/// same lines that lay a workspace out also say how large it must be.
class Arena {
 public:
  constexpr Arena() = default;
  explicit Arena(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(Index count) {
    const Index at = used_;
    used_ += round_up(checked_product(count, static_cast<Index>(sizeof(T)), "Arena::take"), alignment);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }

  Index used() const { return used_; }

 private:
  std::byte* memory_ = nullptr;
  Index used_ = 0;
};

}  // namespace detail
}  // namespace gated_attention
