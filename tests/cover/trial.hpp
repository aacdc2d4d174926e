// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "cover/inputs.hpp"
#include "gated_attention/layer/gated_attention.hpp"
#include "gated_attention/reference/reference.hpp"

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

/// The worst errors of all trials of a program, each relative to the largest magnitude of the
/// tensor.
struct WorstErrors {
  double y = 0, attention = 0, log_sum_exp = 0, first_token = 0, gate_scores = 0;
};
template <class Scalar>
WorstErrors& worst_errors();

/// Parameters and a batch drawn from a seed, what the reference makes of them, and memory for what
/// the layer makes of them, filled with NaN. A failure names the layer's type and the remark.
template <class Scalar>
class Trial {
 public:
  Trial(const reference::Description& layer, Parameters<Scalar>& parameters,
        const Situation& situation, const char* type_text, const std::string& remark);

  Limits limits() const { return inputs_.limits(); }
  Batch<Scalar> batch() const { return inputs_.batch(); }
  MatrixView<Scalar> y() { return given_.y.view(); }
  Results<Scalar> results();

  /// Expects every result near the reference's, and exact zeros for rows that see no key.
  void compare();

  // Further calls of the same layer, each against what the one before `compare` has given.

  /// The batch and the results where the context was prepared before.
  Batch<Scalar> batch_beside_context() const;
  Results<Scalar> results_beside_context();
  /// Expects the same bits.
  void compare_prepared();

  /// Not-a-number and infinities in one key's row of every sequence.
  void poison() { inputs_.poison(); }
  /// Expects the same bits in all rows that do not see that key. Returns how many rows those are.
  Index compare_unread() const;

 private:
  struct Outputs {
    Rows<Scalar> y;
    std::vector<Scalar> attention, log_sum_exp, first_token;
  };

  void forget();  ///< what was given
  std::string name() const { return shortened(type_text_) + remark_; }

  const char* type_text_;
  std::string remark_;
  Shape shape_;
  reference::Scoring scoring_;
  std::vector<Index> lengths_;
  Inputs<Scalar> inputs_;
  std::vector<reference::ScoreInputs> score_inputs_;
  reference::Result expected_;
  Outputs given_, first_;
  std::vector<Scalar> scores_[5];
};

extern template class Trial<float>;
extern template class Trial<double>;

/// Runs a layer and the reference on one situation.
template <class Layer>
void check_layer(const Layer& layer, const Situation& situation) {
  using Scalar = typename Layer::Scalar;
  Parameters<Scalar> parameters(layer);
  Trial<Scalar> trial(reference::describe(layer), parameters, situation,
                      type_text<typename Layer::Stages>(), "");
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, trial.limits());
  layer.forward(trial.batch(), weights, workspace, trial.y(), trial.results());
  trial.compare();
}

/// The same, then with the context prepared before, then with numbers that are not finite in rows of
/// keys. Returns how many rows did not see those.
template <class Layer>
Index check_layer_and_what_it_reads(const Layer& layer, const Situation& situation,
                                    const std::string& remark) {
  using Scalar = typename Layer::Scalar;
  Parameters<Scalar> parameters(layer);
  Trial<Scalar> trial(reference::describe(layer), parameters, situation,
                      type_text<typename Layer::Stages>(), remark);
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, trial.limits());
  layer.forward(trial.batch(), weights, workspace, trial.y(), trial.results());
  trial.compare();
  if (layer.shape().is_cross()) {
    Context context(layer, {.tokens = workspace.limits().context_tokens,
                            .sequences = workspace.limits().sequences});
    layer.prepare_context(trial.batch(), weights, workspace, context);
    layer.forward(trial.batch_beside_context(), weights, context, workspace, trial.y(),
                  trial.results_beside_context());
    trial.compare_prepared();
  }
  trial.poison();
  layer.forward(trial.batch(), weights, workspace, trial.y(), trial.results());
  return trial.compare_unread();
}

/// One generated combination.
struct Case {
  const char* type_text;
  void (*run)();
};

/// Runs every case; there are `expected` of them, all different.
void run_all(const std::vector<Case>& cases, std::size_t expected);

}  // namespace gated_attention::cover
