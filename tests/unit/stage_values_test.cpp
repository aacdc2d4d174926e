// SPDX-License-Identifier: MIT
#include "gated_attention/layer/attend.hpp"
#include "unit/layer_support.hpp"

// Which stages' values a type that names them can do without: those without numbers, and those all of
// whose numbers have defaults. (The others do not compile: tests/compile_fail.)

namespace gated_attention::layers {
namespace {

/// s ← −s: a function without numbers.
struct Negated {
  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>&, const Packet<Scalar>& score) const {
    return packet::negate(score);
  }
};

constexpr Shape shape{.model_dim = 12, .query_heads = 3, .kv_heads = 1, .head_dim = 4};

template <class Layer>
std::vector<float> forward(const Layer& layer) {
  std::mt19937_64 engine(5);
  const std::vector<float> x = normal_numbers<float>(9 * shape.model_dim, engine);
  const auto weights = pack(layer, drawn(Parameters(layer)));
  Workspace workspace(layer, {.tokens = 9, .threads = 1});
  std::vector<float> y(x.size());
  layer.forward({.x = {x.data(), 9, shape.model_dim}}, weights, workspace,
                {y.data(), 9, shape.model_dim});
  return y;
}

TEST(StageValues, OfAlibiWithItsDefaultSlopesNeedNotBeGivenToALayer) {
  const std::vector<float> given = forward(compose<float>(shape, Softcap{.cap = 2}, Alibi{}));
  const GatedAttention<float, Softcap, Alibi> left_out(shape, Softcap{.cap = 2});
  const GatedAttention<float, Static<shape>, Softcap, Alibi> fixed(Softcap{.cap = 2});
  EXPECT_EQ(forward(left_out), given);
  EXPECT_EQ(forward(fixed), given);
  EXPECT_NE(forward(compose<float>(shape, Softcap{.cap = 2})), given);
}

TEST(StageValues, OfAFunctionWithoutNumbersNeedNotBeGivenToALayer) {
  const GatedAttention<float, Score<Negated>> left_out(shape);
  EXPECT_EQ(forward(left_out), forward(compose<float>(shape, Score<Negated>{})));
  EXPECT_NE(forward(left_out), forward(compose<float>(shape)));
}

TEST(StageValues, OfAlibiWithItsDefaultSlopesNeedNotBeGivenToAttend) {
  std::mt19937_64 engine(6);
  const std::vector<double> q = normal_numbers<double>(5 * 3 * 4, engine);
  const std::vector<double> k = normal_numbers<double>(5 * 4, engine);
  const auto attend = [&](const auto& layer) {
    AttendWorkspace workspace(layer, {.tokens = 5, .keys = 5, .threads = 1});
    std::vector<double> out(q.size());
    layer({.q = {q.data(), 5, 3, 4}, .k = {k.data(), 5, 1, 4}, .v = {k.data(), 5, 1, 4}}, workspace,
          {out.data(), 5, 3, 4});
    return out;
  };
  const AttendShape heads{.query_heads = 3, .kv_heads = 1, .head_dim = 4};
  EXPECT_EQ(attend(Attend<double, Alibi>(heads)), attend(Attend<double, Alibi>(heads, Alibi{})));
  EXPECT_NE(attend(Attend<double, Alibi>(heads)), attend(Attend<double>(heads)));
}

}  // namespace
}  // namespace gated_attention::layers
