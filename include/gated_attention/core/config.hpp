// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/core/version.hpp"

// A row that sees no key is told by a score of minus infinity, which -ffinite-math-only assumes away.
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ && \
    !defined(GATED_ATTENTION_ALLOW_FINITE_MATH)
#error \
    "gated_attention relies on infinities: compile without -ffast-math / -ffinite-math-only (or define GATED_ATTENTION_ALLOW_FINITE_MATH and give up masked rows)"
#endif

/// Unrolls the loop that follows completely: its trip count is a constant and its body names registers.
#if defined(__clang__)
#define GATED_ATTENTION_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define GATED_ATTENTION_UNROLL _Pragma("GCC unroll 64")
#else
#define GATED_ATTENTION_UNROLL
#endif

#if defined(__GNUC__) || defined(__clang__)
#define GATED_ATTENTION_INLINE inline __attribute__((always_inline))
#define GATED_ATTENTION_NO_INLINE __attribute__((noinline))
#else
#define GATED_ATTENTION_INLINE inline
#define GATED_ATTENTION_NO_INLINE
#endif

/// A function that is called when something is wrong: kept out of its callers.
#if defined(__GNUC__) || defined(__clang__)
#define GATED_ATTENTION_COLD __attribute__((noinline, cold))
#else
#define GATED_ATTENTION_COLD
#endif
