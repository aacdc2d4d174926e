// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

namespace gated_attention {

/// A number of a stage that must be given: a stage never runs on a silent default that changes the result.
/// Leaving it out, or giving a fraction where a count is meant, does not compile.
template <class Number>
class Required {
 public:
  template <class Missing = void>
  constexpr Required() {
    constexpr bool the_number_was_given = !std::is_void_v<Missing>;
    static_assert(the_number_was_given,
                  "gated_attention: this stage has a number without a default: write it by name, as in "
                  "QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4} or SlidingWindow{.window = 512}");
  }

  template <class Given>
    requires std::is_arithmetic_v<Given>
  constexpr Required(Given value) : value_(static_cast<Number>(value)) {  // NOLINT: written as a number
    constexpr bool a_count_is_an_integer = !(std::is_integral_v<Number> && std::is_floating_point_v<Given>);
    static_assert(a_count_is_an_integer,
                  "gated_attention: this number counts something: give an integer, not a floating-point value");
  }

  constexpr operator Number() const { return value_; }  // NOLINT: read as a number

 private:
  Number value_;
};

}  // namespace gated_attention
