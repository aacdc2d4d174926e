// SPDX-License-Identifier: MIT
#include "cover/trial.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "unit/reference_support.hpp"

namespace gated_attention::inline GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {
GATED_ATTENTION_COVER_KERNELS(, float)
GATED_ATTENTION_COVER_KERNELS(, double)
}  // namespace kernel
}  // namespace gated_attention::inline GATED_ATTENTION_INSTRUCTION_SET

namespace gated_attention::cover {
namespace {

using support::at;
using support::not_numbers;
using support::relative_error;

// Bounds. Sums here have at most 150 terms; each rounds once, so a sum of n terms is off by about
// √n · 2⁻²⁴ of its size, and a layer is three such sums, an exponential and a few stages behind one
// another: some 1e-6 in float, and of a probability as much for each unit of its score. The largest
// errors of all trials, printed at the end, are a third of the bounds; a wrong formula moves the
// results by percents. In double everything is 5e8 times smaller.
template <class Scalar>
constexpr double tolerance(double in_float) {
  return std::is_same_v<Scalar, float> ? in_float : 1e-12;
}

}  // namespace

std::string shortened(const char* type_text) {
  const std::string_view function = type_text;
  std::string name(function.substr(function.find("T = ") + 4));
  name.resize(name.find_last_of("];"));
  for (const std::string_view noise : {"gated_attention::", "StageList", "Basic"})
    for (auto at = name.find(noise); at != std::string::npos; at = name.find(noise, at))
      name.erase(at, noise.size());
  return name;
}

template <class Scalar>
WorstErrors& worst_errors() {
  static WorstErrors errors;
  return errors;
}

template <class Scalar>
Trial<Scalar>::Trial(const reference::Description& layer, Parameters<Scalar>& parameters,
                     const Situation& situation, const char* type_text, const std::string& remark)
    : type_text_(type_text),
      remark_(remark),
      shape_(layer.shape),
      scoring_{.visible = layer.visible, .stages = layer.score_stages},
      lengths_(situation.lengths),
      inputs_(layer, situation) {
  std::mt19937_64 engine(7);
  support::draw(parameters, engine);
  const reference::Inputs inputs = reference::inputs_of(inputs_.batch());
  score_inputs_ = inputs.scores;
  score_inputs_.resize(lengths_.size());
  expected_ = reference::forward(layer, reference::tensors_of(parameters), inputs);
  const Index tokens = inputs.x.tokens, rows = tokens * shape_.query_heads;
  given_ = {Rows<Scalar>(tokens, shape_.model_dim),
            not_numbers<Scalar>(rows * shape_.value_width()), not_numbers<Scalar>(rows),
            not_numbers<Scalar>(rows)};
  for (std::size_t p = 0; p < 5; ++p)
    scores_[p] = not_numbers<Scalar>(static_cast<Index>(expected_.gate_scores[p].values.size()));
}

template <class Scalar>
Results<Scalar> Trial<Scalar>::results() {
  const auto scores = [this](std::size_t p) {
    const reference::Tensor& like = expected_.gate_scores[p];
    return scores_[p].empty()
               ? HeadsView<Scalar>()
               : HeadsView<Scalar>(scores_[p].data(), like.tokens, like.heads, like.width);
  };
  const Index tokens = given_.y.count, heads = shape_.query_heads;
  return {.attention = {given_.attention.data(), tokens, heads, shape_.value_width()},
          .log_sum_exp = {given_.log_sum_exp.data(), tokens, heads},
          .first_token_attention = {given_.first_token.data(), tokens, heads},
          .gate_scores = {scores(0), scores(1), scores(2), scores(3), scores(4)}};
}

template <class Scalar>
void Trial<Scalar>::compare() {
  WorstErrors& worst = worst_errors<Scalar>();
  const auto expect = [&](const char* what, const std::vector<Scalar>& given,
                          const reference::Tensor& expected, double& so_far, double in_float) {
    const double error = relative_error(given, expected.values);
    EXPECT_LE(error, tolerance<Scalar>(in_float))
        << what << " of " << name() << " in "
        << (std::is_same_v<Scalar, float> ? "float" : "double");
    so_far = std::max(so_far, error);
  };
  std::vector<Scalar> y;
  for (Index t = 0; t < given_.y.count; ++t) {
    Scalar* const row = given_.y.row(t);
    y.insert(y.end(), row, row + shape_.model_dim);
    for (Index c = 0; c < gap; ++c)
      EXPECT_TRUE(std::isnan(row[shape_.model_dim + c]))
          << name() << " wrote behind row " << t << " of y";
  }
  expect("y", y, expected_.y, worst.y, 7e-6);
  expect("attention", given_.attention, expected_.attention, worst.attention, 1e-5);
  expect("log_sum_exp", given_.log_sum_exp, expected_.log_sum_exp, worst.log_sum_exp, 1e-5);
  expect("first_token_attention", given_.first_token, expected_.first_token_attention,
         worst.first_token, 1.5e-5);
  for (std::size_t p = 0; p < 5; ++p)
    expect("gate scores", scores_[p], expected_.gate_scores[p], worst.gate_scores, 3e-6);
  const Index width = shape_.value_width();
  for (std::size_t row = 0; row < given_.log_sum_exp.size(); ++row) {
    if (expected_.log_sum_exp.values[row] != -support::infinity) continue;
    const Scalar* const values = given_.attention.data() + row * at(width);
    EXPECT_TRUE(std::all_of(values, values + width, [](Scalar x) { return x == 0; }))
        << "a row of " << name() << " sees nothing and is not zero";
  }
  first_ = given_;
  forget();
}

template <class Scalar>
void Trial<Scalar>::forget() {
  for (std::vector<Scalar>* const values :
       {&given_.y.values, &given_.attention, &given_.log_sum_exp, &given_.first_token})
    *values = not_numbers<Scalar>(static_cast<Index>(values->size()));
}

template <class Scalar>
Batch<Scalar> Trial<Scalar>::batch_beside_context() const {
  Batch<Scalar> batch = inputs_.batch();
  batch.context = {};
  batch.context_lengths = batch.context_positions = {};
  return batch;
}

template <class Scalar>
Results<Scalar> Trial<Scalar>::results_beside_context() {
  Results<Scalar> all = results();
  return {.attention = all.attention, .log_sum_exp = all.log_sum_exp};
}

template <class Scalar>
void Trial<Scalar>::compare_prepared() {
  const auto expect = [&](const char* what, const std::vector<Scalar>& now,
                          const std::vector<Scalar>& before) {
    EXPECT_TRUE(support::same_bits(now.data(), before.data(), static_cast<Index>(now.size())))
        << what << " of " << name() << " with a prepared context";
  };
  expect("y", given_.y.values, first_.y.values);
  expect("attention", given_.attention, first_.attention);
  expect("log_sum_exp", given_.log_sum_exp, first_.log_sum_exp);
  forget();
}

template <class Scalar>
Index Trial<Scalar>::compare_unread() const {
  const Index heads = shape_.query_heads, width = shape_.value_width();
  Index first = 0, unread = 0, changed = 0;
  const auto changes = [](const std::vector<Scalar>& now, const std::vector<Scalar>& before,
                          Index row, Index stride, Index count) {
    return !support::same_bits(now.data() + row * stride, before.data() + row * stride, count);
  };
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    const Index length = lengths_[i], keys = inputs_.key_lengths()[i];
    const Index key = Inputs<Scalar>::poisoned_key(keys);
    for (Index t = 0; t < length; ++t) {
      if (keys == 0 || (!inputs_.is_cross() && t == key)) continue;
      const Index position = scoring_.visible.top_left ? t : t + keys - length;
      bool reads = false;
      for (Index h = 0; h < heads; ++h) {
        const bool head_reads = support::sees(scoring_, score_inputs_[i], h, t, position, key);
        reads = reads || head_reads;
        if (head_reads) continue;
        const Index row = (first + t) * heads + h;
        changed += changes(given_.attention, first_.attention, row, width, width) +
                   changes(given_.log_sum_exp, first_.log_sum_exp, row, 1, 1) +
                   changes(given_.first_token, first_.first_token, row, 1, 1);
      }
      if (reads) continue;
      ++unread;
      changed += changes(given_.y.values, first_.y.values, first + t, shape_.model_dim + gap,
                         shape_.model_dim);
    }
    first += length;
  }
  EXPECT_EQ(changed, 0) << "rows of " << name() << " that do not see a key changed with it";
  return unread;
}

void run_all(const std::vector<Case>& cases, std::size_t expected) {
  std::set<std::string> names;
  for (const Case& one : cases) {
    names.insert(one.type_text);
    ASSERT_NO_THROW(one.run()) << shortened(one.type_text);
  }
  EXPECT_EQ(cases.size(), expected);
  EXPECT_EQ(names.size(), expected) << "two combinations are the same";
}

template class Trial<float>;
template class Trial<double>;

namespace {

/// Tells how far from the bounds the whole program stayed.
class ReportErrors : public testing::Environment {
 public:
  void TearDown() override {
    report<float>("float");
    report<double>("double");
  }

 private:
  template <class Scalar>
  static void report(const char* scalar) {
    const WorstErrors& worst = worst_errors<Scalar>();
    std::printf(
        "largest errors in %s: y %.1e, attention %.1e, log_sum_exp %.1e, first token %.1e, "
        "gate scores %.1e\n",
        scalar, worst.y, worst.attention, worst.log_sum_exp, worst.first_token, worst.gate_scores);
  }
};

[[maybe_unused]] testing::Environment* const report_errors =
    testing::AddGlobalTestEnvironment(new ReportErrors);

}  // namespace
}  // namespace gated_attention::cover
