// SPDX-License-Identifier: MIT
#include "gated_attention/paper.hpp"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>
#include <utility>

namespace gated_attention {
namespace {

/// What a row adds to the parameters of the 24 layers of 15A2B; its layer has the shape given.
template <class Layer>
constexpr Index added(const Layer*, const Shape& shape = paper::shape_15a2b) {
  using Baseline = decltype(paper::baseline());
  return 24 * (Layer::parameter_count(shape) - Baseline::parameter_count(paper::shape_15a2b));
}

/// A null pointer to what a row's function returns: the row's type, without a layer.
template <class Row>
constexpr auto* type_of(Row) {
  return static_cast<std::invoke_result_t<Row>*>(nullptr);
}

constexpr auto baseline = type_of([] { return paper::baseline(); });
constexpr auto more_kv_heads = type_of([] { return paper::more_kv_heads(); });
constexpr auto more_query_heads = type_of([] { return paper::more_query_heads(); });
constexpr auto sdpa_elementwise = type_of([] { return paper::sdpa_elementwise(); });
constexpr auto value_elementwise = type_of([] { return paper::value_elementwise(); });
constexpr auto key_elementwise = type_of([] { return paper::key_elementwise(); });
constexpr auto query_elementwise = type_of([] { return paper::query_elementwise(); });
constexpr auto output_elementwise = type_of([] { return paper::output_elementwise(); });
constexpr auto sdpa_headwise = type_of([] { return paper::sdpa_headwise(); });
constexpr auto value_headwise = type_of([] { return paper::value_headwise(); });
constexpr auto sdpa_head_shared = type_of([] { return paper::sdpa_head_shared(); });
constexpr auto value_head_shared = type_of([] { return paper::value_head_shared(); });
constexpr auto sdpa_additive_silu = type_of([] { return paper::sdpa_additive_silu(); });
constexpr auto sdpa_silu_gate = type_of([] { return paper::sdpa_silu_gate(); });
constexpr auto sdpa_norm = type_of([] { return paper::sdpa_norm(); });
constexpr auto sdpa_silu = type_of([] { return paper::sdpa_silu(); });
constexpr auto sdpa_additive_identity = type_of([] { return paper::sdpa_additive_identity(); });
constexpr auto sdpa_input_independent = type_of([] { return paper::sdpa_input_independent(); });
constexpr auto sdpa_non_sparse_sigmoid = type_of([] { return paper::sdpa_non_sparse_sigmoid(); });

// Table 1: the rows of "+M params", exactly and as printed (in millions, to the last digit).

struct PrintedRow {
  int row;
  Index added;
  Index exact;
  double millions;
  double last_digit;
};

constexpr Index query_gate = Index{24} * 2048 * 4096;
constexpr Index value_gate = Index{24} * 2048 * 512;

constexpr std::array table_1 = {
    PrintedRow{1, added(baseline), 0, 0, 1},
    PrintedRow{2, added(more_kv_heads, paper::shape_15a2b_k8), 2 * value_gate, 50, 1},
    PrintedRow{3, added(more_query_heads, paper::shape_15a2b_q48), query_gate, 201, 1},
    PrintedRow{5, added(sdpa_elementwise), query_gate, 201, 1},
    PrintedRow{6, added(value_elementwise), value_gate, 25, 1},
    PrintedRow{7, added(key_elementwise), value_gate, 25, 1},
    PrintedRow{8, added(query_elementwise), query_gate, 201, 1},
    PrintedRow{9, added(output_elementwise), Index{24} * 2048 * 2048, 100, 1},
    PrintedRow{10, added(sdpa_headwise), 24 * 2048 * 32, 1.6, 0.1},
    PrintedRow{11, added(value_headwise), 24 * 2048 * 4, 0.2, 0.1},
    PrintedRow{12, added(sdpa_head_shared), query_gate, 201, 1},
    PrintedRow{13, added(value_head_shared), value_gate, 25, 1},
    PrintedRow{14, added(sdpa_additive_silu), query_gate, 201, 1},
    PrintedRow{15, added(sdpa_silu_gate), query_gate, 201, 1},
};

/// Printed figures are rounded or cut: 100 stands for 100.66.
constexpr bool is_printed(const PrintedRow& row) {
  const double difference = static_cast<double>(row.added) / 1e6 - row.millions;
  return difference < row.last_digit && difference > -row.last_digit;
}

constexpr bool every_row(bool (*holds)(const PrintedRow&)) {
  for (const PrintedRow& row : table_1)
    if (!holds(row)) return false;
  return true;
}

static_assert(every_row([](const PrintedRow& row) { return row.added == row.exact; }));
static_assert(every_row(is_printed));
static_assert(query_gate == 201'326'592 && value_gate == 25'165'824);

// Tables 3 and 4, what Table 1 does not have: "almost no" parameters, none, and q × d learned
// logits.
static_assert(added(sdpa_norm) == 24 * 128);
static_assert(added(sdpa_silu) == 0);
static_assert(added(sdpa_additive_identity) == query_gate);
static_assert(added(sdpa_input_independent) == 24 * 32 * 128);
static_assert(added(sdpa_non_sparse_sigmoid) == query_gate);

// The stages of the rows that no count tells apart.

template <class P, class Layer, class... Stages>
constexpr bool runs(const Layer*) {
  return std::is_same_v<decltype(std::declval<const Layer&>().stages(P{})), StageList<Stages...>>;
}

template <class... Stages, class Layer>
constexpr bool runs_at_sdpa(const Layer* layer) {
  return runs<at::Sdpa, Layer, Stages...>(layer);
}

static_assert(runs_at_sdpa<>(baseline));
static_assert(runs_at_sdpa<Gate<at::Sdpa>>(sdpa_elementwise));
static_assert(runs_at_sdpa<Gate<at::Sdpa, HeadMean>>(sdpa_head_shared));
static_assert(runs_at_sdpa<Gate<at::Sdpa, Add, Silu>>(sdpa_additive_silu));
static_assert(runs_at_sdpa<Gate<at::Sdpa, Silu>>(sdpa_silu_gate));
static_assert(runs_at_sdpa<Activate<at::Sdpa, Silu>>(sdpa_silu));
static_assert(runs_at_sdpa<Gate<at::Sdpa, Add, Identity>>(sdpa_additive_identity));
static_assert(runs_at_sdpa<Gate<at::Sdpa, NonSparseSigmoid>>(sdpa_non_sparse_sigmoid));

/// Stages of the base layer at P, behind `First`.
template <class P, class... First, class Layer>
constexpr bool runs_before_norm(const Layer* layer) {
  return runs<P, Layer, First..., Normalize<P>, Rope<>>(layer);
}

static_assert(runs_before_norm<at::Query>(baseline));
static_assert(runs_before_norm<at::Key>(baseline));
static_assert(runs_before_norm<at::Query, Gate<at::Query>>(query_elementwise));
static_assert(runs_before_norm<at::Key, Gate<at::Key>>(key_elementwise));

TEST(Paper, RowsHaveTheirShape) {
  EXPECT_EQ(paper::baseline().shape(), paper::shape_15a2b);
  EXPECT_EQ(paper::more_kv_heads().shape(), paper::shape_15a2b_k8);
  EXPECT_EQ(paper::more_query_heads().shape(), paper::shape_15a2b_q48);
  EXPECT_EQ(paper::sdpa_elementwise<double>(paper::shape_1_7b_48_layers).shape(),
            paper::shape_1_7b_48_layers);
}

TEST(Paper, RowsHaveTheNumbersOfTheBaseLayer) {
  const auto layer = paper::sdpa_elementwise();
  const auto query = layer.stages(at::Query{});
  const auto key = layer.stages(at::Key{});
  EXPECT_EQ(double{query.first.eps}, 1e-6);
  EXPECT_EQ(double{key.first.eps}, 1e-6);
  EXPECT_EQ(double{query.rest.first.theta}, 1e4);
  EXPECT_EQ(query.rest.first.rotary_dim, 0);
  EXPECT_EQ(layer.mask().before, -1);
  EXPECT_EQ(layer.mask().after, 0);
}

/// The count of a type is what a layer of it holds.
template <class Layer>
void expect_count_is_what_parameters_hold(const Layer& layer) {
  EXPECT_EQ(static_cast<Index>(Parameters(layer).values().size()),
            Layer::parameter_count(layer.shape()));
}

TEST(Paper, ParameterCountIsWhatParametersHold) {
  constexpr Shape shape{
      .model_dim = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 5};
  expect_count_is_what_parameters_hold(paper::baseline(shape));
  expect_count_is_what_parameters_hold(paper::sdpa_elementwise(shape));
  expect_count_is_what_parameters_hold(paper::value_headwise(shape));
  expect_count_is_what_parameters_hold(paper::value_head_shared(shape));
  expect_count_is_what_parameters_hold(paper::output_elementwise(shape));
  expect_count_is_what_parameters_hold(paper::sdpa_norm(shape));
  expect_count_is_what_parameters_hold(paper::sdpa_input_independent(shape));
}

}  // namespace
}  // namespace gated_attention
