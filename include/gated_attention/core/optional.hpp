// SPDX-License-Identifier: MIT
#pragma once

namespace gated_attention {

/// A number of a stage that may be left out. Unlike std::optional it always holds a T, so that copying a stage copies
/// nothing unwritten (which g++ 12 warns of in its user's code).
template <class T>
class Optional {
 public:
  constexpr Optional() = default;
  constexpr Optional(const T& value) : value_(value), given_(true) {}  // NOLINT: written as a T

  constexpr explicit operator bool() const { return given_; }
  constexpr const T& operator*() const { return value_; }
  constexpr const T* operator->() const { return &value_; }
  constexpr T* operator->() { return &value_; }
  constexpr T value_or(const T& other) const { return given_ ? value_ : other; }

 private:
  T value_{};
  bool given_ = false;
};

}  // namespace gated_attention
