// SPDX-License-Identifier: MIT
// expect: an activation has no value or derivative on packets of the layer's scalar: make both
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

struct HalfOfIt {
  template <class Scalar>
  requires std::is_same_v<Scalar, float>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(0.5)), z);
  }
  template <class Scalar>
  requires std::is_same_v<Scalar, float>
  static Packet<Scalar> derivative(const Packet<Scalar>&) {
    return packet::broadcast<Scalar>(Scalar(0.5));
  }
};

const auto layer = compose<double>(
    {.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, Gate<at::Sdpa, HalfOfIt>{});
