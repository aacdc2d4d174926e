// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "gated_attention/layer/gated_attention.hpp"
#include "gated_attention/reference/description.hpp"

// One layer against the reference. What does not depend on the layer's type is compiled once, in
// trial.cpp, the kernels too: a combination costs what its type costs.

namespace gated_attention::inline GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

#define GATED_ATTENTION_COVER_KERNELS(prefix, Scalar)        \
  prefix template void project<Scalar>(const Call<Scalar>&); \
  prefix template void prepare<Scalar>(const Call<Scalar>&); \
  prefix template void attend<Scalar>(const Call<Scalar>&);  \
  prefix template void output<Scalar>(const Call<Scalar>&);

GATED_ATTENTION_COVER_KERNELS(extern, float)
GATED_ATTENTION_COVER_KERNELS(extern, double)

}  // namespace kernel
}  // namespace gated_attention::inline GATED_ATTENTION_INSTRUCTION_SET

namespace gated_attention::cover {

/// The type as the compiler writes it, with more around it; `shortened` leaves the type without the
/// library's namespaces.
template <class T>
constexpr const char* type_text() {
  return __PRETTY_FUNCTION__;
}
std::string shortened(const char* type_text);

/// What a layer is run on.
struct Situation {
  std::vector<Index> lengths = {6, 0, 3};
  std::vector<Index> positions = {};
  Index threads = 1;
};

/// The worst errors of all trials of a program, each relative to the largest magnitude of the
/// tensor.
struct WorstErrors {
  double y = 0, attention = 0, log_sum_exp = 0, first_token = 0, gate_scores = 0;
};
template <class Scalar>
WorstErrors& worst_errors();

/// Parameters and x drawn from a seed, what the reference makes of them, and memory for what the
/// layer makes of them: between NaN, in rows with gaps.
template <class Scalar>
class Trial {
 public:
  Trial(const reference::Description& layer, Parameters<Scalar>& parameters,
        const Situation& situation);

  Limits limits() const;
  Batch<Scalar> batch() const;
  MatrixView<Scalar> y();
  Results<Scalar> results();

  /// Expects every result near the reference's; a failure names the layer's type and the remark.
  void compare(const char* type_text, const std::string& remark);

 private:
  Shape shape_;
  Situation situation_;
  reference::Tensor x_;
  std::vector<Scalar> x_values_, y_, attention_, log_sum_exp_, first_token_, scores_[5];
  Index tokens_ = 0;
  std::vector<Position> gated_;
  reference::Tensor expected_y_, expected_attention_, expected_log_sum_exp_, expected_first_token_;
  reference::Tensor expected_scores_[5];
};

extern template class Trial<float>;
extern template class Trial<double>;

/// Runs a layer and the reference on one situation.
template <class Layer>
void check_layer(const Layer& layer, const Situation& situation, const std::string& remark = "") {
  using Scalar = typename Layer::Scalar;
  Parameters<Scalar> parameters(layer);
  Trial<Scalar> trial(reference::describe(layer), parameters, situation);
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, trial.limits());
  layer.forward(trial.batch(), weights, workspace, trial.y(), trial.results());
  trial.compare(type_text<typename Layer::Stages>(), remark);
}

/// One generated combination.
struct Case {
  const char* type_text;
  void (*run)();
};

/// Runs every case; there are `expected` of them, all different.
void run_all(const std::vector<Case>& cases, std::size_t expected);

}  // namespace gated_attention::cover
