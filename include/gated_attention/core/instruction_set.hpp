// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>

#include "gated_attention/core/config.hpp"

// Code and packed layouts belong to the instruction set they were compiled for: all that holds either lies in
// `inline namespace GATED_ATTENTION_INSTRUCTION_SET`, so that translation units of different sets link side by side and
// cannot hand each other packed objects. Eigen's own inline functions are outside its reach: a program that mixes sets
// keeps Eigen's usual hazard there.
#if defined(EIGEN_VECTORIZE_AVX512)
#define GATED_ATTENTION_VECTORS avx512
#elif defined(EIGEN_VECTORIZE_AVX2)
#define GATED_ATTENTION_VECTORS avx2
#elif defined(EIGEN_VECTORIZE_AVX)
#define GATED_ATTENTION_VECTORS avx
#elif defined(EIGEN_VECTORIZE_SSE4_1)
#define GATED_ATTENTION_VECTORS sse4
#elif defined(EIGEN_VECTORIZE_SSE)
#define GATED_ATTENTION_VECTORS sse2
#elif defined(EIGEN_VECTORIZE_NEON)
#define GATED_ATTENTION_VECTORS neon
#elif defined(EIGEN_VECTORIZE)
#define GATED_ATTENTION_VECTORS vectors
#else
#define GATED_ATTENTION_VECTORS scalar
#endif

#if defined(EIGEN_VECTORIZE_FMA) || defined(__FMA__)
#define GATED_ATTENTION_MULTIPLY_ADD _fma
#else
#define GATED_ATTENTION_MULTIPLY_ADD
#endif

#if defined(_OPENMP)
#define GATED_ATTENTION_THREADING
#else
#define GATED_ATTENTION_THREADING _serial
#endif

#define GATED_ATTENTION_JOIN_TOKENS(a, b, c) a##b##c
#define GATED_ATTENTION_JOIN(a, b, c) GATED_ATTENTION_JOIN_TOKENS(a, b, c)
#define GATED_ATTENTION_TEXT_OF_TOKEN(a) #a
#define GATED_ATTENTION_TEXT(a) GATED_ATTENTION_TEXT_OF_TOKEN(a)

/// avx512_fma, avx2_fma, sse2, neon, …, with `_serial` where OpenMP is off.
#define GATED_ATTENTION_INSTRUCTION_SET                                          \
  GATED_ATTENTION_JOIN(GATED_ATTENTION_VECTORS, GATED_ATTENTION_MULTIPLY_ADD, \
                       GATED_ATTENTION_THREADING)

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The name of the instruction set this translation unit's kernels use.
inline constexpr const char* instruction_set = GATED_ATTENTION_TEXT(GATED_ATTENTION_INSTRUCTION_SET);

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
