// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

// Types that numbers are stored in where they are many and read once: caches and weights. All
// arithmetic is in the layer's scalar; reading rounds nothing, writing rounds to nearest even.

namespace gated_attention {

namespace detail {

/// bfloat16 → float, exact: the bits are the upper half of the float's.
constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// float → bfloat16, to nearest even; beyond the largest infinity; a NaN stays a NaN.
constexpr std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// IEEE half → float, exact; a NaN keeps its sign and payload.
///   normal (-1)^s 2^(e-15) (1 + m/1024), subnormal (-1)^s 2^-24 m
constexpr float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t rebiased = exponent == 0x1fU ? 0xffU : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (rebiased << 23) | (mantissa << 13));
}

/// float → IEEE half, to nearest even; beyond 65504 infinity; a NaN stays a NaN.
constexpr std::uint16_t f16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
  const auto half = [sign](std::uint32_t rest) { return static_cast<std::uint16_t>(sign | rest); };
  if (magnitude > 0x7f800000U) return half(0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x47800000U) return half(0x7c00U);  // from 65536 on
  if (magnitude < 0x33000000U) return half(0);         // below half of the least subnormal
  // The significand with its leading 1, and how far it moves: 13 bits, more where it is subnormal.
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
  const std::uint32_t move = exponent >= 113U ? 13U : 126U - exponent;
  const std::uint32_t kept = significand >> move, rest = significand & ((1U << move) - 1U);
  const std::uint32_t middle = 1U << (move - 1U);
  const std::uint32_t up = rest > middle || (rest == middle && (kept & 1U) != 0U) ? 1U : 0U;
  // A normal's leading 1 adds one to the exponent, and so does a carry out of the fraction.
  return half((exponent >= 113U ? (exponent - 113U) << 10 : 0U) + kept + up);
}

}  // namespace detail

/// The upper half of a float: 8 bits of exponent, 8 of precision.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  constexpr explicit bfloat16(float value) : bits(detail::bf16_from_float(value)) {}
  constexpr explicit operator float() const { return detail::float_from_bf16(bits); }
  friend constexpr bool operator==(bfloat16 a, bfloat16 b) = default;
};

/// IEEE binary16: 5 bits of exponent, 11 of precision, largest 65504.
struct half {
  std::uint16_t bits = 0;

  half() = default;
  constexpr explicit half(float value) : bits(detail::f16_from_float(value)) {}
  constexpr explicit operator float() const { return detail::float_from_f16(bits); }
  friend constexpr bool operator==(half a, half b) = default;
};

/// Names the type that a cache or packed weights store: stored_as<bfloat16>.
template <class T>
struct StoredAs {
  using Type = T;
};
template <class T>
inline constexpr StoredAs<T> stored_as{};

namespace detail {

/// Whether weights of a layer of Scalar may be stored as T.
template <class T, class Scalar>
inline constexpr bool stores_weights = std::is_same_v<T, Scalar> || std::is_same_v<T, float> ||
                                       std::is_same_v<T, bfloat16> || std::is_same_v<T, half>;

/// Whether keys and values may: int8 has a scale per token and head, which weights have not.
template <class T, class Scalar>
inline constexpr bool stores_keys = stores_weights<T, Scalar> || std::is_same_v<T, std::int8_t>;

/// A stored number as a scalar, exact; and a scalar as a stored number, to nearest even.
template <class Scalar, class Stored>
constexpr Scalar widened(Stored value) {
  if constexpr (std::is_same_v<Stored, bfloat16> || std::is_same_v<Stored, half>)
    return static_cast<Scalar>(static_cast<float>(value));
  else
    return static_cast<Scalar>(value);
}

/// double → half or bfloat16 rounds once: by way of a float that is rounded to odd.
constexpr float rounded_to_odd(double value) {
  const float near = static_cast<float>(value);
  if (static_cast<double>(near) == value || near != near) return near;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(near);
  if ((bits & 1U) != 0U) return near;
  // By the sign of the value: what is nearest to a small one may be −0.
  const bool away = value < 0 ? static_cast<double>(near) < value : static_cast<double>(near) > value;
  return std::bit_cast<float>(away ? bits - 1U : bits + 1U);
}

template <class Stored, class Scalar>
constexpr Stored narrowed(Scalar value) {
  if constexpr (std::is_same_v<Stored, bfloat16> || std::is_same_v<Stored, half>) {
    if constexpr (std::is_same_v<Scalar, double>)
      return Stored(rounded_to_odd(value));
    else
      return Stored(static_cast<float>(value));
  } else {
    return static_cast<Stored>(value);
  }
}

}  // namespace detail
}  // namespace gated_attention
