// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/analysis/probe.hpp"

namespace gated_attention::bench {
using namespace gated_attention::analysis;  // NOLINT: the probes are part of every benchmark
}  // namespace gated_attention::bench
