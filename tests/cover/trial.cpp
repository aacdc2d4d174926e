// SPDX-License-Identifier: MIT
#include "cover/trial.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "gated_attention/reference/reference.hpp"

namespace gated_attention::inline GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {
GATED_ATTENTION_COVER_KERNELS(, float)
GATED_ATTENTION_COVER_KERNELS(, double)
}  // namespace kernel
}  // namespace gated_attention::inline GATED_ATTENTION_INSTRUCTION_SET

namespace gated_attention::cover {
namespace {

constexpr Index gap = 3;  // columns of x and y behind the last

/// Weights that keep rows near unit size, logits spread over about ±2, norm weights around 1.
template <class Scalar>
void draw_parameters(Parameters<Scalar>& parameters, std::mt19937_64& engine) {
  std::normal_distribution<double> normal;
  for (const TensorInfo& tensor : parameters.tensors()) {
    const bool projects = tensor.name.ends_with(".weight") && tensor.rows > 1;
    const double deviation = projects ? 1 / std::sqrt(static_cast<double>(tensor.columns)) : 0.5;
    Scalar* const values = parameters[tensor.name].data();
    for (Index i = 0; i < tensor.count(); ++i)
      values[i] += static_cast<Scalar>(deviation * normal(engine));
  }
}

template <class Scalar>
std::vector<Scalar> not_numbers(Index count) {
  return std::vector<Scalar>(static_cast<std::size_t>(count),
                             std::numeric_limits<Scalar>::quiet_NaN());
}

/// max |given − expected| / max |expected|, and infinity where only one of them is finite.
template <class Get>
double relative_error(const reference::Tensor& expected, const Get& given) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double error = 0, largest = 0;
  for (Index t = 0; t < expected.tokens; ++t)
    for (Index h = 0; h < expected.heads; ++h)
      for (Index c = 0; c < expected.width; ++c) {
        const double wanted = expected(t, h, c), value = static_cast<double>(given(t, h, c));
        if (value == wanted) continue;
        if (!std::isfinite(value) || !std::isfinite(wanted)) return infinity;
        error = std::max(error, std::abs(value - wanted));
        largest = std::max(largest, std::abs(wanted));
      }
  return error == 0 ? 0 : error / largest;
}

// Bounds. Sums here have at most 130 terms; each rounds once, so a sum of n terms is off by about
// √n · 2⁻²⁴ of its size, and a layer is three such sums, an exponential and a few stages behind one
// another: some 1e-6 in float. The largest errors of all trials, printed at the end, are a third of
// the bounds; a wrong formula moves the results by percents. In double everything is 5e8 times
// smaller.
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
                     const Situation& situation)
    : shape_(layer.shape), situation_(situation) {
  std::mt19937_64 engine(7);
  draw_parameters(parameters, engine);
  for (const Index length : situation.lengths) tokens_ += length;
  const Index columns = shape_.model_dim;
  x_ = reference::Tensor(tokens_, 1, columns);
  x_values_ = not_numbers<Scalar>(tokens_ * (columns + gap));
  std::normal_distribution<double> normal;
  for (Index t = 0; t < tokens_; ++t)
    for (Index c = 0; c < columns; ++c) {
      const Scalar value = static_cast<Scalar>(normal(engine));
      x_(t, 0, c) = static_cast<double>(value);
      x_values_.data()[t * (columns + gap) + c] = value;
    }
  reference::Result expected = reference::forward(layer, reference::tensors_of(parameters), x_,
                                                  situation.lengths, situation.positions);
  y_ = not_numbers<Scalar>(tokens_ * (columns + gap));
  attention_ = not_numbers<Scalar>(tokens_ * shape_.query_heads * shape_.value_width());
  log_sum_exp_ = not_numbers<Scalar>(tokens_ * shape_.query_heads);
  first_token_ = log_sum_exp_;
  for (std::size_t p = 0; p < 5; ++p) {
    expected_scores_[p] = expected.gate_scores[p];
    scores_[p] = not_numbers<Scalar>(static_cast<Index>(expected_scores_[p].values.size()));
  }
  expected_y_ = std::move(expected.y);
  expected_attention_ = std::move(expected.attention);
  expected_log_sum_exp_ = std::move(expected.log_sum_exp);
  expected_first_token_ = std::move(expected.first_token_attention);
}

template <class Scalar>
Limits Trial<Scalar>::limits() const {
  return {.tokens = tokens_,
          .sequences = static_cast<Index>(situation_.lengths.size()),
          .threads = situation_.threads};
}

template <class Scalar>
Batch<Scalar> Trial<Scalar>::batch() const {
  return {.x = {x_values_.data(), tokens_, shape_.model_dim, shape_.model_dim + gap},
          .lengths = situation_.lengths,
          .positions = situation_.positions};
}

template <class Scalar>
MatrixView<Scalar> Trial<Scalar>::y() {
  return {y_.data(), tokens_, shape_.model_dim, shape_.model_dim + gap};
}

template <class Scalar>
Results<Scalar> Trial<Scalar>::results() {
  const auto scores = [this](std::size_t p) {
    const reference::Tensor& expected = expected_scores_[p];
    return scores_[p].empty() ? HeadsView<Scalar>()
                              : HeadsView<Scalar>(scores_[p].data(), expected.tokens,
                                                  expected.heads, expected.width);
  };
  return {.attention = {attention_.data(), tokens_, shape_.query_heads, shape_.value_width()},
          .log_sum_exp = {log_sum_exp_.data(), tokens_, shape_.query_heads},
          .first_token_attention = {first_token_.data(), tokens_, shape_.query_heads},
          .gate_scores = {scores(0), scores(1), scores(2), scores(3), scores(4)}};
}

template <class Scalar>
void Trial<Scalar>::compare(const char* type_text, const std::string& remark) {
  const auto name = [&] { return shortened(type_text) + remark; };
  const MatrixView<Scalar> y_view = y();
  const Results<Scalar> given = results();
  WorstErrors& worst = worst_errors<Scalar>();
  const auto expect = [&](const char* what, double error, double& so_far, double bound) {
    EXPECT_LE(error, bound) << what << " of " << name() << " in "
                            << (std::is_same_v<Scalar, float> ? "float" : "double");
    so_far = std::max(so_far, error);
  };
  expect("y", relative_error(expected_y_, [&](Index t, Index, Index c) { return y_view(t, c); }),
         worst.y, tolerance<Scalar>(4e-6));
  expect("attention", relative_error(expected_attention_, given.attention), worst.attention,
         tolerance<Scalar>(4e-6));
  expect("log_sum_exp",
         relative_error(expected_log_sum_exp_,
                        [&](Index t, Index h, Index) { return given.log_sum_exp(t, h); }),
         worst.log_sum_exp, tolerance<Scalar>(4e-6));
  expect("first_token_attention",
         relative_error(expected_first_token_,
                        [&](Index t, Index h, Index) { return given.first_token_attention(t, h); }),
         worst.first_token, tolerance<Scalar>(4e-6));
  const GateScores<Scalar>& scores = given.gate_scores;
  const HeadsView<Scalar> views[] = {scores.query, scores.key, scores.value, scores.sdpa,
                                     scores.output};
  for (std::size_t p = 0; p < 5; ++p)
    if (!scores_[p].empty())
      expect("gate scores", relative_error(expected_scores_[p], views[p]), worst.gate_scores,
             tolerance<Scalar>(2e-6));
  for (Index t = 0; t + 1 < tokens_; ++t)
    for (Index c = 0; c < gap; ++c)
      EXPECT_TRUE(std::isnan(y_view.row(t)[shape_.model_dim + c]))
          << name() << " wrote behind row " << t << " of y";
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
