// SPDX-License-Identifier: MIT
// The target asks for C++20 where the parent's default is older.
#include "gated_attention/core/version.hpp"

static_assert(__cplusplus >= 202002L);

int first_unit() { return GATED_ATTENTION_VERSION_MAJOR; }
int second_unit() { return 0; }
