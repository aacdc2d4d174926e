// SPDX-License-Identifier: MIT
#include <set>

#include "gated_attention/layer/attend.hpp"
#include "unit/layer_support.hpp"

// What Attend gives beside its output: the probability of the first key, the gate's scores; and where
// the output may lie.

namespace gated_attention::layers {
namespace {

constexpr AttendShape shape{.query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5};

/// A ragged batch: more keys than queries, none, fewer.
template <class Scalar>
struct Numbers {
  std::vector<Index> lengths = {7, 0, 9}, key_lengths = {150, 4, 6}, prefixes = {20, 1, 3};
  std::vector<Scalar> q, k, v, logits, sinks, bias;
  std::vector<ScoreView<const Scalar>> bias_views;

  Numbers() {
    std::mt19937_64 engine(31);
    q = normal_numbers<Scalar>(16 * 4 * 6, engine);
    k = normal_numbers<Scalar>(160 * 2 * 6, engine);
    v = normal_numbers<Scalar>(160 * 2 * 5, engine);
    logits = normal_numbers<Scalar>(16 * 4 * 5, engine, 2);
    sinks = normal_numbers<Scalar>(4, engine);
    bias = normal_numbers<Scalar>(4 * 7 * 150 + 4 * 9 * 6, engine);
    for (Index t = 0; t < 3; ++t) bias[at(t * 150)] = -std::numeric_limits<Scalar>::infinity();
    bias_views = {{bias.data(), 4, 7, 150}, {bias.data(), 1, 0, 4}, {&bias[4 * 7 * 150], 4, 9, 6}};
  }

  AttendBatch<Scalar> batch() const {
    return {.q = {q.data(), 16, 4, 6},
            .k = {k.data(), 160, 2, 6},
            .v = {v.data(), 160, 2, 5},
            .lengths = lengths,
            .key_lengths = key_lengths};
  }
};

template <class Scalar>
reference::Tensor tensor(const HeadsView<const Scalar>& view, Index first, Index count) {
  reference::Tensor rows(count, view.heads(), view.width());
  for (Index t = 0; t < count; ++t)
    for (Index h = 0; h < view.heads(); ++h)
      for (Index c = 0; c < view.width(); ++c)
        rows(t, h, c) = static_cast<double>(view(first + t, h, c));
  return rows;
}

/// The first key's probabilities by the reference, all sequences back to back.
template <class Scalar>
std::vector<double> first_keys(const AttendBatch<Scalar>& batch,
                               const reference::Scoring& scoring) {
  std::vector<double> all;
  Index first = 0, first_key = 0;
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    const Index tokens = batch.lengths[i], keys = batch.key_lengths[i];
    reference::ScoreInputs inputs;
    if (!batch.prefixes.empty()) inputs.prefix = batch.prefixes[i];
    if (!batch.score_bias.empty()) inputs.bias = reference::tensor_of(batch.score_bias[i]);
    const reference::Attention part =
        reference::attend(tensor(batch.q, first, tokens), tensor(batch.k, first_key, keys),
                          tensor(batch.v, first_key, keys), scoring, inputs);
    all.insert(all.end(), part.first_key.values.begin(), part.first_key.values.end());
    first += tokens;
    first_key += keys;
  }
  return all;
}

template <class Scalar, class... Stages>
void check_first_key(const Stages&... stages) {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  constexpr bool sunk = (... || std::is_same_v<Stages, LearnedSink>);
  const Numbers<Scalar> numbers;
  AttendBatch<Scalar> batch = numbers.batch();
  if ((... || std::is_same_v<Stages, PrefixCausal>)) batch.prefixes = numbers.prefixes;
  if ((... || std::is_same_v<Stages, ScoreBias>)) batch.score_bias = numbers.bias_views;
  if (sunk) batch.sinks = numbers.sinks;
  reference::Description layer;
  layer.shape = {.query_heads = 4, .kv_heads = 2};
  layer.scale = 1 / std::sqrt(6.0);
  (reference::Describe{layer}(stages), ...);
  reference::Scoring scoring{
      .visible = layer.visible, .scale = layer.scale, .stages = layer.score_stages};
  scoring.sinks.assign(batch.sinks.begin(), batch.sinks.end());
  const Attend<Scalar, Stages...> attend(shape, stages...);
  AttendWorkspace workspace(attend, {.tokens = 16, .keys = 160, .sequences = 3, .threads = 1});
  std::vector<Scalar> out(at(16 * 4 * 5)), lse(at(16 * 4)), first(lse.size(), Scalar(-7));
  attend(batch, workspace, {out.data(), 16, 4, 5},
         {.log_sum_exp = {lse.data(), 16, 4}, .first_token_attention = {first.data(), 16, 4}});
  const std::vector<double> expected = first_keys(batch, scoring);
  EXPECT_LE(relative_error(first, expected), tolerance<Scalar>());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(first[i], Scalar(0)) << "a key that is not seen gets nothing";
    }
  }
}

template <class Scalar>
void check_first_keys() {
  check_first_key<Scalar>(Causal{});
  check_first_key<Scalar>(Bidirectional{}, LearnedSink{});
  check_first_key<Scalar>(CausalTopLeft{}, Softcap{.cap = 1});
  check_first_key<Scalar>(SlidingWindow{.window = 4}, Alibi{});
  check_first_key<Scalar>(PrefixCausal{}, ScoreBias{}, LearnedSink{});
  check_first_key<Scalar>(BidirectionalWindow{.left = 3, .right = 2}, SoftmaxScale{.scale = -0.4});
}

TEST(AttendResults, TheFirstKeysProbabilityIsTheReferences) {
  check_first_keys<float>();
  check_first_keys<double>();
}

/// The scores of one gate, by a call and by the epilogue of merged parts; the logits' rows, and the
/// scores', with gaps.
template <class Scalar, class GateStage>
void check_gate_scores() {
  SCOPED_TRACE(__PRETTY_FUNCTION__);
  constexpr Index heads = GateStage::shared ? 1 : 4, width = GateStage::elementwise ? 5 : 1;
  constexpr Index tokens = 16, head_stride = width + 2, token_stride = heads * head_stride + 1;
  const Numbers<Scalar> numbers;
  std::vector<Scalar> logits(at(tokens * token_stride), std::numeric_limits<Scalar>::quiet_NaN());
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index c = 0; c < width; ++c)
        logits[at(t * token_stride + h * head_stride + c)] =
            numbers.logits[at((t * 4 + h) * 5 + c)];
  AttendBatch<Scalar> batch = numbers.batch();
  batch.gate_logits = {logits.data(), tokens, heads, width, token_stride, head_stride};
  const Attend<Scalar, Scale<at::Sdpa>, GateStage> attend(shape, Scale<at::Sdpa>{.factor = 2});
  AttendWorkspace workspace(attend, {.tokens = tokens, .keys = 160, .sequences = 3, .threads = 1});
  std::vector<Scalar> out(at(tokens * 4 * 5)), other = out;
  const auto expect_scores = [&](const std::vector<Scalar>& scores) {
    for (Index t = 0; t < tokens; ++t)
      for (Index i = 0; i < token_stride; ++i) {
        const Index h = i / head_stride, c = i % head_stride;
        const Scalar score = scores[at(t * token_stride + i)];
        if (h >= heads || c >= width) {
          EXPECT_EQ(score, Scalar(-7)) << "between the rows";
          continue;
        }
        const double logit = static_cast<double>(numbers.logits[at((t * 4 + h) * 5 + c)]);
        EXPECT_NEAR(static_cast<double>(score),
                    reference::activation<typename GateStage::activation>(logit),
                    tolerance<Scalar>());
      }
  };
  std::vector<Scalar> scores(logits.size(), Scalar(-7));
  const auto view = [&](std::vector<Scalar>& to) {
    return HeadsView<Scalar>(to.data(), tokens, heads, width, token_stride, head_stride);
  };
  attend(batch, workspace, {out.data(), tokens, 4, 5}, {.gate_scores = view(scores)});
  expect_scores(scores);
  attend(batch, workspace, {other.data(), tokens, 4, 5});
  EXPECT_EQ(out, other) << "asking for scores changes nothing";

  std::vector<Scalar> maximum(at(tokens * 4)), sum = maximum, merged = out;
  const PartialAttention<Scalar> part{
      {maximum.data(), tokens, 4}, {sum.data(), tokens, 4}, {merged.data(), tokens, 4, 5}};
  attend.partial(batch, workspace, part);
  AttendBatch<Scalar> epilogue;
  epilogue.gate_logits = batch.gate_logits;
  std::fill(scores.begin(), scores.end(), Scalar(-7));
  attend.finish(part, epilogue, workspace, {other.data(), tokens, 4, 5},
                {.gate_scores = view(scores)});
  expect_scores(scores);
  EXPECT_EQ(out, other);
}

TEST(AttendResults, TheGatesScoresAreItsActivationOfTheLogits) {
  check_gate_scores<float, Gate<at::Sdpa>>();
  check_gate_scores<float, Gate<at::Sdpa, Headwise, Silu, Add>>();
  check_gate_scores<float, Gate<at::Sdpa, SharedHeads, Tanh>>();
  check_gate_scores<double, Gate<at::Sdpa, Headwise, SharedHeads, NonSparseSigmoid>>();
  check_gate_scores<double, Gate<at::Sdpa, Softplus>>();
}

/// A call on memory of its own, whose views can be moved; what may be written starts as 77.
struct Placed {
  static constexpr Index tokens = 5, out_place = 1500;
  using Layer = Attend<float, Gate<at::Sdpa>, StreamingWindow>;

  Layer layer{shape, StreamingWindow{.kept = 1, .window = 2, .positions = KeyPositions::in_cache}};
  AttendWorkspace<Layer> workspace{layer, {.tokens = tokens, .keys = tokens, .threads = 1}};
  std::vector<float> memory = std::vector<float>(2000, 77);
  AttendBatch<float> batch = {.q = read(0, 4, 6),
                              .kept_q = read(300, 4, 6),
                              .k = read(600, 2, 6),
                              .v = read(900, 2, 5),
                              .gate_logits = read(1200, 4, 5)};
  HeadsView<float> out{memory.data() + out_place, tokens, 4, 5};

  Placed() {
    std::mt19937_64 engine(9);
    const std::vector<float> numbers = normal_numbers<float>(out_place, engine);
    std::copy(numbers.begin(), numbers.end(), memory.begin());
  }
  Placed(const Placed&) = delete;

  HeadsView<const float> read(Index first, Index heads, Index width) const {
    return {memory.data() + first, tokens, heads, width};
  }
  /// What the call says; a refused one must have written nothing.
  std::string run() {
    const std::vector<float> before = memory;
    const std::string message = message_of([&] { layer(batch, workspace, out); });
    if (message != "nothing was refused") {
      EXPECT_EQ(memory, before) << "a refused call wrote";
    }
    return message;
  }
};

TEST(AttendResults, AnOutputThatOverlapsWhatIsReadIsRefused) {
  struct View {
    const char* name;
    Index first, elements, row;
  };
  constexpr View views[] = {{"q", 0, 120, 24},
                            {"kept_q", 300, 120, 24},
                            {"k", 600, 60, 12},
                            {"v", 900, 50, 10},
                            {"gate_logits", 1200, 100, 20}};
  for (const View& view : views)
    for (const Index start : {view.first - 99, view.first - 1, view.first, view.first + 7,
                              view.first + view.elements - 1}) {
      if (start < 0) continue;
      Placed call;
      call.out = {call.memory.data() + start, Placed::tokens, 4, 5};
      EXPECT_EQ(call.run(), "Attend: out overlaps " + std::string(view.name) + ", which starts " +
                                std::to_string(view.first - start) +
                                " elements behind it, with rows of 20 and " +
                                std::to_string(view.row) + " elements: they must lie apart");
    }
}

TEST(AttendResults, AnOutputRightBesideWhatIsReadIsAccepted) {
  for (const Index start : {120, 200, 420, 500, 660, 800, 950, 1100, 1300}) {
    Placed call, apart;
    call.out = {call.memory.data() + start, Placed::tokens, 4, 5};
    EXPECT_EQ(call.run(), "nothing was refused") << start;
    apart.run();
    EXPECT_TRUE(std::equal(call.memory.begin() + start, call.memory.begin() + start + 100,
                           apart.memory.begin() + Placed::out_place));
  }
}

TEST(AttendResults, RowsOfOneMatrixMayInterleave) {
  Placed apart;
  ASSERT_EQ(apart.run(), "nothing was refused");
  // One row a token: gate logits | out | q | k | v | kept_q, in this order from every one of them on.
  constexpr Index widths[] = {20, 20, 24, 12, 10, 24}, row = 110;
  for (int turn = 0; turn < 6; ++turn) {
    Placed call;
    Index begin[6] = {}, next = 0;
    for (int i = 0; i < 6; ++i) {
      begin[(i + turn) % 6] = next;
      next += widths[(i + turn) % 6];
    }
    std::vector<float> matrix(at(Placed::tokens * row));
    const auto move = [&](int place, HeadsView<const float>& view) {
      for (Index t = 0; t < Placed::tokens; ++t)
        std::copy_n(view.row(t, 0), widths[place], matrix.data() + t * row + begin[place]);
      view = {matrix.data() + begin[place],
              Placed::tokens,
              view.heads(),
              view.width(),
              row,
              view.width()};
    };
    move(0, call.batch.gate_logits);
    move(2, call.batch.q);
    move(3, call.batch.k);
    move(4, call.batch.v);
    move(5, call.batch.kept_q);
    call.out = {matrix.data() + begin[1], Placed::tokens, 4, 5, row, 5};
    ASSERT_EQ(call.run(), "nothing was refused") << turn;
    for (Index t = 0; t < Placed::tokens; ++t)
      for (Index i = 0; i < 20; ++i)
        EXPECT_EQ(matrix[at(t * row + begin[1] + i)],
                  apart.memory[at(Placed::out_place + t * 20 + i)]);
  }
}

TEST(AttendResults, AnOutputOverTheLogitsOfMergedPartsIsRefused) {
  const Attend<float, Gate<at::Sdpa>> layer(shape);
  AttendWorkspace workspace(layer, {.tokens = 5, .keys = 5, .threads = 1});
  std::vector<float> maximum(20, 0), sum(20, 1), output(100, 2), logits(120, 3);
  const PartialAttention<float> merged{
      {maximum.data(), 5, 4}, {sum.data(), 5, 4}, {output.data(), 5, 4, 5}};
  AttendBatch<float> batch;
  batch.gate_logits = {logits.data(), 5, 4, 5};
  EXPECT_EQ(message_of([&] {
              layer.finish(merged, batch, workspace, {&logits[20], 5, 4, 5});
            }),
            "Attend::finish: out overlaps gate_logits, which starts -20 elements behind it, with "
            "rows of 20 and 20 elements: they must lie apart");
  EXPECT_EQ(logits, std::vector<float>(120, 3));
}

/// The elements of a view.
std::set<const float*> elements(const HeadsView<float>& view) {
  std::set<const float*> all;
  for (Index t = 0; t < view.tokens(); ++t)
    for (Index h = 0; h < view.heads(); ++h)
      for (Index c = 0; c < view.width(); ++c) all.insert(&view(t, h, c));
  return all;
}

TEST(AttendResults, ViewsThatAreTakenForApartShareNoElement) {
  std::mt19937_64 engine(2);
  const auto drawn_from = [&](Index least, Index most) {
    return std::uniform_int_distribution<Index>(least, most)(engine);
  };
  std::vector<float> memory(200);
  Index apart = 0, interleaved = 0;
  const auto view = [&](Index token_stride) {
    return HeadsView<float>(memory.data() + drawn_from(80, 100), drawn_from(0, 3), drawn_from(1, 2),
                            drawn_from(1, 3), token_stride, drawn_from(-4, 4));
  };
  for (int i = 0; i < 20000; ++i) {
    const Index stride = drawn_from(-12, 12);
    const HeadsView<float> a = view(stride), b = view(i % 4 == 0 ? drawn_from(-12, 12) : stride);
    const std::set<const float*> of_a = elements(a), of_b = elements(b);
    bool share = false;
    for (const float* element : of_a) share = share || of_b.contains(element);
    const bool refused =
        message_of([&] { kernel::check_apart("f", "a", a, "b", b); }) != "nothing was refused";
    ASSERT_TRUE(refused || !share) << "trial " << i;
    if (refused || of_a.empty() || of_b.empty()) continue;
    ++apart;
    interleaved += *of_a.begin() < *of_b.rbegin() && *of_b.begin() < *of_a.rbegin() ? 1 : 0;
  }
  EXPECT_GT(apart, 1000);
  EXPECT_GT(interleaved, 100) << "rows that interleave must be among those that are accepted";
}

}  // namespace
}  // namespace gated_attention::layers
