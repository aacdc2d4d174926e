// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/layer/parameters.hpp"
#include "gated_attention/reference/formulas.hpp"

// Numbers for layers that are compared with the reference, and the comparison.

namespace gated_attention::support {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

inline std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

/// `count` numbers from N(0, deviation²).
template <class Scalar>
std::vector<Scalar> normal_numbers(Index count, std::mt19937_64& engine, double deviation = 1) {
  std::normal_distribution<double> normal;
  std::vector<Scalar> numbers(at(count));
  for (Scalar& x : numbers) x = static_cast<Scalar>(deviation * normal(engine));
  return numbers;
}

template <class Scalar>
std::vector<Scalar> not_numbers(Index count) {
  return std::vector<Scalar>(at(count), std::numeric_limits<Scalar>::quiet_NaN());
}

/// Weights that keep rows near unit size, logits spread over about ±2, norm weights around 1.
template <class Scalar>
void draw(Parameters<Scalar>& parameters, std::mt19937_64& engine) {
  std::normal_distribution<double> normal;
  for (const TensorInfo& tensor : parameters.tensors()) {
    const bool projects = tensor.rows > 1 && !tensor.name.ends_with(".logits");
    const double deviation = projects ? 1 / std::sqrt(static_cast<double>(tensor.columns)) : 0.5;
    Scalar* const values = parameters[tensor.name].data();
    for (Index i = 0; i < tensor.count(); ++i)
      values[i] += static_cast<Scalar>(deviation * normal(engine));
  }
}

/// max |given − expected| / max |expected|; infinite where only one of them is finite.
template <class Scalar>
double relative_error(const std::vector<Scalar>& given, const std::vector<double>& expected) {
  if (given.size() != expected.size()) return infinity;
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double value = static_cast<double>(given[i]);
    if (value == expected[i]) continue;
    if (!std::isfinite(value) || !std::isfinite(expected[i])) return infinity;
    error = std::max(error, std::abs(value - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error == 0 ? 0 : error / largest;
}

template <class Scalar>
bool same_bits(const Scalar* a, const Scalar* b, Index count) {
  return std::memcmp(a, b, at(count) * sizeof(Scalar)) == 0;
}

/// Whether a query sees a key, by the mask and by what the stages make of its score.
inline bool sees(const reference::Scoring& scoring, const reference::ScoreInputs& inputs,
                 Index head, Index token, Index position, Index key) {
  return scoring.visible(position, key, inputs.prefix) &&
         reference::staged_score(scoring, inputs, head, token, position, key, 0) != -infinity;
}

/// What a ShapeError of the call says.
template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace gated_attention::support
