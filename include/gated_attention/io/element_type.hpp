// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "gated_attention/core/index.hpp"
#include "gated_attention/core/storage.hpp"

namespace gated_attention {

/// What a stored element is. Floating types up to F64 can be read as numbers; the others are known
/// by their size, so that a file that holds them opens.
enum class ElementType : std::uint8_t {
  F64,
  F32,
  F16,
  BF16,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool,
  F8E4M3,
  F8E5M2,
  F8E8M0,
  C64,
};

namespace detail {

struct ElementTypeEntry {
  ElementType type;
  std::string_view name;  ///< as safetensors spells it
  Index size;             ///< bytes
};

inline constexpr ElementTypeEntry element_types[] = {
    {ElementType::F64, "F64", 8},        {ElementType::F32, "F32", 4},
    {ElementType::F16, "F16", 2},        {ElementType::BF16, "BF16", 2},
    {ElementType::I64, "I64", 8},        {ElementType::I32, "I32", 4},
    {ElementType::I16, "I16", 2},        {ElementType::I8, "I8", 1},
    {ElementType::U64, "U64", 8},        {ElementType::U32, "U32", 4},
    {ElementType::U16, "U16", 2},        {ElementType::U8, "U8", 1},
    {ElementType::Bool, "BOOL", 1},      {ElementType::F8E4M3, "F8_E4M3", 1},
    {ElementType::F8E5M2, "F8_E5M2", 1}, {ElementType::F8E8M0, "F8_E8M0", 1},
    {ElementType::C64, "C64", 8},
};

}  // namespace detail

/// The name that safetensors gives the type.
constexpr std::string_view name_of(ElementType type) {
  return detail::element_types[static_cast<std::size_t>(type)].name;
}

/// Bytes of one element.
constexpr Index size_of(ElementType type) {
  return detail::element_types[static_cast<std::size_t>(type)].size;
}

constexpr std::optional<ElementType> element_type_named(std::string_view name) {
  for (const detail::ElementTypeEntry& entry : detail::element_types)
    if (entry.name == name) return entry.type;
  return std::nullopt;
}

/// Whether elements can be read as float or double.
constexpr bool is_floating(ElementType type) {
  return type == ElementType::F64 || type == ElementType::F32 || type == ElementType::F16 ||
         type == ElementType::BF16;
}

namespace detail {

/// The unsigned number that lies at `source` in little-endian order, at any alignment.
template <class Unsigned>
Unsigned load_little(const std::byte* source) {
  Unsigned bits;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&bits, source, sizeof(bits));
  } else {
    std::byte reversed[sizeof(bits)];
    std::reverse_copy(source, source + sizeof(bits), reversed);
    std::memcpy(&bits, reversed, sizeof(bits));
  }
  return bits;
}

/// out[i] = the i-th of `count` elements at `source`, of a floating type, at any alignment. Exact
/// but for F64 → float, which rounds to nearest.
template <std::floating_point Scalar>
void widen(ElementType type, const std::byte* source, Index count, Scalar* out) {
  for (Index i = 0; type == ElementType::F64 && i < count; ++i)
    out[i] = static_cast<Scalar>(std::bit_cast<double>(load_little<std::uint64_t>(source + 8 * i)));
  for (Index i = 0; type == ElementType::F32 && i < count; ++i)
    out[i] = std::bit_cast<float>(load_little<std::uint32_t>(source + 4 * i));
  for (Index i = 0; type == ElementType::F16 && i < count; ++i)
    out[i] = float_from_f16(load_little<std::uint16_t>(source + 2 * i));
  for (Index i = 0; type == ElementType::BF16 && i < count; ++i)
    out[i] = float_from_bf16(load_little<std::uint16_t>(source + 2 * i));
}

}  // namespace detail
}  // namespace gated_attention
