// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <tuple>

#include "cover/trial.hpp"
#include "unit/own_stages.hpp"

// The choices that the cover of all pairs is made from: each a list of stages with its numbers.

namespace gated_attention::cover {

/// The numbers that the types leave open.
struct Numbers {
  Shape shape;
  Situation situation;
  int turn = 0;     ///< which numbers Rope has
  Index reach = 1;  ///< of masks that have a number
  bool own_slopes = false;
  double eps = 1e-6;
  double theta = 1e4;
};

template <class... Stages>
using List = StageList<Stages...>;

template <class A, class... Rest>
auto joined(const A& a, const Rest&... rest) {
  if constexpr (sizeof...(Rest) == 0)
    return a;
  else
    return detail::join(a, joined(rest...));
}

struct NoStage {
  static List<> stages(const Numbers&) { return {}; }
};

/// Stages without numbers.
template <class... Stages>
struct Plain {
  static List<Stages...> stages(const Numbers&) { return detail::make_stage_list(Stages{}...); }
};

/// Norms, all with the same eps.
template <class... NormStages>
struct Norm {
  static List<NormStages...> stages(const Numbers& numbers) {
    return detail::make_stage_list(NormStages{.eps = numbers.eps}...);
  }
};

using PlainHead = RmsNorm<weight::Plain, over::Head>;
using OffsetHead = RmsNorm<weight::OffsetFromOne, over::Head>;
using WeightlessHead = RmsNorm<weight::Weightless, over::Head>;
using PlainRow = RmsNorm<weight::Plain, over::Row>;
using OffsetRow = RmsNorm<weight::OffsetFromOne, over::Row>;
using WeightlessRow = RmsNorm<weight::Weightless, over::Row>;

using InputNorms =
    std::tuple<NoStage, Norm<QkNorm<PlainHead>>, Norm<QkNorm<OffsetHead>>,
               Norm<QkNorm<WeightlessHead>>, Norm<QkNorm<PlainRow>>,
               Norm<Normalize<at::Query, OffsetRow>>, Norm<Normalize<at::Key, PlainHead>>>;

using OtherNorms =
    std::tuple<NoStage, Norm<Normalize<at::Value, WeightlessHead>>,
               Norm<Normalize<at::Sdpa, PlainHead>>, Norm<Normalize<at::Sdpa, OffsetRow>>,
               Norm<Normalize<at::Output, OffsetHead>>,
               Norm<Normalize<at::Value, PlainRow>, Normalize<at::Sdpa, WeightlessHead>>,
               Norm<Normalize<at::Sdpa, WeightlessRow>, Normalize<at::Output, PlainRow>>>;

constexpr int turns = 7;

template <class Pairing>
struct Turn {
  static List<Rope<Pairing>> stages(const Numbers& numbers) { return {rope(numbers), {}}; }

  static Rope<Pairing> rope(const Numbers& numbers) {
    const Index dim = numbers.shape.head_dim, even = dim / 2 * 2;
    const Index half = std::max(Index{2}, dim / 4 * 2);
    const Index quarter = std::max(Index{2}, dim / 8 * 2);
    Rope<Pairing> rope{.theta = numbers.theta};
    rope.rotary_dim = even == dim ? 0 : even;
    switch (numbers.turn) {
      case 0:
        break;
      case 1:  // the first channels only
        rope.rotary_dim = quarter;
        break;
      case 2:  // the last channels only
        rope.rotary_dim = half;
        rope.first_dim = dim - half;
        break;
      case 3:  // proportional: later pairs stand still
        rope.rotated_pairs = half / 2;
        break;
      case 4:
        rope.yarn = Yarn{.factor = 8, .original_max_position = 64};
        break;
      case 5:
        rope.rotary_dim = half;
        rope.yarn = Yarn{.factor = 40, .original_max_position = 128, .beta_fast = 8};
        rope.yarn->truncate = false;
        rope.yarn->attention_factor = 0.75;
        break;
      default:
        rope.rotated_pairs = half / 2;
        rope.yarn = Yarn{.factor = 4, .original_max_position = 32};
        rope.yarn->mscale = 0.7;
        rope.yarn->mscale_all_dim = 1.3;
    }
    return rope;
  }
};

using Ropes = std::tuple<NoStage, Turn<pairing::Half>, Turn<pairing::Interleaved>>;

struct Window {
  static List<SlidingWindow> stages(const Numbers& numbers) {
    return {SlidingWindow{.window = numbers.reach}, {}};
  }
};
struct WindowToBothSides {
  static List<BidirectionalWindow> stages(const Numbers& numbers) {
    return {BidirectionalWindow{.left = numbers.reach - 1, .right = numbers.reach / 2}, {}};
  }
};

using Masks = std::tuple<NoStage, Plain<Causal>, Plain<CausalTopLeft>, Plain<Bidirectional>, Window,
                         Plain<PrefixCausal>, WindowToBothSides>;
/// Whether a mask has a number.
inline constexpr bool mask_reaches[] = {false, false, false, false, true, true, true};

using Biases = std::tuple<NoStage, Plain<ProjectionBias<at::Query>>, Plain<ProjectionBias<at::Key>>,
                          Plain<ProjectionBias<at::Value>>, Plain<ProjectionBias<at::Output>>,
                          Plain<ProjectionBias<at::Value, at::Query, at::Key>>,
                          Plain<ProjectionBias<at::Query, at::Key, at::Value, at::Output>>>;

/// The gates, most of them with the logits of a source.
template <class Source>
using GateSets = std::tuple<
    NoStage, Plain<Gate<at::Sdpa, Source>>,
    Plain<Gate<at::Sdpa, Headwise, Source>, Gate<at::Value, Bias, Source>>,
    Plain<Gate<at::Query, HeadMean, Source>, Gate<at::Key, Constant, Add>>,
    Plain<Gate<at::Output, Source>, Gate<at::Sdpa, Add, Silu, SharedHeads, Source>>,
    Plain<Gate<at::Output, Bias, Source>, Gate<at::Sdpa, HeadBias, Source>,
          Gate<at::Value, Headwise, HeadMean, Source>,
          Gate<at::Key, SharedHeads, TwiceSigmoid, Source>,
          Gate<at::Query, Headwise, Bias, Source>>,
    Plain<Gate<at::Sdpa, NonSparseSigmoid>, Gate<at::Key, Headwise, Source>,
          Gate<at::Sdpa, Headwise, Constant, Tanh>, Gate<at::Value, own::CubicEighth, Source>>>;
/// The least width of a stream is 7.
using Sources = std::tuple<FromHidden, FirstChannels<7>, LowRank<3>, own::Squares>;

struct Caps {
  static List<Softcap> stages(const Numbers&) { return {Softcap{.cap = 1.25}, {}}; }
};
struct OwnScores {
  static List<Score<own::Fading>> stages(const Numbers&) {
    return {Score<own::Fading>{{.rate = 0.03, .reach = 60}}, {}};
  }
};
struct Slopes {
  static List<Alibi> stages(const Numbers& numbers) {
    static constexpr double slopes[] = {0.5, 0.01, 0, -0.02, 0.1, 0.3, 0.07, 0.2};
    const auto heads = static_cast<std::size_t>(numbers.shape.query_heads);
    return {Alibi{.slopes = {slopes, numbers.own_slopes ? heads : 0}}, {}};
  }
};
struct Scales {
  static List<SoftmaxScale> stages(const Numbers&) { return {SoftmaxScale{.scale = 0.3}, {}}; }
};

/// Several choices behind one another.
template <class... Choices>
struct All {
  static auto stages(const Numbers& numbers) { return joined(Choices::stages(numbers)...); }
};

/// Stages on scores come from two sets, of which either may be written first: each stage alone, with each of the other
/// set, and with all.
using ScoreSets =
    std::tuple<NoStage, Caps, Plain<ScoreBias>, OwnScores, All<Caps, Plain<ScoreBias>, OwnScores>,
               All<OwnScores, Plain<ScoreBias>, Caps>>;
using MoreScoreSets =
    std::tuple<NoStage, Slopes, Plain<BooleanMask>, Scales, All<Slopes, Plain<BooleanMask>, Scales>,
               All<Scales, Plain<BooleanMask>, Slopes>>;
/// A letter a stage, in written order.
inline constexpr const char* score_letters[] = {"", "c", "b", "f", "cbf", "fbc"};
inline constexpr const char* more_score_letters[] = {"", "a", "m", "s", "ams", "sma"};

struct Activations3 {
  static auto stages(const Numbers&) {
    return detail::make_stage_list(Activate<at::Value, Tanh>{}, Activate<at::Sdpa, Silu>{},
                                   Activate<at::Output, Softplus>{});
  }
};
struct Scales3 {
  static auto stages(const Numbers&) {
    return detail::make_stage_list(Scale<at::Query>{.factor = 1.5}, Scale<at::Sdpa>{.factor = -0.5},
                                   Scale<at::Output>{.factor = 3});
  }
};

template <class Stages, bool is_static>
struct Others : Stages {
  static constexpr bool shape_is_static = is_static;
};
using OtherSets =
    std::tuple<Others<NoStage, false>, Others<Activations3, false>, Others<Scales3, false>,
               Others<NoStage, true>, Others<Activations3, true>, Others<Scales3, true>>;

/// Multi-head, grouped and multi-query; widths odd, of one packet, of several panels; D ≠ E/H.
inline constexpr Shape shapes[11] = {
    {.model_dim = 20, .query_heads = 5, .kv_heads = 5, .head_dim = 4, .value_dim = 0},
    {.model_dim = 24, .query_heads = 6, .kv_heads = 2, .head_dim = 10, .value_dim = 0},
    {.model_dim = 16, .query_heads = 3, .kv_heads = 1, .head_dim = 6, .value_dim = 8},
    {.model_dim = 17, .query_heads = 2, .kv_heads = 1, .head_dim = 5, .value_dim = 3},
    {.model_dim = 33, .query_heads = 2, .kv_heads = 2, .head_dim = 72, .value_dim = 40},
    {.model_dim = 40, .query_heads = 4, .kv_heads = 1, .head_dim = 80, .value_dim = 64},
    {.model_dim = 12, .query_heads = 1, .kv_heads = 1, .head_dim = 64, .value_dim = 130},
    {.model_dim = 64, .query_heads = 8, .kv_heads = 2, .head_dim = 16, .value_dim = 16},
    {.model_dim = 7, .query_heads = 3, .kv_heads = 3, .head_dim = 3, .value_dim = 1},
    {.model_dim = 48, .query_heads = 2, .kv_heads = 1, .head_dim = 66, .value_dim = 65},
    {.model_dim = 32, .query_heads = 4, .kv_heads = 4, .head_dim = 8, .value_dim = 0}};

/// Keys and values from x, from a narrower context, from a wider one.
constexpr std::size_t streams = 3;
constexpr Shape shape_of(std::size_t shape, std::size_t stream) {
  Shape chosen = shapes[shape];
  if (stream == 1) chosen.context_dim = chosen.model_dim / 2 + 4;
  if (stream == 2) chosen.context_dim = chosen.model_dim + 9;
  return chosen;
}

inline const std::vector<Situation>& situations() {
  static const std::vector<Situation> all = {
      {.lengths = {9}, .context_lengths = {14}},
      {.lengths = {0, 5, 0, 1, 7, 0}, .context_lengths = {3, 2, 0, 70, 9, 0}},
      {.lengths = {1}, .context_lengths = {130}},
      {.lengths = {70}, .context_lengths = {1}},
      {.lengths = {150, 3}, .context_lengths = {4, 150}},
      {.lengths = {64, 64}, .context_lengths = {64, 0}},
      {.lengths = {0}, .context_lengths = {5}},
      {.lengths = {5},
       .positions = {1000, 1001, 1002, 1003, 1004},
       .context_lengths = {7},
       .context_positions = {3, 5, 8, 1000, 13, 21, 34}},
      {.lengths = {3, 4},
       .positions = {7, 3, 100000, 0, 0, 1, 900},
       .context_lengths = {1, 3},
       .context_positions = {99999, 2, 2, 0}},
      {.lengths = {129}, .context_lengths = {65}},
      {.lengths = {1, 1, 1, 1, 1, 1, 1, 1}, .context_lengths = {2, 1, 0, 129, 1, 3, 5, 8}}};
  return all;
}

}  // namespace gated_attention::cover
