// SPDX-License-Identifier: MIT
// Which kv head a query head reads, and which rows of the weights a head's gate.
#include "bug/copying_layer.hpp"
#include "gated_attention/io/packing.hpp"

namespace gated_attention::test {
namespace {

// onnx/onnx#7274; apple/axlearn#842; ekzhang/jax-js#180: V = {10, 20}
TEST(HeadsBug, AKvHeadServesNeighbouringQueryHeads) {
  const AttendShape heads{.query_heads = 4, .kv_heads = 2, .head_dim = 1};
  const auto layer = copying_layer<float>(heads, Causal{});
  const std::vector<float> y = layer.forward({{0, 0, 0, 0, 0, 0, 10, 20}});
  EXPECT_EQ(y, (std::vector<float>{10, 10, 20, 20}));
  EXPECT_NE(y, (std::vector<float>{10, 20, 10, 20}));

  const Attend<float, Causal> attend(heads);
  const std::vector<float> q(4), k(2), v = {10, 20};
  EXPECT_EQ(
      run_attend(attend,
                 {.q = {q.data(), 1, 4, 1}, .k = {k.data(), 1, 2, 1}, .v = {v.data(), 1, 2, 1}}),
      y);
}

TEST(HeadsBug, NormsAndGatesFollowTheirHead) {
  // Hkv = 2: values {10, 20}; the gate's logit of head h is h
  const auto layer = copying_layer<double>({.query_heads = 4, .kv_heads = 2, .head_dim = 1},
                                           Causal{}, Gate<at::Sdpa, Add, Identity>{});
  EXPECT_EQ(layer.forward({{0, 0, 0, 0, 0, 0, 10, 20, 0, 1, 2, 3}}),
            (std::vector<double>{10, 11, 22, 23}));
}

// keras-team/keras#23081; ggml-org/llama.cpp#21732 (at compile time: compile_fail/static_shape_heads.cpp)
TEST(HeadsBug, QueryHeadsThatAreNoMultipleOfKvHeadsAreRefused) {
  const auto expect_both_numbers = [](const auto& make, const std::string& function) {
    try {
      make();
      ADD_FAILURE() << "accepted";
    } catch (const ShapeError& error) {
      EXPECT_EQ(error.what(), function + ": query_heads is 6, not a multiple of kv_heads, 4");
    }
  };
  expect_both_numbers(
      [] {
        compose<float>({.model_dim = 8, .query_heads = 6, .kv_heads = 4, .head_dim = 2}, Causal{});
      },
      "GatedAttention");
  expect_both_numbers(
      [] { Attend<float, Causal>(AttendShape{.query_heads = 6, .kv_heads = 4, .head_dim = 2}); },
      "Attend");
}

// llmmanorg/llmman#16; NeuraLegion/shainet#199; local-inference-lab/vllm#454: rows of query and gate taken apart as
// another layer packs them. E = 1, x = 1, D = 1, Hq = 4, Hkv = 2, packed row i holds i.
std::vector<double> gate_scores(QueryPacking packing) {
  const auto layer = compose<double>(
      {.model_dim = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 1}, Gate<at::Sdpa>{});
  Parameters parameters(layer);
  const std::vector<double> packed = {0, 1, 2, 3, 4, 5, 6, 7};
  split_query({packing, 4, 2, 1, 1}, MatrixView<const double>(packed.data(), 8, 1),
              parameters["q_proj.weight"], parameters["sdpa_gate.weight"]);
  const auto weights = pack(layer, parameters);
  Workspace workspace(layer, {.tokens = 1, .threads = 1});
  std::vector<double> y(1), scores(4);
  const double x = 1;
  layer.forward({.x = {&x, 1, 1}}, weights, workspace, {y.data(), 1, 1},
                {.gate_scores = {.sdpa = {scores.data(), 1, 4, 1}}});
  return scores;
}

TEST(HeadsBug, GateRowsArePackedPerQueryHeadOrPerGroup) {
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  const std::vector<double> per_head = gate_scores(QueryPacking::PerQueryHead);
  expect_near(per_head, {.731059, .952574, .993307, .999089}, 5e-7);
  EXPECT_TRUE(differs(per_head, {sigmoid(4), sigmoid(5), sigmoid(6), sigmoid(7)}, 1e-3));
  expect_near(gate_scores(QueryPacking::PerKvGroup),
              {sigmoid(2), sigmoid(3), sigmoid(6), sigmoid(7)}, 1e-12);
}

}  // namespace
}  // namespace gated_attention::test
