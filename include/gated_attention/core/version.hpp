// SPDX-License-Identifier: MIT
#pragma once

/// The library's version, in one place: the build reads these three lines.
#define GATED_ATTENTION_VERSION_MAJOR 0
#define GATED_ATTENTION_VERSION_MINOR 1
#define GATED_ATTENTION_VERSION_PATCH 0
