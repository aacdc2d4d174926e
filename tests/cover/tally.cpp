// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cover/pairs.hpp"

namespace gated_attention::cover {

std::string Tally::missing() const {
  std::ostringstream out;
  for (const auto& [factors, seen] : pairs_) {
    const auto& [a, b] = factors;
    // Choices of one factor beside which the other has no effect: without Rope there are no numbers of one, …
    const auto excluded = [&, first = a, second = b](const char* x, const char* y,
                                                     std::size_t choices_of_x) {
      const bool meant = (first == x && second == y) || (first == y && second == x);
      return meant ? choices_of_x * levels(y) : 0;
    };
    const std::size_t wanted = levels(a) * levels(b) - excluded("rope", "turn", 1) -
                               excluded("rope", "theta", 1) - excluded("mask", "reach", 4) -
                               excluded("gates", "source", 1) -
                               excluded("more scores", "slopes", 3);
    if (seen.size() != wanted)
      out << seen.size() << " of " << wanted << " pairs of " << a << " and " << b << "; ";
  }
  return out.str();
}

void expect_every_pair(const Tally& tally) {
  static const std::map<std::string, std::size_t> levels = {
      {"input norms", 7}, {"other norms", 7},     {"rope", 3},
      {"turn", 7},        {"theta", 3},           {"mask", 7},
      {"reach", 5},       {"biases", 7},          {"gates", 7},
      {"source", 4},      {"scores", 6},          {"more scores", 6},
      {"slopes", 2},      {"order of scores", 2}, {"views", 4},
      {"sink", 2},        {"others", 3},          {"static", 2},
      {"order", 5},       {"shape", 11},          {"stream", 3},
      {"situation", 11},  {"threads", 3},         {"eps", 3}};
  EXPECT_EQ(tally.missing(), "");
  EXPECT_EQ(tally.factors(), levels.size());
  for (const auto& [factor, count] : levels) EXPECT_EQ(tally.levels(factor), count) << factor;
  EXPECT_EQ(tally.score_orders(), 6u * 5u);
  for (std::size_t mask = 0; mask < levels.at("mask"); ++mask)
    EXPECT_GT(tally.unread(mask), 0) << "behind mask " << mask << " nothing was hidden";
}

}  // namespace gated_attention::cover
