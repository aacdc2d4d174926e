// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include "gated_attention/math/functions.hpp"

// Activations of gates, by name. A built-in one is a tag, the same type under every instruction
// set; its code on packets lies with the instruction set. Kernels call one entry for both kinds:
// packet::activate and packet::activate_derivative.

namespace gated_attention {

/// s = σ(z) = 1 / (1 + e^−z)
struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
};

/// s = z·σ(z)
struct Silu {
  static constexpr std::string_view name = "silu";
};

/// s = 1/2 + σ(z)/2: the paper's gate that cannot close.
struct NonSparseSigmoid {
  static constexpr std::string_view name = "non_sparse_sigmoid";
};

/// s = z
struct Identity {
  static constexpr std::string_view name = "identity";
};

/// s = tanh(z)
struct Tanh {
  static constexpr std::string_view name = "tanh";
};

/// s = ln(1 + e^z)
struct Softplus {
  static constexpr std::string_view name = "softplus";
};

/// s = 2·σ(z): 1 where the logit is 0.
struct TwiceSigmoid {
  static constexpr std::string_view name = "twice_sigmoid";
};

namespace detail {

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

template <class T, class Scalar>
concept ActsOnPackets = requires {
  &T::template value<Scalar>;
  &T::template derivative<Scalar>;
};

}  // namespace detail

template <class T>
concept BuiltInActivation =
    detail::OneOf<T, Sigmoid, Silu, NonSparseSigmoid, Identity, Tanh, Softplus, TwiceSigmoid>;

/// A built-in activation, or a type of the user's with s = value(z) and ds/dz = derivative(z) on
/// packets of float, of double or of both:
///
///     struct Cubic {                                          // s = z³
///       template <class Scalar>
///       static Packet<Scalar> value(const Packet<Scalar>& z) { return packet::mul(z,
///       packet::mul(z, z)); } template <class Scalar> static Packet<Scalar> derivative(const
///       Packet<Scalar>& z) {
///         return packet::mul(packet::broadcast<Scalar>(Scalar(3)), packet::mul(z, z));
///       }
///       static double reference(double z) { return z * z * z; }    // optional
///     };
///
/// Lanes past the end of a row hold anything: they may give anything, but must not trap.
/// `reference` is what gated_attention::reference uses for the activation; without it the type
/// cannot be used there. A program whose translation units use several instruction sets declares
/// such a type in `inline namespace GATED_ATTENTION_INSTRUCTION_SET` of a namespace of its own.
template <class T>
concept Activation =
    BuiltInActivation<T> || detail::ActsOnPackets<T, float> || detail::ActsOnPackets<T, double>;

/// An activation of the user's that says its value in double.
template <class T>
concept ReferenceActivation = Activation<T> && requires(double z) {
  { T::reference(z) } -> std::same_as<double>;
};

inline namespace GATED_ATTENTION_INSTRUCTION_SET {
namespace kernel {

/// The code of an activation: a user's type has it itself.
template <class T>
struct ActivationCode : T {};

template <>
struct ActivationCode<Sigmoid> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::sigmoid<Scalar>(z);
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::sigmoid_derivative<Scalar>(z);
  }
};

template <>
struct ActivationCode<Silu> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::silu<Scalar>(z);
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::silu_derivative<Scalar>(z);
  }
};

template <>
struct ActivationCode<NonSparseSigmoid> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    const Packet<Scalar> half = packet::broadcast<Scalar>(Scalar(0.5));
    return packet::madd(half, packet::sigmoid<Scalar>(z), half);
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(0.5)),
                       packet::sigmoid_derivative<Scalar>(z));
  }
};

template <>
struct ActivationCode<Identity> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    return z;
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>&) {
    return packet::broadcast<Scalar>(Scalar(1));
  }
};

template <>
struct ActivationCode<Tanh> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::tanh<Scalar>(z);
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::tanh_derivative<Scalar>(z);
  }
};

template <>
struct ActivationCode<Softplus> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::softplus<Scalar>(z);
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::sigmoid<Scalar>(z);
  }
};

template <>
struct ActivationCode<TwiceSigmoid> {
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> value(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(2)), packet::sigmoid<Scalar>(z));
  }
  template <class Scalar>
  GATED_ATTENTION_INLINE static Packet<Scalar> derivative(const Packet<Scalar>& z) {
    return packet::mul(packet::broadcast<Scalar>(Scalar(2)), packet::sigmoid_derivative<Scalar>(z));
  }
};

}  // namespace kernel

namespace packet {

/// s = A(z), lane by lane.
template <Activation A, class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> activate(const Packet<Scalar>& z) {
  return kernel::ActivationCode<A>::template value<Scalar>(z);
}

/// ds/dz of s = A(z), lane by lane.
template <Activation A, class Scalar>
GATED_ATTENTION_INLINE Packet<Scalar> activate_derivative(const Packet<Scalar>& z) {
  return kernel::ActivationCode<A>::template derivative<Scalar>(z);
}

}  // namespace packet
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
