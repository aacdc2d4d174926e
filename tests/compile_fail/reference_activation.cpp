// SPDX-License-Identifier: MIT
// expect: the reference needs your activation's value in double: give it static double reference(double z)
#include "gated_attention/gated_attention.hpp"
#include "gated_attention/reference/reference.hpp"

using namespace gated_attention;

struct Itself {
  template <class Scalar>
  static Packet<Scalar> value(const Packet<Scalar>& z) {
    return z;
  }
  template <class Scalar>
  static Packet<Scalar> derivative(const Packet<Scalar>&) {
    return packet::broadcast<Scalar>(Scalar(1));
  }
};

const double value = reference::activation<Itself>(1);
