// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <sstream>

#include "cover/choices.hpp"

// A cover of all pairs over what a layer is made of beside the axes of its gates.
//
// For a prime p, the p² rows (i, j) of the columns (i·c + j) mod p, c = 0 … p − 1, and i hold every
// pair of values in every two columns; a column of fewer choices takes the value modulo their
// number. p = 11 gives 121 types of layers; each runs with 11 choices of numbers and batches, made
// likewise. A tally of what was run shows that no pair is missing.

namespace gated_attention::cover {

inline constexpr std::size_t prime = 11;

/// The order in which norms, rotation, gates, other stages, stages on scores, mask and biases are
/// written.
constexpr int orders = 5;
template <int order, class N, class R, class G, class O, class S, class M>
auto ordered(const N& norms, const R& rope, const G& gates, const O& others, const S& scores,
             const M& mask) {
  if constexpr (order == 0)
    return joined(norms, rope, gates, others, scores, mask);
  else if constexpr (order == 1)
    return joined(gates, norms, scores, rope, others, mask);
  else if constexpr (order == 2)
    return joined(mask, rope, gates, norms, others, scores);
  else if constexpr (order == 3)
    return joined(others, scores, gates, rope, mask, norms);
  else
    return joined(scores, rope, norms, others, gates, mask);
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

/// Which choice of each factor a run took; a factor without effect there is left out.
using Choices = std::map<std::string, std::size_t>;

/// What was run.
class Tally {
 public:
  /// `unread`: rows of y that do not see a key with numbers that are not finite.
  void add(const Choices& choices, Index unread) {
    for (const auto& a : choices)
      for (const auto& b : choices)
        if (a.first < b.first) pairs_[{a.first, b.first}].insert({a.second, b.second});
    for (const auto& one : choices) levels_[one.first].insert(one.second);
    unread_[choices.at("mask")] += unread;
  }
  /// The stages on scores of a layer, a letter each.
  void add_scores(const std::string& letters) {
    for (std::size_t a = 0; a < letters.size(); ++a)
      for (std::size_t b = a + 1; b < letters.size(); ++b)
        score_orders_.insert({letters[a], letters[b]});
  }

  /// Pairs of choices that were not run.
  std::string missing() const;
  std::size_t levels(const std::string& factor) const { return levels_.at(factor).size(); }
  std::size_t factors() const { return levels_.size(); }
  /// Ordered pairs of stages on scores.
  std::size_t score_orders() const { return score_orders_.size(); }
  Index unread(std::size_t mask) const { return unread_.at(mask); }

 private:
  std::map<std::pair<std::string, std::string>, std::set<std::pair<std::size_t, std::size_t>>>
      pairs_;
  std::map<std::string, std::set<std::size_t>> levels_;
  std::set<std::pair<char, char>> score_orders_;
  std::map<std::size_t, Index> unread_;
};

/// The types of one of the 121 rows.
template <std::size_t row>
struct Row {
  static constexpr std::size_t value(std::size_t column) {
    const std::size_t i = row / prime, j = row % prime;
    return column == prime ? i : (i * column + j) % prime;
  }
  template <class Levels>
  static constexpr std::size_t choice(std::size_t column) {
    return value(column) % std::tuple_size_v<Levels>;
  }
  template <class Levels, std::size_t column>
  using Level = std::tuple_element_t<choice<Levels>(column), Levels>;

  using Source = Level<Sources, 6>;
  using OtherSet = Level<OtherSets, 9>;
  static constexpr int order = static_cast<int>(value(prime) % orders);
  static constexpr bool scores_are_turned = value(10) % 4 >= 2;
  static constexpr bool has_sink = value(10) % 2 == 1;
  static constexpr std::size_t static_shape = row % prime;
  static constexpr std::size_t static_stream = value(prime) % streams;

  static auto scores(const Numbers& numbers) {
    const auto first = Level<ScoreSets, 7>::stages(numbers);
    const auto second = Level<MoreScoreSets, 8>::stages(numbers);
    if constexpr (scores_are_turned)
      return joined(second, first);
    else
      return joined(first, second);
  }
  static std::string score_letters() {
    const std::string first = cover::score_letters[choice<ScoreSets>(7)];
    const std::string second = more_score_letters[choice<MoreScoreSets>(8)];
    return scores_are_turned ? second + first : first + second;
  }

  static auto stages(const Numbers& numbers) {
    using Sink = std::conditional_t<has_sink, Plain<LearnedSink>, NoStage>;
    return ordered<order>(
        joined(Level<InputNorms, 0>::stages(numbers), Level<OtherNorms, 1>::stages(numbers)),
        Level<Ropes, 2>::stages(numbers), Level<GateSets<Source>, 5>::stages(numbers),
        joined(OtherSet::stages(numbers), Sink::stages(numbers)), scores(numbers),
        joined(Level<Masks, 3>::stages(numbers), Level<Biases, 4>::stages(numbers)));
  }

  static Choices choices() {
    Choices choices = {{"input norms", choice<InputNorms>(0)},
                       {"other norms", choice<OtherNorms>(1)},
                       {"rope", choice<Ropes>(2)},
                       {"mask", choice<Masks>(3)},
                       {"biases", choice<Biases>(4)},
                       {"gates", choice<GateSets<Source>>(5)},
                       {"scores", choice<ScoreSets>(7)},
                       {"more scores", choice<MoreScoreSets>(8)},
                       {"order of scores", scores_are_turned ? 1 : 0},
                       {"sink", has_sink ? 1 : 0},
                       {"others", choice<OtherSets>(9) % 3},
                       {"static", OtherSet::shape_is_static ? 1 : 0},
                       {"order", static_cast<std::size_t>(order)}};
    if (choices.at("gates") != 0) choices["source"] = choice<Sources>(6);
    return choices;
  }
};

/// What a run of a row takes for the numbers, and which choices that is.
struct RunNumbers {
  Numbers numbers;
  Choices choices;
};

inline RunNumbers run_numbers(std::size_t row, std::size_t run, Choices choices,
                              const std::string& letters, std::size_t static_shape,
                              std::size_t static_stream) {
  static constexpr Index reaches[] = {1, 2, 3, 64, 1000};
  static constexpr double epsilons[] = {1e-6, 1e-3, 1e-12};
  static constexpr double thetas[] = {1e4, 10, 5e6};
  const auto value = [&](std::size_t column) { return (row * column + run) % prime; };
  const auto has_score = [&](char letter) { return letters.find(letter) != std::string::npos; };
  const bool is_static = choices.at("static") == 1;
  choices["shape"] = is_static ? static_shape : value(0);
  choices["stream"] = is_static ? static_stream : value(7) % streams;
  choices["situation"] = value(1);
  choices["threads"] = value(2) % 3;
  choices["eps"] = value(3) % 3;
  if (choices.at("rope") != 0) choices["turn"] = value(4) % turns;
  if (choices.at("rope") != 0) choices["theta"] = value(5) % 3;
  if (mask_reaches[choices.at("mask")]) choices["reach"] = value(6) % 5;
  if (has_score('b') || has_score('m')) choices["views"] = value(8) % 4;
  if (has_score('a')) choices["slopes"] = value(9) % 2;
  Numbers numbers;
  numbers.shape = shape_of(choices.at("shape"), choices.at("stream"));
  numbers.turn = static_cast<int>(value(4) % turns);
  numbers.reach = reaches[value(6) % 5];
  numbers.eps = epsilons[choices.at("eps")];
  numbers.theta = thetas[value(5) % 3];
  numbers.own_slopes = value(9) % 2 == 1;
  numbers.situation = situations()[choices.at("situation")];
  numbers.situation.threads = static_cast<Index>(choices.at("threads")) + 1;
  numbers.situation.prefix = numbers.reach;
  numbers.situation.one_view_of_heads = value(8) % 2 == 0;
  numbers.situation.one_view_of_tokens = value(8) % 4 >= 2;
  return {numbers, choices};
}

inline std::string remark(const Choices& choices) {
  std::string text = " with";
  for (const auto& [factor, choice] : choices) text += " " + factor + ":" + std::to_string(choice);
  return text;
}

template <class Scalar, std::size_t row>
void check_row(Tally& tally) {
  using R = Row<row>;
  tally.add_scores(R::score_letters());
  for (std::size_t number = 0; number < prime; ++number) {
    const RunNumbers run = run_numbers(row, number, R::choices(), R::score_letters(),
                                       R::static_shape, R::static_stream);
    const auto stages = R::stages(run.numbers);
    const auto check = [&](const auto& shape) {
      return check_layer_and_what_it_reads(compose_list<Scalar>(shape, stages),
                                           run.numbers.situation, remark(run.choices));
    };
    if constexpr (R::OtherSet::shape_is_static)
      tally.add(run.choices, check(Static<shape_of(R::static_shape, R::static_stream)>{}));
    else
      tally.add(run.choices, check(run.numbers.shape));
  }
}

template <class Scalar>
Tally check_all_rows() {
  Tally tally;
  [&]<std::size_t... rows>(std::index_sequence<rows...>) {
    (check_row<Scalar, rows>(tally), ...);
  }
  (std::make_index_sequence<prime * prime>());
  return tally;
}

/// Everything that was promised has been run.
void expect_every_pair(const Tally& tally);

}  // namespace gated_attention::cover
