// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cover/gates.hpp"
#include "gated_attention/policy/row_functions.hpp"

// The row functions of every gate against the formula, alone: widths with tails of every kind,
// padding behind a row that must influence nothing, logits that end where they end.

namespace gated_attention::cover {
namespace {

/// A gate as the row functions see it.
template <class Scalar>
struct RowGate {
  const char* type_text;
  typename RowStage<Scalar>::Run run;
  void (*activate)(const Scalar* logits, Index count, Scalar* scores);
  double (*formula)(double);
  bool elementwise, shared, averaged, adds, constant;
};

template <class Scalar, class G>
RowGate<Scalar> row_gate() {
  return {cover::type_text<G>(),
          kernel::row_function<Scalar, G>(),
          &kernel::activate_logits<Scalar, typename G::activation>,
          &reference::activation<typename G::activation>,
          std::is_same_v<typename G::granularity, Elementwise>,
          std::is_same_v<typename G::sharing, SharedHeads>,
          std::is_same_v<typename G::sharing, HeadMean>,
          std::is_same_v<typename G::combine, Add>,
          std::is_same_v<typename G::source, Constant>};
}

/// Rows and logits of one token: `heads` heads of `width` channels.
template <class Scalar>
struct Token {
  Index heads, width, stride;
  std::vector<Scalar> rows, logits;

  Token(const RowGate<Scalar>& gate, Index head_count, Index head_width, std::mt19937_64& engine)
      : heads(head_count),
        width(head_width),
        stride(detail::round_up(head_width, lanes<Scalar>)),
        rows(static_cast<std::size_t>(head_count * stride),
             std::numeric_limits<Scalar>::quiet_NaN()),
        logits(static_cast<std::size_t>((gate.shared || gate.averaged ? 1 : head_count) *
                                        (gate.elementwise ? head_width : 1))) {
    std::normal_distribution<double> normal(0, 3);
    for (Scalar& logit : logits) logit = static_cast<Scalar>(normal(engine));
    for (Index h = 0; h < heads; ++h)
      for (Index c = 0; c < width; ++c)
        rows.data()[h * stride + c] = static_cast<Scalar>(normal(engine));
  }
};

/// The largest error of one gate on one token in units of the last place of the larger of the
/// terms. Heads are run two at a time, as a tile has them.
template <class Scalar>
double gate_error(const RowGate<Scalar>& gate, const Token<Scalar>& token) {
  const Index columns = gate.elementwise ? token.width : 1;
  const Index head_stride = gate.shared || gate.averaged ? 0 : columns;
  // Exactly as long as the logits: a sanitizer sees what reads past them.
  const std::vector<Scalar> logits = token.logits;
  std::vector<Scalar> rows = token.rows;
  RowStage<Scalar> stage;
  stage.run = gate.run;
  stage.width = token.width;
  stage.logits_head_stride = head_stride;
  if (gate.constant) stage.parameter = logits.data();
  RowPlace<Scalar> place;
  if (!gate.constant) place.gate_logits = logits.data();
  for (place.first_head = 0; place.first_head < token.heads; place.first_head += 2)
    gate.run(stage, rows.data() + place.first_head * token.stride,
             std::min(Index{2}, token.heads - place.first_head), token.stride, place);
  double worst = 0;
  for (Index h = 0; h < token.heads; ++h)
    for (Index c = 0; c < token.width; ++c) {
      const double y = static_cast<double>(token.rows.data()[h * token.stride + c]);
      const double z =
          static_cast<double>(token.logits.data()[h * head_stride + (gate.elementwise ? c : 0)]);
      // Averaged scores come in as scores.
      const double s = gate.averaged ? z : gate.formula(z);
      const double expected = gate.adds ? y + s : y * s;
      const double size = gate.adds ? std::max(std::abs(y), std::abs(s)) : std::abs(expected);
      const double given = static_cast<double>(rows.data()[h * token.stride + c]);
      if (!std::isfinite(given)) return std::numeric_limits<double>::infinity();
      worst = std::max(
          worst, std::abs(given - expected) / (size * std::numeric_limits<Scalar>::epsilon()));
    }
  return worst;
}

/// scores = activation(logits), as `prepare` makes averaged scores and as scores are recorded.
template <class Scalar>
double score_error(const RowGate<Scalar>& gate, const Token<Scalar>& token) {
  std::vector<Scalar> scores(token.logits.size());
  gate.activate(token.logits.data(), static_cast<Index>(scores.size()), scores.data());
  double worst = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double expected = gate.formula(static_cast<double>(token.logits[i]));
    const double error = std::abs(static_cast<double>(scores[i]) - expected);
    worst = std::max(worst, error / (std::abs(expected) * std::numeric_limits<Scalar>::epsilon()));
  }
  return worst;
}

template <class Scalar, class P>
void check_rows(std::size_t expected_count) {
  std::vector<RowGate<Scalar>> gates;
  for_each_gate<P>([&]<class G>() { gates.push_back(row_gate<Scalar, G>()); });
  std::set<std::string_view> types;
  for (const RowGate<Scalar>& gate : gates) types.insert(gate.type_text);
  ASSERT_EQ(types.size(), expected_count);
  for (const RowGate<Scalar>& gate : gates) {
    std::mt19937_64 engine(11);
    for (const Index width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 47, 64, 80, 129}) {
      const Token<Scalar> token(gate, 5, width, engine);
      ASSERT_LE(gate_error(gate, token), 8) << shortened(gate.type_text) << " on rows of " << width;
      ASSERT_LE(score_error(gate, token), 8)
          << shortened(gate.type_text) << " on rows of " << width;
    }
  }
}

template <class P>
void check_rows_at() {
  check_rows<float, P>(gate_count<P>);
  check_rows<double, P>(gate_count<P>);
}

TEST(CoverGateRows, EveryGateAtQueryIsItsFormula) {
  check_rows_at<at::Query>();
}
TEST(CoverGateRows, EveryGateAtKeyIsItsFormula) {
  check_rows_at<at::Key>();
}
TEST(CoverGateRows, EveryGateAtValueIsItsFormula) {
  check_rows_at<at::Value>();
}
TEST(CoverGateRows, EveryGateAtSdpaIsItsFormula) {
  check_rows_at<at::Sdpa>();
}
TEST(CoverGateRows, EveryGateAtOutputIsItsFormula) {
  check_rows_at<at::Output>();
}

TEST(CoverGateRows, ThereAre1162GatesOfBuiltInActivations) {
  EXPECT_EQ(gate_count<at::Query> + gate_count<at::Key> + gate_count<at::Value> +
                gate_count<at::Sdpa> + gate_count<at::Output>,
            1162u);
}

}  // namespace
}  // namespace gated_attention::cover
