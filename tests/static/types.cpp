// SPDX-License-Identifier: MIT
// What the types promise: compiling is passing.
#include <type_traits>

#include "gated_attention/gated_attention.hpp"
#include "gated_attention/paper.hpp"

namespace gated_attention {
namespace {

// Types outside the instruction set's namespace have one layout under every set of flags; the numbers are those of a
// machine with 64-bit pointers.
template <class T, std::size_t size, std::size_t alignment>
constexpr bool laid_out() {
  return sizeof(void*) != 8 ||
         (sizeof(T) == size && alignof(T) == alignment && std::is_trivially_copyable_v<T>);
}
static_assert(std::is_signed_v<Index> && sizeof(Index) == sizeof(void*));
static_assert(laid_out<Shape, 48, 8>());
static_assert(laid_out<AttendShape, 32, 8>());
static_assert(laid_out<KeyBounds, 56, 8>());
static_assert(laid_out<Limits, 32, 8>());
static_assert(laid_out<AttendSize, 32, 8>());
static_assert(laid_out<MatrixView<float>, 32, 8>());
static_assert(laid_out<MatrixView<const double>, 32, 8>());
static_assert(laid_out<HeadsView<float>, 48, 8>());
static_assert(laid_out<HeadsView<const double>, 48, 8>());
static_assert(laid_out<Batch<float>, 176, 8>());
static_assert(laid_out<Batch<double>, 176, 8>());
static_assert(laid_out<GateScores<float>, 240, 8>());
static_assert(laid_out<Results<float>, 352, 8>());
static_assert(laid_out<Results<double>, 352, 8>());
static_assert(laid_out<AttendBatch<float>, 360, 8>());
static_assert(laid_out<AttendResults<float>, 160, 8>());
static_assert(laid_out<Yarn, 88, 8>());
static_assert(laid_out<Rope<>, 128, 8>());
static_assert(laid_out<SlidingWindow, 8, 8>());
static_assert(laid_out<StreamingWindow, 24, 8>());
static_assert(laid_out<bfloat16, 2, 2>() && laid_out<half, 2, 2>());
static_assert(laid_out<CacheLimits, 16, 8>() && laid_out<RingLimits, 16, 8>());
static_assert(laid_out<PageLimits, 16, 8>());
static_assert(laid_out<Normalize<at::Query>, 8, 8>());
static_assert(laid_out<QkNorm<>, 8, 8>());
static_assert(laid_out<Scale<at::Query>, 8, 8>());
static_assert(sizeof(Parameters<float>) == sizeof(Parameters<double>));

// Stages without numbers are empty values.
static_assert(std::is_empty_v<Causal> && std::is_empty_v<Bidirectional> &&
              std::is_empty_v<Gate<at::Sdpa>> && std::is_empty_v<Activate<at::Sdpa, Silu>> &&
              std::is_empty_v<ProjectionBias<at::Query>>);
static_assert(std::is_trivially_copyable_v<Gate<at::Sdpa>> && std::is_trivially_copyable_v<Causal>);

// A gate is one type, however it is written.
using Canonical = Gate<at::Sdpa>;
static_assert(
    std::is_same_v<Canonical,
                   Gate<at::Sdpa, Elementwise, PerHead, Multiply, Sigmoid, FromHidden, NoBias>>);
static_assert(
    std::is_same_v<Canonical,
                   Gate<at::Sdpa, NoBias, FromHidden, Sigmoid, Multiply, PerHead, Elementwise>>);
static_assert(std::is_same_v<Canonical, Gate<at::Sdpa, Sigmoid>>);
static_assert(
    std::is_same_v<Gate<at::Value, Headwise, Silu, Add>, Gate<at::Value, Add, Silu, Headwise>>);
static_assert(
    std::is_same_v<Gate<at::Key, HeadBias, Tanh>, Gate<at::Key, Tanh, PerHead, HeadBias>>);
static_assert(!std::is_same_v<Gate<at::Key>, Gate<at::Query>>);
static_assert(!std::is_same_v<Gate<at::Sdpa, Headwise>, Gate<at::Sdpa, SharedHeads>>);
static_assert(std::is_same_v<decltype(compose<float>(Shape{}, Gate<at::Sdpa, Sigmoid>{})),
                             GatedAttention<float, Canonical>>);

// Shapes are values of types: Static<shape> is structural.
constexpr Shape small{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
static_assert(std::is_same_v<
              Static<small>,
              Static<Shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16}>>);
static_assert(small == Shape{.model_dim = 64, .query_heads = 4, .kv_heads = 2, .head_dim = 16});
static_assert(small.value_width() == 16 && small.group() == 2);

// The count of parameters is a constant of the type: 64·(64 + 32 + 32 + 64) without a gate.
constexpr Index plain = 64 * (64 + 32 + 32 + 64);
static_assert(GatedAttention<float, Causal>::parameter_count(small) == plain);
static_assert(GatedAttention<float, Static<small>, Causal>::parameter_count(small) == plain);
static_assert(GatedAttention<float, Gate<at::Sdpa>>::parameter_count(small) == plain + 64 * 64);
static_assert(GatedAttention<float, Gate<at::Sdpa, Headwise>>::parameter_count(small) ==
              plain + 4 * 64);
static_assert(GatedAttention<float, Gate<at::Sdpa, SharedHeads, Bias>>::parameter_count(small) ==
              plain + 16 * 64 + 16);
static_assert(GatedAttention<float, Gate<at::Sdpa, HeadBias>>::parameter_count(small) ==
              plain + 64 * 64 + 4);
static_assert(GatedAttention<float, Gate<at::Sdpa, Constant>>::parameter_count(small) ==
              plain + 64);
static_assert(GatedAttention<float, Gate<at::Value, Headwise, SharedHeads>>::parameter_count(
                  small) == plain + 64);
static_assert(GatedAttention<float, Gate<at::Output>>::parameter_count(small) == plain + 64 * 64);
static_assert(GatedAttention<float, QkNorm<>>::parameter_count(small) == plain + 2 * 16);
static_assert(GatedAttention<float, QkNorm<RmsNorm<weight::Weightless>>>::parameter_count(small) ==
              plain);
static_assert(
    GatedAttention<float, Normalize<at::Sdpa, RmsNorm<weight::Plain, over::Row>>>::parameter_count(
        small) == plain + 64);
static_assert(GatedAttention<float, ProjectionBias<at::Query, at::Key, at::Value, at::Output>>::
                  parameter_count(small) == plain + 64 + 32 + 32 + 64);
static_assert(decltype(paper::sdpa_elementwise<float>())::parameter_count(paper::shape_15a2b) -
                  decltype(paper::baseline<float>())::parameter_count(paper::shape_15a2b) ==
              2048 * 32 * 128);

// Masks as numbers.
static_assert(Causal{}.rule().bounds(2, 5).end(0) == 4 && Causal{}.rule().bounds(2, 5).end(1) == 5);
static_assert(Causal{}.rule().bounds(5, 2).end(2) == 0 && Causal{}.rule().bounds(5, 2).end(3) == 1);
static_assert(SlidingWindow{.window = 3}.rule().bounds(5, 5).begin(4) == 2);
static_assert(Bidirectional{}.rule().bounds(2, 5).end(0) == 5 &&
              Bidirectional{}.rule().bounds(2, 5).begin(1) == 0);

// A layer is a value; what owns packed memory moves and does not copy.
using Layer = GatedAttention<float, Causal>;
static_assert(std::is_copy_constructible_v<Layer> && std::is_copy_assignable_v<Layer>);
static_assert(std::is_copy_constructible_v<Parameters<float>>);
static_assert(!std::is_copy_constructible_v<Workspace<Layer>> &&
              std::is_nothrow_move_constructible_v<Workspace<Layer>>);
static_assert(!std::is_copy_constructible_v<PackedWeights<Layer>> &&
              std::is_nothrow_move_constructible_v<PackedWeights<Layer>>);
static_assert(std::is_base_of_v<Error, ShapeError> && std::is_base_of_v<std::runtime_error, Error>);

// A view of const is made from a view, not the other way round.
static_assert(std::is_convertible_v<MatrixView<float>, MatrixView<const float>>);
static_assert(!std::is_convertible_v<MatrixView<const float>, MatrixView<float>>);
static_assert(!std::is_convertible_v<MatrixView<double>, MatrixView<const float>>);

}  // namespace
}  // namespace gated_attention
