// SPDX-License-Identifier: MIT
// expect: a function of scores cannot be called on the layer's scalar: give it template <class Scalar> Packet<Scalar>
#include "gated_attention/gated_attention.hpp"

using namespace gated_attention;

struct Distance {
  double rate = 1;
};

const auto layer =
    compose<float>({.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                   Score<Distance>{{.rate = 0.5}});
