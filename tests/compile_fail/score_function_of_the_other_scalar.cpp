// SPDX-License-Identifier: MIT
// expect: a function of scores cannot be called on the layer's scalar: give it template <class Scalar> Packet<Scalar>
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

struct AsItIs {
  Packet<double> operator()(const ScorePlace<double>&, const Packet<double>& score) const {
    return score;
  }
};

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Score<AsItIs>{});
