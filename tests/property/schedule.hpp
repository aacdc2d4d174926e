// SPDX-License-Identifier: MIT
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "bitwise/extending_layer.hpp"

// What RapidCheck draws: a layer's numbers, a cache, and a schedule of what is done to its sequences.

namespace gated_attention::test {

/// One step. What it holds is cut to what fits: every drawn step can be run.
struct Step {
  enum class Action {
    append,    ///< `lengths` tokens to the sequences
    spoil,     ///< the same, but those of `sequence` are not finite, and are dropped again
    truncate,  ///< `sequence` to a share of its keys
    reset,     ///< `sequence`
    fork,      ///< `other` becomes a share of `sequence` (paged caches)
  };

  Action action = Action::append;
  std::vector<Index> lengths;
  Index sequence = 0, other = 0;
  Index permille = 0;  ///< the share that stays
  Index seed = 0;      ///< of what the tokens are
  Run run;
};

/// Everything of a trial.
struct Schedule {
  Index sequences = 1;
  Index window = 1, kept = 0;  ///< for the layers that have one
  Index ring_spare = 0;        ///< what a ring holds beyond the window; −1: the default
  Index prefix_permille = 0;   ///< of the first chunk
  Index cache = 0, storage = 0;
  std::vector<Step> steps;
};

inline void showValue(const Step& step, std::ostream& out) {
  static constexpr const char* actions[] = {"append", "spoil", "truncate", "reset", "fork"};
  out << actions[static_cast<int>(step.action)] << " lengths {";
  for (const Index length : step.lengths) out << ' ' << length;
  out << " } sequence " << step.sequence << " other " << step.other << " permille " << step.permille
      << " seed " << step.seed << " threads " << step.run.threads << " spare "
      << step.run.spare_tokens << (step.run.in_place ? " in place" : "") << '\n';
}

inline void showValue(const Schedule& schedule, std::ostream& out) {
  out << schedule.sequences << " sequences, window " << schedule.window << ", kept "
      << schedule.kept << ", ring spare " << schedule.ring_spare << ", prefix permille "
      << schedule.prefix_permille << ", cache " << schedule.cache << ", storage "
      << schedule.storage << '\n';
  for (const Step& step : schedule.steps) showValue(step, out);
}

/// What bounds the drawn numbers.
struct ScheduleLimits {
  int trials = 250;         ///< where RapidCheck would make 100
  Index most_tokens = 700;  ///< of a sequence
  std::vector<Index> windows = {1, 2, 3, 37, 63, 64, 65, 66, 127, 128, 129, 130, 300};
  std::vector<Index> kept = {0, 1, 5, 63, 64, 65, 130};
};

inline constexpr Index most_sequences = 4;

/// first … last, whatever RapidCheck's size.
inline rc::Gen<Index> between(Index first, Index last) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<Index>(first, last + 1));
}

/// Lengths of chunks: none, one, some, about a block, about a softmax step, hundreds; and thousands, where there is room.
inline rc::Gen<Index> chunk_length(Index most) {
  if (most < 2000)
    return rc::gen::weightedOneOf<Index>({{4, between(1, 1)},
                                          {3, between(0, 0)},
                                          {4, between(2, 9)},
                                          {3, between(62, 66)},
                                          {2, between(126, 130)},
                                          {2, between(150, 400)}});
  return rc::gen::weightedOneOf<Index>({{4, between(1, 1)},
                                        {3, between(0, 0)},
                                        {3, between(2, 9)},
                                        {3, between(62, 66)},
                                        {2, between(126, 130)},
                                        {2, between(150, 400)},
                                        {2, between(1900, 2100)}});
}

inline rc::Gen<Step> any_step(Index most) {
  using rc::gen::set;
  using Action = Step::Action;
  const auto run =
      rc::gen::build<Run>(set(&Run::threads, rc::gen::element<Index>(1, 2, 3, 7)),
                          set(&Run::spare_tokens, rc::gen::element<Index>(0, 0, 1, 200)),
                          set(&Run::in_place, rc::gen::element(false, false, false, true)));
  return rc::gen::build<Step>(
      set(&Step::action, rc::gen::weightedElement<Action>({{9, Action::append},
                                                           {1, Action::spoil},
                                                           {2, Action::truncate},
                                                           {1, Action::reset},
                                                           {2, Action::fork}})),
      set(&Step::lengths,
          rc::gen::container<std::vector<Index>>(most_sequences, chunk_length(most))),
      set(&Step::sequence, between(0, most_sequences - 1)),
      set(&Step::other, between(0, most_sequences - 1)), set(&Step::permille, between(0, 1000)),
      set(&Step::seed, between(0, 9999)), set(&Step::run, run));
}

inline rc::Gen<Schedule> any_schedule(const ScheduleLimits& limits) {
  using rc::gen::set;
  constexpr int most_steps = 16;
  return rc::gen::build<Schedule>(
      set(&Schedule::sequences, between(1, most_sequences)),
      set(&Schedule::window, rc::gen::elementOf(limits.windows)),
      set(&Schedule::kept, rc::gen::elementOf(limits.kept)),
      set(&Schedule::ring_spare, rc::gen::element<Index>(-1, 0, 1, 63, 64, 200)),
      set(&Schedule::prefix_permille, between(0, 1000)), set(&Schedule::cache, between(0, 2)),
      set(&Schedule::storage, between(0, 99)),
      set(&Schedule::steps, rc::gen::resize(most_steps, rc::gen::container<std::vector<Step>>(
                                                            any_step(limits.most_tokens)))));
}

}  // namespace gated_attention::test
