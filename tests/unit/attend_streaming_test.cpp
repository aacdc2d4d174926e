// SPDX-License-Identifier: MIT
#include "gated_attention/layer/attend.hpp"
#include "unit/layer_support.hpp"

// StreamingWindow in Attend, where the queries for the kept keys come with the call.

namespace gated_attention::layers {
namespace {

constexpr AttendShape shape{.query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5};

/// A ragged batch; kept_q has nothing to do with q, and rows with gaps of NaN.
template <class Scalar>
struct Numbers {
  static constexpr Index gap = 3;
  std::vector<Index> lengths, key_lengths;
  std::vector<Scalar> q, kept_q, k, v, sinks;

  Numbers(const std::vector<Index>& queries, const std::vector<Index>& keys)
      : lengths(queries), key_lengths(keys) {
    std::mt19937_64 engine(21);
    q = normal_numbers<Scalar>(tokens() * 4 * 6, engine);
    k = normal_numbers<Scalar>(count(key_lengths) * 2 * 6, engine);
    v = normal_numbers<Scalar>(count(key_lengths) * 2 * 5, engine);
    sinks = normal_numbers<Scalar>(4, engine);
    kept_q = normal_numbers<Scalar>(tokens() * 4 * (6 + gap), engine);
    for (std::size_t i = 0; i < kept_q.size(); ++i)
      if (i % 9 >= 6) kept_q[i] = std::numeric_limits<Scalar>::quiet_NaN();
  }

  static Index count(const std::vector<Index>& rows) {
    Index sum = 0;
    for (const Index n : rows) sum += n;
    return sum;
  }
  Index tokens() const { return count(lengths); }

  AttendBatch<Scalar> batch(bool in_cache) const {
    AttendBatch<Scalar> batch;
    batch.q = {q.data(), tokens(), 4, 6};
    if (in_cache) batch.kept_q = {kept_q.data(), tokens(), 4, 6, 4 * (6 + gap), 6 + gap};
    batch.k = {k.data(), count(key_lengths), 2, 6};
    batch.v = {v.data(), count(key_lengths), 2, 5};
    batch.lengths = lengths;
    batch.key_lengths = key_lengths;
    batch.sinks = sinks;
    return batch;
  }
};

template <class Scalar>
using Layer = Attend<Scalar, Alibi, StreamingWindow, LearnedSink>;

template <class Scalar>
reference::Tensor rows_of(const HeadsView<const Scalar>& view, Index first, Index count) {
  reference::Tensor rows(count, view.heads(), view.width());
  for (Index t = 0; t < count; ++t)
    for (Index h = 0; h < view.heads(); ++h)
      for (Index c = 0; c < view.width(); ++c)
        rows(t, h, c) = static_cast<double>(view(first + t, h, c));
  return rows;
}

/// The reference's answer, all sequences back to back: output, log-sum-exp and first key.
template <class Scalar>
std::vector<std::vector<double>> answer(const StreamingWindow& mask,
                                        const AttendBatch<Scalar>& batch) {
  reference::Description layer;
  layer.shape = {.query_heads = 4, .kv_heads = 2};
  layer.scale = 1 / std::sqrt(6.0);
  reference::Describe{layer}(mask);
  reference::Describe{layer}(Alibi{});
  reference::Scoring scoring{
      .visible = layer.visible, .scale = layer.scale, .stages = layer.score_stages};
  scoring.sinks.assign(batch.sinks.begin(), batch.sinks.end());
  scoring.offset = batch.offset;
  std::vector<std::vector<double>> all(3);
  Index first = 0, first_key = 0;
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    const Index tokens = batch.lengths[i], keys = batch.key_lengths[i];
    const reference::Attention part = reference::attend(
        rows_of(batch.q, first, tokens), rows_of(batch.k, first_key, keys),
        rows_of(batch.v, first_key, keys), scoring, {},
        batch.kept_q.empty() ? reference::Tensor() : rows_of(batch.kept_q, first, tokens));
    const auto append = [](std::vector<double>& to, const reference::Tensor& tensor) {
      to.insert(to.end(), tensor.values.begin(), tensor.values.end());
    };
    append(all[0], part.output);
    append(all[1], part.log_sum_exp);
    append(all[2], part.first_key);
    first += tokens;
    first_key += keys;
  }
  return all;
}

/// What a call gives.
template <class Scalar>
struct Out {
  std::vector<Scalar> out, lse, first;

  explicit Out(Index tokens)
      : out(at(tokens * 4 * 5), std::numeric_limits<Scalar>::quiet_NaN()),
        lse(at(tokens * 4), out.empty() ? Scalar(0) : out[0]),
        first(lse) {}
  HeadsView<Scalar> view() { return {out.data(), static_cast<Index>(lse.size()) / 4, 4, 5}; }
  AttendResults<Scalar> results() {
    const Index tokens = static_cast<Index>(lse.size()) / 4;
    return {.log_sum_exp = {lse.data(), tokens, 4},
            .first_token_attention = {first.data(), tokens, 4}};
  }
};

template <class Scalar>
void check_against_reference() {
  const Numbers<Scalar> numbers({7, 0, 90, 9}, {150, 4, 200, 5});
  const std::optional<Index> offsets[] = {{}, 0, 60, -3, 190};
  for (const KeyPositions positions : {KeyPositions::absolute, KeyPositions::in_cache})
    for (const Index kept : {0, 1, 5, 64, 70, 300})
      for (const Index window : {1, 20, 64, 400})
        for (const auto& offset : offsets) {
          const StreamingWindow mask{.kept = kept, .window = window, .positions = positions};
          const Layer<Scalar> layer(shape, mask);
          AttendBatch<Scalar> batch =
              numbers.batch(positions == KeyPositions::in_cache && kept > 0);
          batch.offset = offset;
          AttendWorkspace workspace(layer,
                                    {.tokens = 106, .keys = 359, .sequences = 4, .threads = 2});
          Out<Scalar> given(106);
          layer(batch, workspace, given.view(), given.results());
          const auto expected = answer(mask, batch);
          SCOPED_TRACE(std::to_string(kept) + " kept, window " + std::to_string(window) +
                       ", offset " + std::to_string(offset.value_or(-99)) +
                       (positions == KeyPositions::in_cache ? ", in cache" : ""));
          ASSERT_LE(relative_error(given.out, expected[0]), tolerance<Scalar>());
          ASSERT_LE(relative_error(given.lse, expected[1]), tolerance<Scalar>());
          ASSERT_LE(relative_error(given.first, expected[2]), tolerance<Scalar>());
        }
}

TEST(AttendStreaming, IsTheReferenceInFloat) {
  check_against_reference<float>();
}
TEST(AttendStreaming, IsTheReferenceInDouble) {
  check_against_reference<double>();
}

/// A partial result in memory of its own.
template <class Scalar>
struct Part {
  std::vector<Scalar> maximum, sum, output;
  PartialAttention<Scalar> view;

  explicit Part(Index tokens)
      : maximum(at(tokens * 4)),
        sum(maximum),
        output(at(tokens * 4 * 5)),
        view{{maximum.data(), tokens, 4}, {sum.data(), tokens, 4}, {output.data(), tokens, 4, 5}} {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
};

/// One call over all keys against the parts between the cuts, merged.
template <class Scalar>
void check_parts(const StreamingWindow& mask, std::vector<Index> cuts, bool same) {
  constexpr Index tokens = 9, keys = 2 * restart_keys + 200;
  const Numbers<Scalar> numbers({tokens}, {keys});
  const Layer<Scalar> layer(shape, mask);
  AttendWorkspace workspace(layer, {.tokens = tokens, .keys = keys, .threads = 1});
  AttendBatch<Scalar> batch = numbers.batch(mask.rule().in_cache);
  batch.lengths = batch.key_lengths = {};
  batch.offset = keys - tokens;
  Out<Scalar> whole(tokens), merged(tokens);
  layer(batch, workspace, whole.view(), whole.results());
  Part<Scalar> total(tokens);
  cuts.push_back(keys);
  Index first = 0;
  for (const Index cut : cuts) {
    AttendBatch<Scalar> some = batch;
    some.k = {batch.k.row(first, 0), cut - first, 2, 6};
    some.v = {batch.v.row(first, 0), cut - first, 2, 5};
    some.first_key = first;
    Part<Scalar> part(tokens);
    layer.partial(some, workspace, first == 0 ? total.view : part.view);
    if (first > 0) merge(total.view, part.view);
    first = cut;
  }
  AttendBatch<Scalar> epilogue;
  epilogue.sinks = batch.sinks;
  layer.finish(total.view, epilogue, workspace, merged.view());
  if (same) {
    EXPECT_EQ(merged.out, whole.out);
  }
  EXPECT_LE(relative_error(merged.out, {whole.out.begin(), whole.out.end()}), tolerance<Scalar>());
}

template <class Scalar>
void check_all_parts() {
  for (const KeyPositions positions : {KeyPositions::absolute, KeyPositions::in_cache})
    for (const Index kept : {1, 70, 2100})
      for (const Index window : {5, 150, 3000}) {
        SCOPED_TRACE(std::to_string(kept) + " kept, window " + std::to_string(window));
        const StreamingWindow mask{.kept = kept, .window = window, .positions = positions};
        check_parts<Scalar>(mask, {2 * restart_keys}, true);
        check_parts<Scalar>(mask, {restart_keys, 2 * restart_keys}, true);
        for (const std::vector<Index>& cuts :
             {std::vector<Index>{30}, {restart_keys}, {64, 1300, 2 * restart_keys + 195}})
          check_parts<Scalar>(mask, cuts, false);
      }
}

TEST(AttendStreaming, PartsMergedAreTheWhole) {
  check_all_parts<float>();
  check_all_parts<double>();
}

TEST(AttendStreaming, WantsQueriesForKeptKeysWhereTheyAreMetAndNowhereElse) {
  const Numbers<float> numbers({5}, {9});
  const auto refused = [&](const StreamingWindow& mask, const AttendBatch<float>& batch) {
    const Layer<float> layer(shape, mask);
    AttendWorkspace workspace(layer, {.tokens = 5, .keys = 9, .threads = 1});
    std::vector<float> out(5 * 4 * 5, 7);
    const std::string message = message_of([&] { layer(batch, workspace, {out.data(), 5, 4, 5}); });
    if (message != "nothing was refused") {
      EXPECT_EQ(out, std::vector<float>(5 * 4 * 5, 7));
    }
    return message;
  };
  const StreamingWindow absolute{.kept = 2, .window = 3};
  const StreamingWindow in_cache{.kept = 2, .window = 3, .positions = KeyPositions::in_cache};
  const StreamingWindow no_kept{.kept = 0, .window = 3, .positions = KeyPositions::in_cache};
  EXPECT_EQ(refused(absolute, numbers.batch(false)), "nothing was refused");
  EXPECT_EQ(refused(in_cache, numbers.batch(true)), "nothing was refused");
  EXPECT_EQ(refused(no_kept, numbers.batch(false)), "nothing was refused");
  EXPECT_EQ(refused(absolute, numbers.batch(true)), "Attend: kept_q has 5 tokens, not 0");
  EXPECT_EQ(refused(no_kept, numbers.batch(true)), "Attend: kept_q has 5 tokens, not 0");
  EXPECT_EQ(refused(in_cache, numbers.batch(false)), "Attend: kept_q has 0 tokens, not 5");
  AttendBatch<float> bad = numbers.batch(true);
  bad.kept_q = {numbers.kept_q.data(), 5, 2, 6};
  EXPECT_EQ(refused(in_cache, bad), "Attend: kept_q has 2 heads, not 4");
  bad.kept_q = {numbers.kept_q.data(), 5, 4, 5};
  EXPECT_EQ(refused(in_cache, bad), "Attend: kept_q has 5 channels, not 6");
}

}  // namespace
}  // namespace gated_attention::layers
