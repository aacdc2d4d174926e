// SPDX-License-Identifier: MIT
#pragma once

#include <sstream>
#include <string>

#include "gated_attention/layer/parameters.hpp"
#include "gated_attention/policy/stage_list.hpp"

namespace gated_attention {
namespace detail {

template <class T>
std::string activation_name() {
  if constexpr (requires { T::name; })
    return std::string(T::name);
  else
    return "user-defined";
}

template <class Stage>
void describe_stage(std::ostream& out, const Stage& stage) {
  if constexpr (is_gate<Stage>) {
    out << (Stage::elementwise ? "elementwise " : "headwise ") << activation_name<typename Stage::activation>()
        << " gate " << (std::is_same_v<typename Stage::combine, Multiply> ? "times " : "added to ")
        << name_of(PositionOf<typename Stage::position>::value);
    if (Stage::shared) out << ", shared by all heads";
    if (Stage::averaged) out << ", averaged over heads";
    using Source = typename Stage::source;
    if (Stage::constant) out << ", constant";
    if (first_channels<Source> > 0) out << ", from the first " << first_channels<Source> << " channels";
    if (low_rank<Source> > 0) out << ", of rank " << low_rank<Source>;
    if (GateSource<Source>) out << ", from features of one's own";
    if (std::is_same_v<typename Stage::bias, Bias>) out << ", with bias";
    if (std::is_same_v<typename Stage::bias, HeadBias>) out << ", with a bias per head";
  } else if constexpr (is_normalize<Stage>) {
    using Weight = typename Stage::norm::weight_convention;
    out << "RMSNorm"
        << (std::is_same_v<Weight, weight::OffsetFromOne> ? " (1+w)"
            : std::is_same_v<Weight, weight::Weightless>  ? " (weightless)"
                                                          : " (w)")
        << " of " << name_of(PositionOf<typename Stage::position>::value)
        << (Stage::norm::over_row ? " over the whole row" : "") << ", eps " << double{stage.eps};
  } else if constexpr (is_activate<Stage>) {
    out << activation_name<typename Stage::activation>() << " of "
        << name_of(PositionOf<typename Stage::position>::value);
  } else if constexpr (is_scale<Stage>) {
    out << name_of(PositionOf<typename Stage::position>::value) << " times " << double{stage.factor};
  } else if constexpr (is_rope<Stage>) {
    out << "RoPE" << (std::is_same_v<typename Stage::pairing_order, pairing::Interleaved> ? " interleaved" : "")
        << ", theta " << double{stage.theta};
    if (stage.rotary_dim != 0) out << ", " << stage.rotary_dim << " channels";
    if (stage.first_dim != 0) out << " from " << stage.first_dim;
    if (stage.rotated_pairs != 0) out << ", " << stage.rotated_pairs << " pairs turn";
    if (stage.yarn) out << ", YaRN factor " << stage.yarn->factor;
  } else if constexpr (is_projection_bias<Stage>) {
    out << "biases of";
    if (Stage::template has<at::Query>) out << " q";
    if (Stage::template has<at::Key>) out << " k";
    if (Stage::template has<at::Value>) out << " v";
    if (Stage::template has<at::Output>) out << " o";
  } else if constexpr (std::is_same_v<Stage, SlidingWindow>) {
    out << "sliding window of " << Index{stage.window};
  } else if constexpr (std::is_same_v<Stage, StreamingWindow>) {
    out << "sliding window of " << Index{stage.window} << " behind the first " << Index{stage.kept} << " keys";
    if (stage.positions == KeyPositions::in_cache) out << ", positions in the cache";
  } else if constexpr (std::is_same_v<Stage, Bidirectional>) {
    out << "bidirectional";
  } else if constexpr (std::is_same_v<Stage, BidirectionalWindow>) {
    out << "window of " << Index{stage.left} << " before and " << Index{stage.right} << " after";
  } else if constexpr (std::is_same_v<Stage, CausalTopLeft>) {
    out << "causal from the top left";
  } else if constexpr (std::is_same_v<Stage, PrefixCausal>) {
    out << "causal behind a prefix";
  } else if constexpr (std::is_same_v<Stage, SoftmaxScale>) {
    out << "scores times " << double{stage.scale};
  } else if constexpr (std::is_same_v<Stage, Softcap>) {
    out << "scores capped at " << double{stage.cap};
  } else if constexpr (std::is_same_v<Stage, Alibi>) {
    out << "ALiBi";
  } else if constexpr (std::is_same_v<Stage, ScoreBias>) {
    out << "a bias on scores";
  } else if constexpr (std::is_same_v<Stage, BooleanMask>) {
    out << "a boolean mask";
  } else if constexpr (std::is_same_v<Stage, LearnedSink>) {
    out << "a learned sink";
  } else if constexpr (is_score_function<Stage>) {
    out << "a function of one's own on scores";
  } else {
    out << "causal";
  }
}

}  // namespace detail

/// The layer as a sentence: its extents, then its stages in written order.
template <class Layer>
std::string describe(const Layer& layer) {
  const Shape& shape = layer.shape();
  std::ostringstream out;
  out << shape.query_heads << " query heads on " << shape.kv_heads << " kv heads of " << shape.head_dim;
  if (shape.value_width() != shape.head_dim) out << " (values " << shape.value_width() << ")";
  out << ", model_dim " << shape.model_dim;
  if (shape.is_cross()) out << ", context_dim " << shape.context_dim;
  layer.stages().for_each([&out](const auto& gated_attention_stage) {
    out << "; ";
    detail::describe_stage(out, gated_attention_stage);
  });
  if (!layer.has_mask) out << "; causal";
  return out.str();
}

}  // namespace gated_attention
