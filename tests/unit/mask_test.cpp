// SPDX-License-Identifier: MIT
#include "gated_attention/policy/mask.hpp"

#include <fstream>
#include <map>

#include "gated_attention/layer/attend.hpp"
#include "unit/score_support.hpp"

// Which keys each mask lets a query see: the pictures of its page, and every offset between queries and keys.

namespace gated_attention::scores {
namespace {

/// Rows of # and · as Attend makes them: where all scores are 0 and value s is the s-th unit vector, output s of a query
/// is above 0 if it sees key s, and else exactly 0.
template <class Mask>
std::vector<std::string> seen(const Mask& mask, Index tokens, Index keys, Index prefix = 0,
                              std::optional<Index> offset = {}) {
  const Attend<float, Mask> layer({1, 1, 1, keys}, mask);
  const std::vector<float> zeros(at(tokens + keys));
  std::vector<float> values(at(keys * keys));
  for (Index s = 0; s < keys; ++s) values[at(s * keys + s)] = 1;
  AttendBatch<float> batch{.q = {zeros.data(), tokens, 1, 1},
                           .k = {zeros.data(), keys, 1, 1},
                           .v = {values.data(), keys, 1, keys},
                           .offset = offset};
  if (std::is_same_v<Mask, PrefixCausal>) batch.prefixes = {&prefix, 1};
  const Given<float> given = run(layer, batch);
  std::vector<std::string> rows;
  for (Index t = 0; t < tokens; ++t) {
    std::string row(at(keys), '.');
    for (Index s = 0; s < keys; ++s) {
      const float probability = given.out[at(t * keys + s)];
      EXPECT_TRUE(probability >= 0);
      if (probability > 0) row[at(s)] = '#';
    }
    rows.push_back(row);
  }
  return rows;
}

/// The three pictures of each mask on the page, in the order of `extents`, by the mask's name.
struct Extent {
  Index tokens, keys;
  std::size_t column;
};
constexpr Extent extents[] = {{5, 5, 28}, {3, 5, 46}, {5, 3, 64}};

std::map<std::string, std::vector<std::vector<std::string>>> pictures() {
  std::ifstream page(GATED_ATTENTION_SOURCE_DIR "/include/gated_attention/policy/README.md");
  std::map<std::string, std::vector<std::vector<std::string>>> found;
  std::string line, name;
  while (std::getline(page, line) && line.find("T = 5, S = 5") == std::string::npos) {
  }
  while (std::getline(page, line) && line != "```") {
    for (auto dot = line.find("·"); dot != std::string::npos; dot = line.find("·"))
      line.replace(dot, std::string_view("·").size(), 1, '.');
    const std::string word = line.substr(0, line.find_first_of(" {"));
    if (!word.empty()) {
      name = word;
      found[name].resize(3);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      std::string row;
      const auto width = static_cast<std::size_t>(2 * extents[i].keys - 1);
      if (line.size() >= extents[i].column) row = line.substr(extents[i].column, width);
      std::erase(row, ' ');
      if (!row.empty()) found[name][i].push_back(row);
    }
  }
  return found;
}

template <class Mask>
void expect_picture(const std::vector<std::vector<std::string>>& wanted, const Mask& mask,
                    Index prefix = 0) {
  ASSERT_EQ(wanted.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(seen(mask, extents[i].tokens, extents[i].keys, prefix), wanted[i])
        << __PRETTY_FUNCTION__ << " with T = " << extents[i].tokens;
}

TEST(Masks, AreThePicturesOfTheirPage) {
  auto page = pictures();
  EXPECT_EQ(page.size(), 7u);
  expect_picture(page["Causal"], Causal{});
  expect_picture(page["CausalTopLeft"], CausalTopLeft{});
  expect_picture(page["SlidingWindow"], SlidingWindow{.window = 2});
  expect_picture(page["StreamingWindow"], StreamingWindow{.kept = 1, .window = 2});
  expect_picture(page["PrefixCausal"], PrefixCausal{}, 2);
  expect_picture(page["BidirectionalWindow"], BidirectionalWindow{.left = 1, .right = 1});
  expect_picture(page["Bidirectional"], Bidirectional{});
}

/// Rows of # and . by the words of a mask: `sees(p, s)`, p the query's place among the keys.
template <class Sees>
std::vector<std::string> in_words(Index tokens, Index keys, Index shift, const Sees& sees) {
  std::vector<std::string> rows;
  for (Index t = 0; t < tokens; ++t) {
    std::string row(at(keys), '.');
    for (Index s = 0; s < keys; ++s)
      if (sees(t + shift, s)) row[at(s)] = '#';
    rows.push_back(row);
  }
  return rows;
}

template <class Mask, class Sees>
void expect_counts(const Mask& mask, const Sees& sees, Index prefix = 0) {
  constexpr bool top_left = std::is_same_v<Mask, CausalTopLeft>;
  for (const Index tokens : {1, 2, 7, 70})
    for (const Index keys : {1, 3, 8, 65, 130}) {
      EXPECT_EQ(seen(mask, tokens, keys, prefix),
                in_words(tokens, keys, top_left ? 0 : keys - tokens, sees))
          << __PRETTY_FUNCTION__ << tokens << " queries, " << keys << " keys";
      for (const Index offset : {Index{0}, Index{-3}, Index{5}, Index{64}, keys, keys + 9})
        EXPECT_EQ(seen(mask, tokens, keys, prefix, offset), in_words(tokens, keys, offset, sees))
            << __PRETTY_FUNCTION__ << tokens << " queries, " << keys << " keys, offset " << offset;
    }
}

TEST(Masks, CountExactlyForEveryOffsetBetweenQueriesAndKeys) {
  expect_counts(Causal{}, [](Index p, Index s) { return s <= p; });
  expect_counts(CausalTopLeft{}, [](Index p, Index s) { return s <= p; });
  expect_counts(Bidirectional{}, [](Index, Index) { return true; });
  for (const Index n : {1, 2, 64, 100})
    expect_counts(SlidingWindow{.window = n},
                  [&](Index p, Index s) { return s <= p && p - s + 1 <= n; });
  for (const Index n : {0, 1, 4, 66, 1000})
    expect_counts(
        PrefixCausal{}, [&](Index p, Index s) { return s <= p || s < n; }, n);
  for (const Index left : {0, 3, 64})
    for (const Index right : {0, 1, 70})
      expect_counts(BidirectionalWindow{.left = left, .right = right},
                    [&](Index p, Index s) { return p - s <= left && s - p <= right; });
}

/// The offset moves where a query stands for masks and for stages that count from it alike.
template <class Scalar, class Mask>
void check_offsets(const Mask& mask) {
  const Problem<Scalar> problem;
  const Score<Fading> fading{{.rate = 0.02, .reach = 60}};
  const Attend<Scalar, Mask, Alibi, ScoreBias, Score<Fading>> layer(problem.shape(), mask, Alibi{},
                                                                    fading);
  AttendBatch<Scalar> batch = problem.template batch<ScoreBias, Mask>();
  reference::Scoring scoring = scoring_of(problem.shape(), mask, Alibi{}, ScoreBias{}, fading);
  for (const Index offset : {-2, 0, 3, 100, 160}) {
    batch.offset = scoring.offset = offset;
    const Given<Scalar> given = run(layer, batch);
    const reference::Attention expected = answer(scoring, batch);
    EXPECT_LE(relative_error(given.out, expected.output.values), tolerance<Scalar>())
        << __PRETTY_FUNCTION__ << " at " << offset;
    EXPECT_LE(relative_error(given.lse, expected.log_sum_exp.values), tolerance<Scalar>())
        << __PRETTY_FUNCTION__ << " at " << offset;
  }
}

TEST(Masks, AndScoresMoveWithTheOffset) {
  check_offsets<float>(Causal{});
  check_offsets<double>(CausalTopLeft{});
  check_offsets<double>(PrefixCausal{});
  check_offsets<float>(BidirectionalWindow{.left = 30, .right = 40});
}

}  // namespace
}  // namespace gated_attention::scores
