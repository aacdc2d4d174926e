// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gated_attention/core/storage.hpp"
#include "gated_attention/math/packet.hpp"

#if defined(EIGEN_VECTORIZE_AVX512) || defined(EIGEN_VECTORIZE_AVX2)
#include <immintrin.h>
#endif

// Packets of numbers that are stored in fewer bits than they are computed in, widened in registers.

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Packets that lie lane by lane in one. bfloat16 under float lies in pairs: of every two packets, word i holds lane i of
/// the first in its lower half and lane i of the second in its upper, so that a shift gives the one and a mask the
/// other. Everything else lies in order, and so does that where there are no packets of words.
template <class Scalar, class Stored>
inline constexpr Index packets_together =
    std::is_same_v<Scalar, float> && std::is_same_v<Stored, bfloat16> && lanes<Scalar> > 1 && HasWordPacket<Scalar>
        ? 2
        : 1;

/// Lanes that a row of stored numbers is a multiple of.
template <class Scalar, class Stored>
inline constexpr Index stored_lanes = packets_together<Scalar, Stored> * lanes<Scalar>;

/// Where element i of a row lies.
template <class Scalar, class Stored>
constexpr Index stored_place(Index i) {
  if constexpr (packets_together<Scalar, Stored> == 1) {
    return i;
  } else {
    const Index in_pair = i % (2 * lanes<Scalar>);
    return i - in_pair + 2 * (in_pair % lanes<Scalar>) + in_pair / lanes<Scalar>;
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace packet {

/// Stored numbers in order, as a packet.
template <class Scalar, class Stored>
GATED_ATTENTION_INLINE Packet<Scalar> load_widened(const Stored* from) {
  if constexpr (std::is_same_v<Scalar, float> && std::is_same_v<Stored, std::int8_t>) {
#if defined(EIGEN_VECTORIZE_AVX512)
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(EIGEN_VECTORIZE_AVX2)
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
  }
  if constexpr (std::is_same_v<Scalar, float> && std::is_same_v<Stored, half>) {
#if defined(EIGEN_VECTORIZE_AVX512)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(EIGEN_VECTORIZE_AVX2) && defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  }
  Scalar buffer[static_cast<std::size_t>(lanes<Scalar>)];
  for (Index i = 0; i < lanes<Scalar>; ++i) buffer[i] = detail::widened<Scalar>(from[i]);
  return load<Scalar>(buffer);
}

/// Packet j of the row of stored numbers at `row`, which starts where packets that lie together do.
template <class Scalar, class Stored>
GATED_ATTENTION_INLINE Packet<Scalar> load_stored(const Stored* row, Index j) {
  if constexpr (std::is_same_v<Scalar, Stored>) {
    return load<Scalar>(row + j * lanes<Scalar>);
  } else if constexpr (packets_together<Scalar, Stored> == 2) {
    const Packet<Scalar> words =
        load<Scalar>(reinterpret_cast<const float*>(row + j / 2 * 2 * lanes<Scalar>));
    if (j % 2 != 0)
      return Eigen::internal::pand(words, broadcast<Scalar>(std::bit_cast<float>(0xffff0000U)));
    return std::bit_cast<Packet<Scalar>>(shift_left<16>(std::bit_cast<WordPacket<Scalar>>(words)));
  } else {
    return load_widened<Scalar>(row + j * lanes<Scalar>);
  }
}

}  // namespace packet

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
