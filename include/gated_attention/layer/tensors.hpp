// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "gated_attention/layer/parameters.hpp"
#include "gated_attention/policy/stage_list.hpp"

// What a layer's type says about its values and its learned tensors.

namespace gated_attention {
namespace detail {

/// Whether a stage's value need not be given: it has no numbers, or says that all of them have defaults.
template <class Stage>
constexpr bool may_be_left_out() {
  if constexpr (requires { Stage::has_default_numbers; })
    return Stage::has_default_numbers;
  else
    return std::is_empty_v<Stage>;
}

/// The value given for a stage, or the stage itself where it may be left out.
template <class Stage>
constexpr Stage choose_stage() {
  constexpr bool a_stage_with_numbers_was_given_them = may_be_left_out<Stage>();
  static_assert(a_stage_with_numbers_was_given_them,
                "gated_attention: a stage of this layer has numbers and was given none: pass its value behind the "
                "shape, as in GatedAttention<float, Rope<>>(shape, Rope<>{.theta = 1e4})");
  if constexpr (a_stage_with_numbers_was_given_them)
    return Stage{};
  else
    std::abort();
}

template <class Stage, class First, class... Rest>
constexpr Stage choose_stage(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<Stage, First>)
    return first;
  else
    return choose_stage<Stage>(rest...);
}

/// The layer's stages in their order, each with its given value.
template <class... Stages, class... Given>
constexpr StageList<Stages...> choose_stages(const StageList<Stages...>*, const Given&... given) {
  constexpr bool every_value_belongs_to_a_stage = (... && (times_in<Given, Stages...> > 0));
  static_assert(every_value_belongs_to_a_stage,
                "gated_attention: a value behind the shape is not one of this layer's stages: name its type among the "
                "layer's template arguments");
  constexpr bool a_stage_has_one_value = (... && (times_in<Stages, Stages...> > 1 || times_in<Stages, Given...> <= 1));
  static_assert(a_stage_has_one_value,
                "gated_attention: two values behind the shape are for the same stage: give one");
  return make_stage_list(choose_stage<Stages>(given...)...);
}

template <class Scalar>
inline constexpr bool is_layer_scalar = std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double>;

/// What a layer computes in; float, after a mistake was told.
template <class Scalar>
using LayerScalar = std::conditional_t<is_layer_scalar<Scalar>, Scalar, float>;

template <class Scalar>
struct CheckedScalar {
  static constexpr bool the_scalar_is_float_or_double = is_layer_scalar<Scalar>;
  static_assert(the_scalar_is_float_or_double,
                "gated_attention: attention computes in float or double: GatedAttention<float, ...>, Attend<double, ...>");
};

/// The static shape of a layer, one sentence per mistake.
template <Shape shape>
struct CheckedShape {
  static constexpr bool every_extent_is_positive = shape.model_dim > 0 && shape.query_heads > 0 &&
                                                   shape.kv_heads > 0 && shape.head_dim > 0 && shape.value_dim >= 0 &&
                                                   shape.context_dim >= 0;
  static_assert(every_extent_is_positive,
                "gated_attention: model_dim, query_heads, kv_heads and head_dim of a static shape are at least 1");
  static constexpr bool query_heads_is_a_multiple_of_kv_heads =
      shape.kv_heads <= 0 || shape.query_heads % shape.kv_heads == 0;
  static_assert(query_heads_is_a_multiple_of_kv_heads,
                "gated_attention: query_heads must be a multiple of kv_heads: each kv head serves query_heads / "
                "kv_heads consecutive query heads");
};

template <class P, class Stage>
constexpr bool biases() {
  if constexpr (is_projection_bias<Stage>)
    return Stage::template has<P>;
  else
    return false;
}

/// Whether the list's ProjectionBias, if any, names P.
template <class P, class... Stages>
constexpr bool has_projection_bias(const StageList<Stages...>*) {
  return (... || biases<P, Stages>());
}

template <class Stage>
constexpr StageTensors tensors_of(const Shape& shape) {
  if constexpr (is_row_stage<Stage> || std::is_same_v<Stage, LearnedSink>)
    return Stage::tensors(shape);
  else
    return {};
}

/// Numbers that a layer of these (written-out) stages learns.
template <class... Stages>
constexpr Index count_parameters(const StageList<Stages...>* list, const Shape& shape) {
  const Index query = shape.query_heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
  const Index value = shape.kv_heads * shape.value_width(), heads_out = shape.query_heads * shape.value_width();
  Index count = (query + heads_out) * shape.model_dim + (key + value) * shape.key_source_dim();
  if (has_projection_bias<at::Query>(list)) count += query;
  if (has_projection_bias<at::Key>(list)) count += key;
  if (has_projection_bias<at::Value>(list)) count += value;
  if (has_projection_bias<at::Output>(list)) count += shape.model_dim;
  return (count + ... + tensors_of<Stages>(shape).count());
}

/// The learned tensors of a layer; those of the written-out row stages begin at first_stage_tensor[i] (−1: none).
struct TensorList {
  std::vector<TensorInfo> list;
  std::vector<Index> first_stage_tensor;
  Index sink_tensor = -1;  ///< logits of a LearnedSink; −1: none
  std::vector<std::string> at_one;

  bool starts_at_one(const std::string& name) const {
    for (const std::string& known : at_one)
      if (known == name) return true;
    return false;
  }

  void add_stage(Position position, const char* kind, const char* weight, const StageTensors& extents, bool one) {
    first_stage_tensor.push_back(extents.count() > 0 ? static_cast<Index>(list.size()) : Index{-1});
    if (extents.count() == 0) return;
    const std::string base = std::string(name_of(position)) + "_" + kind;
    std::string name = base;
    for (int copy = 2; has_prefix(name + "."); ++copy) name = base + "_" + std::to_string(copy);
    list.push_back({name + "." + weight, extents.weight_rows, extents.weight_columns});
    if (one) at_one.push_back(list.back().name);
    if (extents.bias > 0) list.push_back({name + ".bias", 1, extents.bias});
    if (extents.down_columns > 0) list.push_back({name + ".down", extents.weight_columns, extents.down_columns});
  }

 private:
  bool has_prefix(const std::string& prefix) const {
    for (const TensorInfo& tensor : list)
      if (tensor.name.starts_with(prefix)) return true;
    return false;
  }
};

inline void list_projections(TensorList& tensors, const Shape& shape, bool query_bias, bool key_bias, bool value_bias,
                             bool output_bias) {
  const Index query = shape.query_heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
  const Index value = shape.kv_heads * shape.value_width(), heads_out = shape.query_heads * shape.value_width();
  tensors.list = {{"q_proj.weight", query, shape.model_dim},
                  {"k_proj.weight", key, shape.key_source_dim()},
                  {"v_proj.weight", value, shape.key_source_dim()},
                  {"o_proj.weight", shape.model_dim, heads_out}};
  if (query_bias) tensors.list.push_back({"q_proj.bias", 1, query});
  if (key_bias) tensors.list.push_back({"k_proj.bias", 1, key});
  if (value_bias) tensors.list.push_back({"v_proj.bias", 1, value});
  if (output_bias) tensors.list.push_back({"o_proj.bias", 1, shape.model_dim});
}

/// function(stage, position) for each row stage of a written-out list; Rope at query, then at key.
template <class List, class Function>
constexpr void for_each_row_stage(const List& list, const Function& function) {
  list.for_each([&function](const auto& gated_attention_stage) {
    using Stage = std::remove_cvref_t<decltype(gated_attention_stage)>;
    if constexpr (is_rope<Stage>) {
      function(gated_attention_stage, Position::query);
      function(gated_attention_stage, Position::key);
    } else if constexpr (is_row_stage<Stage>) {
      function(gated_attention_stage, PositionOf<typename Stage::position>::value);
    }
  });
}

/// The tensors of a layer of these (written-out) stages.
template <class... Stages>
TensorList list_tensors(const StageList<Stages...>& list, const Shape& shape) {
  const StageList<Stages...>* const type = nullptr;
  TensorList tensors;
  list_projections(tensors, shape, has_projection_bias<at::Query>(type), has_projection_bias<at::Key>(type),
                   has_projection_bias<at::Value>(type), has_projection_bias<at::Output>(type));
  for_each_row_stage(list, [&](const auto& gated_attention_stage, Position position) {
    using Stage = std::remove_cvref_t<decltype(gated_attention_stage)>;
    bool one = false;
    if constexpr (is_normalize<Stage>)
      one = std::is_same_v<typename Stage::norm::weight_convention, weight::Plain>;
    bool constant = false;
    if constexpr (is_gate<Stage>) constant = Stage::constant;
    tensors.add_stage(position, is_gate<Stage> ? "gate" : "norm", constant ? "logits" : "weight",
                      Stage::tensors(shape), one);
  });
  if (times_in<LearnedSink, Stages...> > 0) {
    tensors.sink_tensor = static_cast<Index>(tensors.list.size());
    tensors.list.push_back({"sink.logits", 1, shape.query_heads});
  }
  return tensors;
}

}  // namespace detail
}  // namespace gated_attention
