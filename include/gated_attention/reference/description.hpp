// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <string>

#include "gated_attention/policy/stage_list.hpp"
#include "gated_attention/reference/formulas.hpp"

// A layer's type and values as plain numbers: all that is known of a stage's type stands here.

namespace gated_attention::reference {

/// One stage as plain numbers.
struct Stage {
  enum class Kind { gate, normalize, activate, scale, rotate };
  enum class GateBias { none, per_logit, per_head };

  Kind kind = Kind::scale;
  Position position = Position::query;
  double number = 0;                       ///< eps or factor
  double (*activation)(double) = nullptr;  ///< gate, activate
  bool elementwise = false;                ///< gate: a score per channel
  bool shared = false;                     ///< gate: one row of scores for all heads
  bool averaged = false;                   ///< gate: mean over the heads
  bool adds = false;                       ///< gate: y + s, else y ⊙ s
  bool constant = false;                   ///< gate: learned logits that read no stream
  Index channels = 0;                      ///< gate: reads the first channels alone; 0: all
  Index rank = 0;                          ///< gate: reads its stream through a low rank; 0: no
  Index features = 0;                      ///< gate: reads so many features of the user's; 0: none
  void (*read)(const double* x, Index width, double* features) = nullptr;
  GateBias bias = GateBias::none;  ///< gate
  bool over_row = false;           ///< normalize: mean over all heads
  bool weighted = false;           ///< normalize: by w, or by
  bool offset_from_one = false;    ///< 1 + w
  Rotation rotation = {};          ///< rotate
  std::string name = {};           ///< of its tensors: query_norm, sdpa_gate_2, …
};

/// A layer as plain numbers.
struct Description {
  Shape shape;
  double scale = 1;  ///< multiplies q·k
  Visible visible = {.future = 0};
  std::vector<ScoreStage> score_stages = {};  ///< in written order
  bool sink = false;
  bool query_bias = false, key_bias = false, value_bias = false, output_bias = false;
  std::vector<Stage> stages;  ///< in written order
};

/// Fills a Description in, stage by stage.
struct Describe {
  Description& layer;

  template <class P, class Granularity, class Sharing, class Combine, class A, class Source,
            class B>
  void operator()(const BasicGate<P, Granularity, Sharing, Combine, A, Source, B>&) const {
    Stage stage;
    stage.kind = Stage::Kind::gate;
    stage.activation = &activation<A>;
    stage.elementwise = std::is_same_v<Granularity, Elementwise>;
    stage.shared = std::is_same_v<Sharing, SharedHeads>;
    stage.averaged = std::is_same_v<Sharing, HeadMean>;
    stage.adds = std::is_same_v<Combine, Add>;
    stage.constant = std::is_same_v<Source, Constant>;
    stage.channels = detail::first_channels<Source>;
    stage.rank = detail::low_rank<Source>;
    if constexpr (GateSource<Source>) {
      const Position position = detail::PositionOf<P>::value;
      const bool of_keys = position == Position::key || position == Position::value;
      stage.features =
          Source::features(of_keys ? layer.shape.key_source_dim() : layer.shape.model_dim);
      stage.read = &Source::template read<double>;
    }
    if (std::is_same_v<B, Bias>) stage.bias = Stage::GateBias::per_logit;
    if (std::is_same_v<B, HeadBias>) stage.bias = Stage::GateBias::per_head;
    add<P>(stage, "gate");
  }

  template <class P, class Weight, class Over>
  void operator()(const Normalize<P, RmsNorm<Weight, Over>>& norm) const {
    Stage stage;
    stage.kind = Stage::Kind::normalize;
    stage.number = norm.eps;
    stage.over_row = std::is_same_v<Over, over::Row>;
    stage.weighted = !std::is_same_v<Weight, weight::Weightless>;
    stage.offset_from_one = std::is_same_v<Weight, weight::OffsetFromOne>;
    add<P>(stage, stage.weighted ? "norm" : "");
  }

  template <class P, class A>
  void operator()(const Activate<P, A>&) const {
    Stage stage;
    stage.kind = Stage::Kind::activate;
    stage.activation = &activation<A>;
    add<P>(stage, "");
  }

  template <class P>
  void operator()(const Scale<P>& scale) const {
    Stage stage;
    stage.kind = Stage::Kind::scale;
    stage.number = scale.factor;
    add<P>(stage, "");
  }

  template <class Pairing>
  void operator()(const Rope<Pairing>& rope) const {
    Stage stage;
    stage.kind = Stage::Kind::rotate;
    Rotation& rotation = stage.rotation;
    rotation.interleaved = std::is_same_v<Pairing, pairing::Interleaved>;
    rotation.theta = rope.theta;
    rotation.first_dim = rope.first_dim;
    rotation.rotary_dim =
        rope.rotary_dim != 0 ? rope.rotary_dim : layer.shape.head_dim - rope.first_dim;
    rotation.rotated_pairs = rope.rotated_pairs != 0 ? rope.rotated_pairs : rotation.rotary_dim / 2;
    rotation.yarn = rope.yarn;
    add<at::Query>(stage, "");
    add<at::Key>(stage, "");
  }

  template <class... Positions>
  void operator()(const ProjectionBias<Positions...>&) const {
    layer.query_bias = (... || std::is_same_v<Positions, at::Query>);
    layer.key_bias = (... || std::is_same_v<Positions, at::Key>);
    layer.value_bias = (... || std::is_same_v<Positions, at::Value>);
    layer.output_bias = (... || std::is_same_v<Positions, at::Output>);
  }

  void operator()(const Causal&) const { layer.visible = {.future = 0}; }
  void operator()(const CausalTopLeft&) const { layer.visible = {.future = 0, .top_left = true}; }
  void operator()(const PrefixCausal&) const { layer.visible = {.future = 0, .prefixed = true}; }
  void operator()(const SlidingWindow& mask) const {
    layer.visible = {.past = mask.window - 1, .future = 0};
  }
  void operator()(const StreamingWindow& mask) const {
    layer.visible = {.past = mask.window - 1,
                     .future = 0,
                     .kept = mask.kept,
                     .in_cache = mask.positions == KeyPositions::in_cache};
  }
  void operator()(const Bidirectional&) const { layer.visible = {}; }
  void operator()(const BidirectionalWindow& mask) const {
    layer.visible = {.past = mask.left, .future = mask.right};
  }

  void operator()(const SoftmaxScale& stage) const { layer.scale = stage.scale; }
  void operator()(const LearnedSink&) const { layer.sink = true; }
  void operator()(const Softcap& stage) const {
    layer.score_stages.push_back({.kind = ScoreStage::Kind::softcap, .cap = stage.cap});
  }
  void operator()(const Alibi& stage) const {
    const bool own = !stage.slopes.empty();
    layer.score_stages.push_back(
        {.kind = ScoreStage::Kind::alibi,
         .slopes = own ? std::vector<double>(stage.slopes.begin(), stage.slopes.end())
                       : alibi_slopes(layer.shape.query_heads)});
  }
  void operator()(const ScoreBias&) const {
    layer.score_stages.push_back({.kind = ScoreStage::Kind::bias});
  }
  void operator()(const BooleanMask&) const {
    layer.score_stages.push_back({.kind = ScoreStage::Kind::boolean});
  }
  template <class Function>
  void operator()(const Score<Function>& stage) const {
    constexpr bool the_function_is_known_in_double =
        requires(const Function& f, Index i, double s) {
      { f.reference(i, i, i, s) } -> std::same_as<double>;
    };
    static_assert(
        the_function_is_known_in_double,
        "gated_attention: the reference needs your function of scores in double: give it double "
        "reference(Index head, Index position, Index key, double score) const");
    if constexpr (the_function_is_known_in_double)
      layer.score_stages.push_back(
          {.kind = ScoreStage::Kind::function,
           .function = [function = stage.function](Index head, Index position, Index key,
                                                   double score) {
             return function.reference(head, position, key, score);
           }});
  }

 private:
  /// kind: "gate" or "norm" where the stage learns something; the second of a kind at a position is
  /// told by a 2 behind its name.
  template <class P>
  void add(Stage stage, const char* kind) const {
    stage.position = detail::PositionOf<P>::value;
    if (*kind != 0) {
      const std::string base = std::string(detail::name_of(stage.position)) + "_" + kind;
      Index copy = 1;
      for (const Stage& earlier : layer.stages)
        if (earlier.kind == stage.kind && earlier.position == stage.position &&
            !earlier.name.empty())
          ++copy;
      stage.name = copy == 1 ? base : base + "_" + std::to_string(copy);
    }
    layer.stages.push_back(stage);
  }
};

/// A layer as plain numbers. Layer: anything with shape(), scale() and stages(), the latter with
/// for_each in written order and QkNorm as its two norms.
template <class Layer>
Description describe(const Layer& layer) {
  Description description;
  description.shape = layer.shape();
  description.scale = layer.scale();
  layer.stages().for_each(Describe{description});
  return description;
}

}  // namespace gated_attention::reference
