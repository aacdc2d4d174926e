// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "gated_attention/math/packet.hpp"
#include "gated_attention/policy/score_functions.hpp"

// What a user may bring: an activation, a source of gate logits and a function of scores, each with its form in double
// for the reference.

namespace gated_attention::own {

/// s = z³/8
struct CubicEighth {
  template <class Scalar>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    const Packet<Scalar> eighth = packet::broadcast<Scalar>(Scalar(0.125));
    return packet::mul(packet::mul(z, eighth), packet::mul(z, z));
  }
  template <class Scalar>
  static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(0.375)), packet::mul(z, z));
  }
  static double reference(double z) { return z * z * z / 8; }
};

/// The squares of a row, and a 1 behind them.
struct Squares {
  static constexpr bool is_gate_source = true;
  static constexpr Index features(Index model_dim) { return model_dim + 1; }
  template <class Scalar>
  static void read(const Scalar* row, Index model_dim, Scalar* features) {
    for (Index i = 0; i < model_dim; ++i) features[i] = row[i] * row[i];
    features[model_dim] = 1;
  }
};

/// s − rate·|t − s'|, and −∞ beyond `reach` keys before the query
struct Fading {
  double rate = 0.25;
  double reach = 1e9;

  template <class Scalar>
  Packet<Scalar> operator()(const ScorePlace<Scalar>& place, const Packet<Scalar>& score) const {
    const auto all = [](double x) { return packet::broadcast<Scalar>(static_cast<Scalar>(x)); };
    const Packet<Scalar> before =
        packet::sub(packet::broadcast<Scalar>(place.position), place.keys);
    const Packet<Scalar> faded = packet::madd(all(-rate), packet::abs(before), score);
    return packet::select_less(all(reach), before, all(-masked), faded);
  }
  double reference(Index, Index position, Index key, double score) const {
    const double before = static_cast<double>(position - key);
    return before > reach ? -masked : score - rate * std::abs(before);
  }

 private:
  static constexpr double masked = std::numeric_limits<double>::infinity();
};

}  // namespace gated_attention::own
