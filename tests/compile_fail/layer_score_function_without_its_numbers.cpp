// SPDX-License-Identifier: MIT
// expect: a stage of this layer has numbers and was given none: pass its value behind the
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

struct Raised {
  double by;

  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>&, const Packet<Scalar>& score) const {
    return packet::add(score, packet::broadcast<Scalar>(static_cast<Scalar>(by)));
  }
};

const GatedAttention<float, Score<Raised>> layer(Shape{
    .model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16});
