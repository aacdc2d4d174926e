// SPDX-License-Identifier: MIT
// What a result may not depend on: strides, what scratch held before, how many rows and threads run with it.
#include "bitwise/running_layer.hpp"

namespace gated_attention::test {
namespace {

/// Rows of [heads, width] with `gap` NaN behind each row of a head.
template <class Scalar>
std::vector<Scalar> spread(const std::vector<Scalar>& packed, Index width, Index gap) {
  std::vector<Scalar> wide;
  for (std::size_t i = 0; i < packed.size(); i += static_cast<std::size_t>(width)) {
    wide.insert(wide.end(), packed.begin() + static_cast<Index>(i),
                packed.begin() + static_cast<Index>(i) + width);
    wide.insert(wide.end(), static_cast<std::size_t>(gap), nan<Scalar>);
  }
  return wide;
}

// pytorch/pytorch#187504, #187506; ROCm/pytorch#3230; torch-spyre#4331; FlagGems#5896: strided rows read as packed ones.
// (An inner stride is no view: compile_fail/view_inner_stride.cpp.)
TEST(BitsBug, RowsMayHaveGaps) {
  constexpr Index tokens = 9, keys = 70, heads = 4, kv_heads = 2, dim = 6, gap = 3;
  const Attend<float, Causal> attend({.query_heads = heads, .kv_heads = kv_heads, .head_dim = dim});
  const auto q = normal_numbers<float>(tokens * heads * dim, 1),
             k = normal_numbers<float>(keys * kv_heads * dim, 2),
             v = normal_numbers<float>(keys * kv_heads * dim, 3);
  const auto wide_q = spread(q, dim, gap), wide_k = spread(k, dim, gap),
             wide_v = spread(v, dim, gap);
  const auto heads_of = [](const std::vector<float>& values, Index rows, Index count, Index step) {
    return HeadsView<const float>(values.data(), rows, count, dim, count * step, step);
  };
  const auto packed = run_attend(attend, {.q = heads_of(q, tokens, heads, dim),
                                          .k = heads_of(k, keys, kv_heads, dim),
                                          .v = heads_of(v, keys, kv_heads, dim)});
  const auto strided = run_attend(attend, {.q = heads_of(wide_q, tokens, heads, dim + gap),
                                           .k = heads_of(wide_k, keys, kv_heads, dim + gap),
                                           .v = heads_of(wide_v, keys, kv_heads, dim + gap)});
  EXPECT_TRUE(same_bits(packed, strided));

  const auto running = causal_layer();
  const Index width = running.model_dim();
  const auto x = running.input(tokens), wide_x = spread(x, width, gap);
  std::vector<float> y(x.size());
  Workspace workspace(running.layer, {.tokens = tokens, .threads = 1});
  running.layer.forward({.x = {wide_x.data(), tokens, width, width + gap}}, running.weights,
                        workspace, {y.data(), tokens, width});
  EXPECT_TRUE(same_bits(running.forward(x), y));
}

// google/gemma.cpp#608: what was left in the scratch enters the softmax
TEST(BitsBug, ScratchMayHoldAnything) {
  const auto running = window_layer();
  constexpr Index tokens = 100;
  const auto x = running.input(tokens), wanted = running.forward(x);
  const Limits limits{.tokens = tokens, .threads = 1};
  const detail::AlignedBytes memory(running.layer.workspace_bytes(limits));
  for (const double content : {nan<double>, 1e30, 0.0}) {
    Workspace workspace(running.layer, limits,
                        {memory.data(), static_cast<std::size_t>(memory.size())});
    std::fill_n(reinterpret_cast<double*>(memory.data()),
                memory.size() / static_cast<Index>(sizeof(double)), content);
    std::vector<double> y(x.size());
    running.layer.forward({.x = {x.data(), tokens, running.model_dim()}}, running.weights,
                          workspace, {y.data(), tokens, running.model_dim()});
    EXPECT_TRUE(same_bits(wanted, y)) << "full of " << content;
  }
}

// ml-explore/mlx#3573; ggml-org/llama.cpp#4479, #22956; openvino#30482: another path from so many rows or threads on
TEST(BitsBug, ATokenDoesNotDependOnHowManyRunWithIt) {
  const auto running = causal_layer();
  const auto x = running.input(40), whole = running.forward(x);
  for (Index tokens = 1; tokens <= 40; ++tokens) {
    const auto cut = running.rows(x, 0, tokens);
    const auto y = running.forward({cut.begin(), cut.end()});
    EXPECT_TRUE(same_bits(running.rows(whole, 0, 1), running.rows(y, 0, 1))) << tokens << " tokens";
  }
  for (Index threads = 2; threads <= 7; ++threads)
    EXPECT_TRUE(same_bits(whole, running.forward(x, {}, threads))) << threads << " threads";
}

// pytorch/pytorch#176091: wrong from the 33rd key on. All logits 0, V = 0, 1, …: the mean is (S − 1)/2
TEST(BitsBug, TheThirtyThirdKeyCounts) {
  for (const Index keys : {31, 32, 33, 34, 64, 65}) {
    std::vector<float> values;
    for (Index s = 0; s < keys; ++s) values.push_back(static_cast<float>(s));
    expect_near(attend_with_equal_logits<float>(Causal{}, 1, values),
                {0.5 * static_cast<double>(keys - 1)}, 1e-5);
  }
}

}  // namespace
}  // namespace gated_attention::test
