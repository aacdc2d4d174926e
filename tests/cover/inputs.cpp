// SPDX-License-Identifier: MIT
#include "cover/inputs.hpp"

#include <numeric>
#include <random>

#include "unit/reference_support.hpp"

namespace gated_attention::cover {

using support::at;

template <class Scalar>
Rows<Scalar>::Rows(Index row_count, Index row_width)
    : count(row_count),
      width(row_width),
      values(support::not_numbers<Scalar>(row_count * (row_width + gap))) {}

namespace {

Index sum(const std::vector<Index>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), Index{0});
}

template <class Scalar>
Rows<Scalar> drawn_rows(Index count, Index width, std::mt19937_64& engine) {
  std::normal_distribution<double> normal;
  Rows<Scalar> rows(count, width);
  for (Index t = 0; t < count; ++t)
    for (Index c = 0; c < width; ++c) rows.row(t)[c] = static_cast<Scalar>(normal(engine));
  return rows;
}

bool has_stage(const reference::Description& layer, reference::ScoreStage::Kind kind) {
  return std::any_of(layer.score_stages.begin(), layer.score_stages.end(),
                     [&](const reference::ScoreStage& stage) { return stage.kind == kind; });
}

}  // namespace

template <class Scalar>
Inputs<Scalar>::Inputs(const reference::Description& layer, const Situation& situation)
    : situation_(situation), is_cross_(layer.shape.is_cross()) {
  std::mt19937_64 engine(7);
  x_ = drawn_rows<Scalar>(sum(situation.lengths), layer.shape.model_dim, engine);
  if (is_cross_)
    context_ = drawn_rows<Scalar>(sum(situation.context_lengths), layer.shape.context_dim, engine);
  if (layer.visible.prefixed)
    for (std::size_t i = 0; i < situation.lengths.size(); ++i)
      prefixes_.push_back(i % 2 == 0 ? situation.prefix : 0);
  draw_views(layer);
}

/// One key in five is masked, and in each view a whole row; of more than 64 keys the first 64 are masked by the bias and
/// those from 64 on by the mask, for every other token: blocks that need not be computed.
template <class Scalar>
void Inputs<Scalar>::draw_views(const reference::Description& layer) {
  constexpr Scalar masked = -std::numeric_limits<Scalar>::infinity();
  const bool biased = has_stage(layer, reference::ScoreStage::Kind::bias);
  const bool has_mask = has_stage(layer, reference::ScoreStage::Kind::boolean);
  if (!biased && !has_mask) return;
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  for (std::size_t i = 0; i < situation_.lengths.size(); ++i) {
    const Index keys = key_lengths()[i], stride = keys + gap;
    const Index heads = situation_.one_view_of_heads ? 1 : layer.shape.query_heads;
    const Index tokens = situation_.one_view_of_tokens ? 1 : situation_.lengths[i];
    std::vector<Scalar> bias = support::not_numbers<Scalar>(heads * tokens * stride + 1);
    std::unique_ptr<bool[]> mask(new bool[at(heads * tokens * stride + 1)]());
    for (Index row = 0; row < heads * tokens; ++row)
      for (Index s = 0; s < keys; ++s) {
        const bool whole = row == 3, many = keys > 64 && row % 2 == 0;
        const bool by_bias = whole || (many && s < 64) || uniform(engine) < 0.2;
        const bool by_mask = whole || (many && s >= 64) || uniform(engine) < 0.2;
        bias[at(row * stride + s)] = by_bias ? masked : static_cast<Scalar>(normal(engine));
        mask[at(row * stride + s)] = !by_mask;
      }
    const Index of_heads = heads == 1 ? 0 : tokens * stride, of_tokens = tokens == 1 ? 0 : stride;
    bias_views_.emplace_back(bias.data(), heads, tokens, keys, of_heads, of_tokens);
    mask_views_.emplace_back(mask.get(), heads, tokens, keys, of_heads, of_tokens);
    biases_.push_back(std::move(bias));
    masks_.push_back(std::move(mask));
  }
  if (!biased) bias_views_.clear();
  if (!has_mask) mask_views_.clear();
}

template <class Scalar>
Batch<Scalar> Inputs<Scalar>::batch() const {
  Batch<Scalar> batch{.x = x_.view(),
                      .lengths = situation_.lengths,
                      .positions = situation_.positions,
                      .prefixes = prefixes_,
                      .score_bias = bias_views_,
                      .boolean_mask = mask_views_};
  if (is_cross_) {
    batch.context = context_.view();
    batch.context_lengths = situation_.context_lengths;
    batch.context_positions = situation_.context_positions;
  }
  return batch;
}

template <class Scalar>
Limits Inputs<Scalar>::limits() const {
  return {.tokens = x_.count,
          .sequences = static_cast<Index>(situation_.lengths.size()),
          .threads = situation_.threads,
          .context_tokens = context_.count};
}

template <class Scalar>
void Inputs<Scalar>::poison() {
  constexpr Scalar bad[] = {std::numeric_limits<Scalar>::quiet_NaN(),
                            std::numeric_limits<Scalar>::infinity(),
                            -std::numeric_limits<Scalar>::infinity()};
  Rows<Scalar>& rows = is_cross_ ? context_ : x_;
  Index first = 0;
  for (const Index keys : key_lengths()) {
    if (keys > 0)
      for (Index c = 0; c < rows.width; ++c)
        rows.row(first + poisoned_key(keys))[c] = bad[(first + c) % 3];
    first += keys;
  }
}

template struct Rows<float>;
template struct Rows<double>;
template class Inputs<float>;
template class Inputs<double>;

}  // namespace gated_attention::cover
