// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "gated_attention/kernel/attend_call.hpp"
#include "gated_attention/kernel/gate_scores.hpp"
#include "gated_attention/kernel/output.hpp"
#include "gated_attention/kernel/prepare.hpp"
#include "gated_attention/kernel/project.hpp"
#include "gated_attention/layer/begin.hpp"
#include "gated_attention/layer/context.hpp"
#include "gated_attention/layer/extend.hpp"
#include "gated_attention/layer/packed_weights.hpp"
#include "gated_attention/layer/parameters.hpp"
#include "gated_attention/layer/tensors.hpp"
#include "gated_attention/layer/workspace.hpp"

namespace gated_attention {

namespace detail {

template <class T>
inline constexpr bool is_static_shape = false;
template <Shape shape>
inline constexpr bool is_static_shape<Static<shape>> = true;

/// The stages without a leading static shape.
template <class... Arguments>
struct StageArguments {
  using List = StageList<Arguments...>;
  static constexpr bool shape_is_static = false;
};
template <Shape shape, class... Stages>
struct StageArguments<Static<shape>, Stages...> {
  using List = StageList<Stages...>;
  static constexpr bool shape_is_static = true;
  static constexpr Shape static_shape = shape;
};

}  // namespace detail

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// y = output(attend(prepare(project(x))))      x, y: [T, E]
///
///     x ── project ──┬─ q ─ [at::Query] ─┐
///        one pass    ├─ k ─ [at::Key]  ──┼─ attend ─ [at::Sdpa] ─ output projection ─ [at::Output] ── y
///        over x      ├─ v ─ [at::Value] ─┘
///                    └─ gate logits
///
/// A gated softmax-attention layer: its stages, in written order at each position, and its shape. A const value without
/// state: copy it, share it between threads. Parameters, packed weights and workspace are separate objects. The first
/// argument may be a Static<shape>, which takes the place of the run-time shape.
template <class ScalarType, class... Arguments>
class GatedAttention {
 public:
  using Scalar = detail::LayerScalar<ScalarType>;
  using Stages = typename detail::StageArguments<Arguments...>::List;

  /// The shape, and the value of every stage that has numbers, in any order.
  template <class... Given>
    requires(!detail::StageArguments<Arguments...>::shape_is_static)
  explicit GatedAttention(const Shape& shape, const Given&... given)
      : GatedAttention(shape, detail::choose_stages(static_cast<const Stages*>(nullptr), given...)) {}

  template <class... Given>
    requires(detail::StageArguments<Arguments...>::shape_is_static)
  explicit GatedAttention(const Given&... given)
      : GatedAttention(detail::StageArguments<Arguments...>::static_shape,
                       detail::choose_stages(static_cast<const Stages*>(nullptr), given...)) {
    static_assert(sizeof(detail::CheckedShape<detail::StageArguments<Arguments...>::static_shape>) > 0);
  }

  const Shape& shape() const { return plan_.shape; }

  /// The stages at a position in written order, QkNorm as its two norms: stages(at::Query{}).
  template <class P>
  constexpr auto stages(P) const {
    return detail::select<P>(stages_);
  }
  /// All stages, QkNorm as its two norms.
  constexpr const auto& stages() const { return stages_; }

  /// What the layer learns, in the order in which Parameters holds it.
  const std::vector<TensorInfo>& tensors() const { return tensors_.list; }

  /// Whether a tensor's neutral value is 1 (a norm weight by the convention Plain).
  bool starts_at_one(const std::string& name) const { return tensors_.starts_at_one(name); }

  /// Whether a stage of the type is written in the layer, SlidingWindow for one.
  template <class Stage>
  static constexpr bool has_stage = detail::holds<Stage>(static_cast<const Stages*>(nullptr));

  /// Whether a mask is written in the layer; one without is Causal.
  static constexpr bool has_mask = detail::holds_mask(static_cast<const Stages*>(nullptr));

  /// How many numbers a layer of this type and that shape learns.
  static constexpr Index parameter_count(const Shape& shape) {
    return detail::count_parameters(static_cast<const WrittenOut*>(nullptr), shape);
  }

  /// The mask as numbers.
  const detail::MaskRule& mask() const { return plan_.mask; }
  /// What q·k is multiplied by: 1/√head_dim, or SoftmaxScale's.
  double scale() const { return plan_.scale; }

  /// Tells layers apart whose keys and values mean different things; see kernel::signature_of_keys.
  std::uint64_t key_signature() const { return plan_.key_signature; }

  /// Bytes of workspace that calls within the limits need; linear in tokens.
  Index workspace_bytes(const Limits& limits) const {
    detail::Arena arena;
    kernel::take_workspace<Scalar>(arena, plan_, complete(limits));
    return arena.used();
  }

  /// Whole sequences, no cache: y = layer(x).
  ///
  /// batch.x and y are [T, E] with rows of neighbours; y may be x itself, but must not overlap it otherwise. Every extent
  /// is checked before anything is written: a ShapeError names what does not fit, with both numbers. On the workspace's
  /// threads; with one thread no allocation, lock or system call. Several calls may share the layer and the weights, each
  /// with its own workspace. The bits of a token's output depend on its sequence alone: not on the batch, nor on threads.
  template <class Weight>
  void forward(const Batch<Scalar>& batch, const PackedWeights<GatedAttention, Weight>& weights,
               Workspace<GatedAttention>& workspace, MatrixView<Scalar> y, const Results<Scalar>& results = {}) const {
    run<Weight>(kernel::begin_forward<Scalar>(objects("GatedAttention::forward", weights, workspace), batch, y, results));
  }

  /// Appends each sequence's tokens to the cache, whose sequences are the batch's, and gives their outputs: prefill, chunked
  /// prefill and one-token decoding are this one function. A sequence without new tokens has a length of 0.
  ///
  /// Positions go on where the cache ends, unless batch.positions says otherwise; views of scores have cache.size() + T keys.
  /// Where the cache stores the layer's scalar, a token's output has the bits that forward gives it over the whole sequence;
  /// in any case it does not depend on the chunks it came in, nor on the kind of cache, the batch or the threads. The cache
  /// grows when all is done: a ShapeError, also for a full cache, leaves everything as it was. Otherwise as forward.
  template <class Weight, KeyValueCache Cache>
  void extend(const Batch<Scalar>& batch, const PackedWeights<GatedAttention, Weight>& weights, Cache& cache,
              Workspace<GatedAttention>& workspace, MatrixView<Scalar> y, const Results<Scalar>& results = {}) const {
    static constexpr bool no_query_sees_later_keys =
        !(has_stage<Bidirectional> || has_stage<BidirectionalWindow> || has_stage<CausalTopLeft>);
    static_assert(no_query_sees_later_keys,
                  "gated_attention: a token that is appended to a cache cannot see later ones: give the layer Causal, "
                  "SlidingWindow, StreamingWindow or PrefixCausal, or call forward");
    static constexpr bool the_cache_has_the_layers_scalar = std::is_same_v<typename Cache::Scalar, Scalar>;
    static_assert(the_cache_has_the_layers_scalar,
                  "gated_attention: the cache was made for a layer of the other scalar: make it from this layer");
    using Stored = typename Cache::Stored;
    kernel::Call<Scalar> call =
        kernel::begin_extend<Scalar>(objects("GatedAttention::extend", weights, workspace), batch, cache, y, results);
    kernel::project<Weight>(call);
    while (kernel::next_pass(call, batch, cache)) {
      kernel::prepare<Stored>(call);
      kernel::attend<Stored>(call);
    }
    kernel::record_gate_scores(call);
    kernel::output<Weight>(call);
    kernel::end_extend(call, batch, cache);
  }

  /// Cross-attention over contexts that were prepared before; batch.context is empty. Otherwise as above.
  template <class Weight>
  void forward(const Batch<Scalar>& batch, const PackedWeights<GatedAttention, Weight>& weights,
               const Context<GatedAttention>& context, Workspace<GatedAttention>& workspace, MatrixView<Scalar> y,
               const Results<Scalar>& results = {}) const {
    if (context.shape() != shape())
      detail::raise<ShapeError>("GatedAttention::forward: the context was made for a layer of context_dim ",
                                context.shape().context_dim, " and ", context.shape().kv_heads,
                                " kv heads, this layer's are ", shape().context_dim, " and ", shape().kv_heads);
    const kernel::PreparedKeys<Scalar> keys{context.blocks(), context.places(), context.sequences()};
    run<Weight>(kernel::begin_forward<Scalar>(objects("GatedAttention::forward", weights, workspace), batch, y,
                                              results, &keys));
  }

  /// Projects and prepares batch.context [S, context_dim] once, for many calls of forward; batch.x is not read. The
  /// workspace's limits name the context_tokens. What `context` held before is gone.
  template <class Weight>
  void prepare_context(const Batch<Scalar>& batch, const PackedWeights<GatedAttention, Weight>& weights,
                       Workspace<GatedAttention>& workspace, Context<GatedAttention>& context) const {
    const Index sequences = kernel::count_sequences(batch.context_lengths);
    if (batch.context.rows() > context.limits().tokens || sequences > context.limits().sequences)
      detail::raise<ShapeError>("GatedAttention::prepare_context: ", batch.context.rows(), " tokens in ", sequences,
                                " sequences, the context was made for ", context.limits().tokens, " in ",
                                context.limits().sequences);
    if (!shape().is_cross() || context.shape() != shape())
      detail::raise<ShapeError>("GatedAttention::prepare_context: the context was made for a layer of context_dim ",
                                context.shape().context_dim, ", this layer's is ", shape().context_dim);
    const kernel::Call<Scalar> call = kernel::begin_context<Scalar>(
        objects("GatedAttention::prepare_context", weights, workspace), batch, context.blocks(), context.places());
    kernel::project<Weight>(call);
    kernel::prepare<Scalar>(call);
    context.set_sequences(sequences);
  }

  /// For pack and Workspace: the layer as numbers.
  const kernel::LayerPlan<Scalar>& plan() const { return plan_; }

  /// Limits with their defaults filled in, or a ShapeError.
  static Limits complete(const Limits& limits) { return kernel::complete_limits(limits); }

 private:
  template <class Weight>
  static void run(const kernel::Call<Scalar>& call) {
    kernel::project<Weight>(call);
    kernel::prepare<Scalar>(call);
    kernel::record_gate_scores(call);
    kernel::attend<Scalar>(call);
    kernel::output<Weight>(call);
  }

  template <class Weight>
  kernel::CallObjects<Scalar> objects(const char* function, const PackedWeights<GatedAttention, Weight>& weights,
                                      const Workspace<GatedAttention>& workspace) const {
    return {function,           plan_, weights.shape(), weights.tensors(), workspace.shape(), workspace.limits(),
            workspace.memory()};
  }

  using WrittenOut = typename detail::WrittenOut<Stages>::Type;
  static_assert(sizeof(detail::CheckedScalar<ScalarType>) > 0);
  static_assert(sizeof(detail::CheckedStages<Stages, WrittenOut>) > 0);
  static_assert(sizeof(detail::CheckedActivations<Scalar, Stages>) > 0);
  static_assert(sizeof(kernel::CheckedScoreFunctions<Scalar, Stages>) > 0);

  GatedAttention(const Shape& shape, const Stages& stages)
      : stages_(detail::write_out(stages)),
        tensors_(detail::list_tensors(stages_, kernel::checked_shape("GatedAttention", shape))),
        plan_(kernel::make_plan<Scalar>(shape, stages_)) {
    plan_.sink_tensor = tensors_.sink_tensor;
    kernel::finish_plan("GatedAttention", plan_, tensors_.first_stage_tensor);
  }

  WrittenOut stages_;
  detail::TensorList tensors_;
  kernel::LayerPlan<Scalar> plan_;
};

/// A layer from its shape and its stages: compose<float>({.model_dim = …}, QkNorm<>{.eps = 1e-6}, Causal{}, Gate<at::Sdpa>{}).
template <class Scalar, class... Stages>
GatedAttention<Scalar, Stages...> compose(const Shape& shape, const Stages&... stages) {
  return GatedAttention<Scalar, Stages...>(shape, stages...);
}

/// The same with a shape known at compile time: compose<float>(Static<Shape{.model_dim = 64, …}>{}, …).
template <class Scalar, Shape shape, class... Stages>
GatedAttention<Scalar, Static<shape>, Stages...> compose(Static<shape>, const Stages&... stages) {
  return GatedAttention<Scalar, Static<shape>, Stages...>(stages...);
}

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
