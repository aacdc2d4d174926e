// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <sstream>

#include "cover/gates.hpp"

// A cover of all pairs over what a layer is made of beside the axes of its gates.
//
// For a prime p, the p² rows (i, j) of the columns (i·c + j) mod p, c = 0 … p − 1, and i hold every
// pair of values in every two columns; a column of fewer choices takes the value modulo their
// number. p = 7 gives the 49 types of layers; each runs with 22 choices of numbers and batches, made
// likewise with p = 11. A tally of what was run shows that no pair is missing.

namespace gated_attention::cover {

/// The numbers that the types leave open.
struct Numbers {
  Shape shape;
  Situation situation;
  int turn = 0;  ///< which numbers Rope has
  Index window = 1;
  double eps = 1e-6;
  double theta = 1e4;
};

// Each choice: a list of stages with its numbers.

template <class... Stages>
using List = StageList<Stages...>;

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
    return {SlidingWindow{.window = numbers.window}, {}};
  }
};

using Masks = std::tuple<NoStage, Plain<Causal>, Window, Plain<Bidirectional>>;

using Biases = std::tuple<NoStage, Plain<ProjectionBias<at::Query>>, Plain<ProjectionBias<at::Key>>,
                          Plain<ProjectionBias<at::Value>>, Plain<ProjectionBias<at::Output>>,
                          Plain<ProjectionBias<at::Value, at::Query, at::Key>>,
                          Plain<ProjectionBias<at::Query, at::Key, at::Value, at::Output>>>;

using GateSets = std::tuple<
    NoStage, Plain<Gate<at::Sdpa>>, Plain<Gate<at::Sdpa, Headwise>, Gate<at::Value, Bias>>,
    Plain<Gate<at::Query, HeadMean>, Gate<at::Key, Constant, Add>>,
    Plain<Gate<at::Output>, Gate<at::Sdpa, Add, Silu, SharedHeads>>,
    Plain<Gate<at::Output, Bias>, Gate<at::Sdpa, HeadBias>, Gate<at::Value, Headwise, HeadMean>,
          Gate<at::Key, SharedHeads, TwiceSigmoid>, Gate<at::Query, Headwise, Bias>>,
    Plain<Gate<at::Sdpa, NonSparseSigmoid>, Gate<at::Key, Headwise>,
          Gate<at::Sdpa, Headwise, Constant, Tanh>>>;

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

template <class A, class... Rest>
auto joined(const A& a, const Rest&... rest) {
  if constexpr (sizeof...(Rest) == 0)
    return a;
  else
    return detail::join(a, joined(rest...));
}

/// The order in which norms, rotation, gates, other stages, mask and biases are written.
constexpr int orders = 5;
template <int order, class N, class R, class G, class O, class M>
auto ordered(const N& norms, const R& rope, const G& gates, const O& others, const M& mask) {
  if constexpr (order == 0)
    return joined(norms, rope, gates, others, mask);
  else if constexpr (order == 1)
    return joined(gates, norms, rope, others, mask);
  else if constexpr (order == 2)
    return joined(mask, rope, gates, norms, others);
  else if constexpr (order == 3)
    return joined(others, gates, rope, mask, norms);
  else
    return joined(rope, norms, others, gates, mask);
}

/// The layer of a list of stages.
template <class Scalar, class ShapeOrStatic, class... Stages>
auto compose_list(const ShapeOrStatic& shape, const List<>&, const Stages&... stages) {
  return compose<Scalar>(shape, stages...);
}
template <class Scalar, class ShapeOrStatic, class First, class... Rest, class... Stages>
auto compose_list(const ShapeOrStatic& shape, const List<First, Rest...>& list,
                  const Stages&... stages) {
  return compose_list<Scalar>(shape, list.rest, stages..., list.first);
}

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

inline const std::vector<Situation>& situations() {
  static const std::vector<Situation> all = {
      {.lengths = {9}},
      {.lengths = {0, 5, 0, 1, 7, 0}},
      {.lengths = {1}},
      {.lengths = {70}},
      {.lengths = {150, 3}},
      {.lengths = {64, 64}},
      {.lengths = {0}},
      {.lengths = {5}, .positions = {1000, 1001, 1002, 1003, 1004}},
      {.lengths = {3, 4}, .positions = {7, 3, 100000, 0, 0, 1, 900}},
      {.lengths = {129}},
      {.lengths = {1, 1, 1, 1, 1, 1, 1, 1}}};
  return all;
}

/// Which choice of each factor a run took; a factor without effect there is left out.
using Choices = std::map<std::string, std::size_t>;

class Tally {
 public:
  void add(const Choices& choices) {
    for (const auto& a : choices)
      for (const auto& b : choices)
        if (a.first < b.first) pairs_[{a.first, b.first}].insert({a.second, b.second});
    for (const auto& one : choices) levels_[one.first].insert(one.second);
  }

  /// Pairs of choices that were not run. Some exclude each other: without Rope there are no numbers
  /// of one, without SlidingWindow there is no window.
  std::string missing() const {
    std::ostringstream out;
    for (const auto& [factors, seen] : pairs_) {
      const auto& [a, b] = factors;
      const std::size_t excluded = a == "rope" && (b == "theta" || b == "turn") ? levels(b)
                                   : a == "mask" && b == "window"               ? 3 * levels(b)
                                                                                : 0;
      const std::size_t wanted = levels(a) * levels(b) - excluded;
      if (seen.size() != wanted)
        out << seen.size() << " of " << wanted << " pairs of " << a << " and " << b << "; ";
    }
    return out.str();
  }

  std::size_t levels(const std::string& factor) const { return levels_.at(factor).size(); }
  std::size_t factors() const { return levels_.size(); }

 private:
  std::map<std::pair<std::string, std::string>, std::set<std::pair<std::size_t, std::size_t>>>
      pairs_;
  std::map<std::string, std::set<std::size_t>> levels_;
};

/// The types of one of the 49 rows.
template <std::size_t row>
struct Row {
  static constexpr std::size_t value(std::size_t column) {
    const std::size_t i = row / 7, j = row % 7;
    return column == 7 ? i : (i * column + j) % 7;
  }
  template <class Levels>
  static constexpr std::size_t choice(std::size_t column) {
    return value(column) % std::tuple_size_v<Levels>;
  }
  template <class Levels, std::size_t column>
  using Level = std::tuple_element_t<choice<Levels>(column), Levels>;

  using OtherSet = Level<OtherSets, 6>;
  static constexpr int order = static_cast<int>(value(7) % orders);
  static constexpr std::size_t static_shape = row % 11;

  static auto stages(const Numbers& numbers) {
    return ordered<order>(
        detail::join(Level<InputNorms, 0>::stages(numbers), Level<OtherNorms, 1>::stages(numbers)),
        Level<Ropes, 2>::stages(numbers), Level<GateSets, 5>::stages(numbers),
        OtherSet::stages(numbers),
        detail::join(Level<Masks, 3>::stages(numbers), Level<Biases, 4>::stages(numbers)));
  }

  static Choices choices() {
    return {{"input norms", choice<InputNorms>(0)},
            {"other norms", choice<OtherNorms>(1)},
            {"rope", choice<Ropes>(2)},
            {"mask", choice<Masks>(3)},
            {"biases", choice<Biases>(4)},
            {"gates", choice<GateSets>(5)},
            {"others", choice<OtherSets>(6) % 3},
            {"static", OtherSet::shape_is_static ? 1 : 0},
            {"order", static_cast<std::size_t>(order)}};
  }
};

/// What a run of a row takes for the numbers, and which choices that is.
struct RunNumbers {
  Numbers numbers;
  Choices choices;
};

/// Two passes of 11 runs: not every row has a window or a rotation, so one leaves pairs out.
constexpr std::size_t runs = 2 * 11;

inline RunNumbers run_numbers(std::size_t row, std::size_t run, Choices choices,
                              std::size_t static_shape) {
  static constexpr Index windows[] = {1, 2, 3, 64, 1000};
  static constexpr double epsilons[] = {1e-6, 1e-3, 1e-12};
  static constexpr double thetas[] = {1e4, 10, 5e6};
  const std::size_t i = run < 11 ? row : 5 * row + 5;
  const auto value = [&](std::size_t column) { return (i * column + run) % 11; };
  const bool is_static = choices.at("static") == 1;
  choices["shape"] = is_static ? static_shape : value(0);
  choices["situation"] = value(1);
  choices["threads"] = value(2) % 3;
  choices["eps"] = value(3) % 3;
  if (choices.at("rope") != 0) choices["turn"] = value(4) % turns;
  if (choices.at("rope") != 0) choices["theta"] = value(5) % 3;
  if (choices.at("mask") == 2) choices["window"] = value(6) % 5;
  Numbers numbers;
  numbers.shape = shapes[choices.at("shape")];
  numbers.situation = situations()[choices.at("situation")];
  numbers.situation.threads = static_cast<Index>(choices.at("threads")) + 1;
  numbers.turn = static_cast<int>(value(4) % turns);
  numbers.window = windows[value(6) % 5];
  numbers.eps = epsilons[choices.at("eps")];
  numbers.theta = thetas[value(5) % 3];
  return {numbers, choices};
}

inline std::string remark(const Choices& choices) {
  std::string text = " with";
  for (const auto& [factor, choice] : choices) text += " " + factor + ":" + std::to_string(choice);
  return text;
}

template <class Scalar, std::size_t row>
void check_row(Tally& tally) {
  for (std::size_t number = 0; number < runs; ++number) {
    const RunNumbers run = run_numbers(row, number, Row<row>::choices(), Row<row>::static_shape);
    const auto stages = Row<row>::stages(run.numbers);
    if constexpr (Row<row>::OtherSet::shape_is_static)
      check_layer(compose_list<Scalar>(Static<shapes[Row<row>::static_shape]>{}, stages),
                  run.numbers.situation, remark(run.choices));
    else
      check_layer(compose_list<Scalar>(run.numbers.shape, stages), run.numbers.situation,
                  remark(run.choices));
    tally.add(run.choices);
  }
}

template <class Scalar>
Tally check_all_rows() {
  Tally tally;
  [&]<std::size_t... rows>(std::index_sequence<rows...>) {
    (check_row<Scalar, rows>(tally), ...);
  }
  (std::make_index_sequence<49>());
  return tally;
}

/// Everything that was promised has been run.
void expect_every_pair(const Tally& tally);

}  // namespace gated_attention::cover
