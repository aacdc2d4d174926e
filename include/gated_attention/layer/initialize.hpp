// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <random>

#include "gated_attention/layer/parameters.hpp"

namespace gated_attention {

/// Every projection and gate weight from N(0, deviation²), biases and constant logits 0, norm weights neutral: the
/// initialisation of the paper's published code with its deviation of 0.02. The same seed gives the same numbers with the
/// same standard library.
template <class Scalar>
void initialize(Parameters<Scalar>& parameters, std::uint64_t seed, double deviation = 0.02) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  for (const TensorInfo& tensor : parameters.tensors()) {
    if (!tensor.name.ends_with("proj.weight") && tensor.name.find("_gate") == std::string::npos) continue;
    if (!tensor.name.ends_with(".weight") && !tensor.name.ends_with(".down")) continue;
    const MatrixView<Scalar> values = parameters[tensor.name];
    for (Index i = 0; i < tensor.count(); ++i) values.data()[i] = static_cast<Scalar>(normal(engine));
  }
}

}  // namespace gated_attention
