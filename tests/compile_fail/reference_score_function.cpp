// SPDX-License-Identifier: MIT
// expect: the reference needs your function of scores in double: give it double reference(Index head, Index position
#include "gated_attention/gated_attention.hpp"
#include "gated_attention/reference/reference.hpp"

using namespace gated_attention;

struct AsItIs {
  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>&, const Packet<Scalar>& score) const {
    return score;
  }
};

const auto layer = compose<float>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Score<AsItIs>{});
const auto description = reference::describe(layer);
