// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gated_attention/gated_attention.hpp"
#include "golden/chunked.hpp"
#include "golden/recording.hpp"

// Each recorded layer as a user composes it, in float and in double, against what its published
// code answers.

namespace gated_attention::test {

/// A composed layer whose type is forgotten.
template <class Scalar>
struct Composed {
  reference::Description description;
  Parameters<Scalar> parameters;
  LayerCall<Scalar> forward;
  /// In chunks of these sizes; empty where the layer cannot be extended.
  std::function<void(const Batch<Scalar>&, const std::vector<Index>&, MatrixView<Scalar>,
                     const Results<Scalar>&)>
      extend;
};

/// Every parameter gets its numbers from the recording, and everything recorded is used.
template <class Scalar>
void load(const Recording& recording, Parameters<Scalar>& parameters) {
  Loader<Scalar> loader(recording, parameters);
  loader.load();
  std::set<std::string> names;
  for (const TensorInfo& tensor : parameters.tensors()) names.insert(tensor.name);
  EXPECT_EQ(loader.filled(), names);
  for (const std::string& name : recording.weights())
    EXPECT_TRUE(loader.used().contains(name)) << name << " is recorded and not used";
}

template <class Layer, class Scalar = typename Layer::Scalar>
Composed<Scalar> forget_type(const Layer& layer, const Recording& recording) {
  const auto shared = std::make_shared<const Layer>(layer);
  Composed<Scalar> composed{reference::describe(*shared), Parameters<Scalar>(*shared), nullptr,
                            nullptr};
  load(recording, composed.parameters);
  composed.forward = [shared, parameters = composed.parameters](const Batch<Scalar>& batch,
                                                                MatrixView<Scalar> y,
                                                                const Results<Scalar>& results) {
    const auto weights = pack(*shared, parameters);
    const Index sequences = std::max<Index>(1, static_cast<Index>(batch.lengths.size()));
    Workspace workspace(*shared, {.tokens = batch.x.rows(),
                                  .sequences = sequences,
                                  .threads = 1,
                                  .context_tokens = batch.context.rows()});
    shared->forward(batch, weights, workspace, y, results);
  };
  if constexpr (is_extendable<Layer>)
    composed.extend = [shared, parameters = composed.parameters](
                          const Batch<Scalar>& batch, const std::vector<Index>& sizes,
                          MatrixView<Scalar> y, const Results<Scalar>& results) {
      const Index tokens = batch.x.rows();
      const Index sequences = std::max<Index>(1, static_cast<Index>(batch.lengths.size()));
      const auto weights = pack(*shared, parameters);
      Workspace workspace(*shared, {.tokens = tokens, .sequences = sequences, .threads = 1});
      auto cache = suitable_cache(*shared, tokens, sequences);
      call_in_chunks<Scalar>(
          [&](const Batch<Scalar>& chunk, MatrixView<Scalar> to, const Results<Scalar>& wanted) {
            shared->extend(chunk, weights, cache, workspace, to, wanted);
          },
          batch, sizes, y, results);
    };
  return composed;
}

/// A recorded layer and the composition that is it.
struct Entry {
  std::string file, variant;
  std::function<Composed<float>(const Recording&)> in_float;
  std::function<Composed<double>(const Recording&)> in_double;
  bool extendable = false;

  const std::string& name() const { return variant.empty() ? file : variant; }
};

inline void PrintTo(const Entry& entry, std::ostream* out) {
  *out << entry.name();
}

/// composition(scalar, numbers) composes the layer from the recording's numbers.
template <class Composition>
Entry variant(const std::string& file, const std::string& name, Composition composition) {
  return {file, name,
          [composition](const Recording& recording) {
            return forget_type(composition(float{}, recording.numbers()), recording);
          },
          [composition](const Recording& recording) {
            return forget_type(composition(double{}, recording.numbers()), recording);
          },
          is_extendable<decltype(composition(float{}, Numbers{}))>};
}

template <class Composition>
Entry layer(const std::string& file, Composition composition) {
  return variant(file, "", composition);
}

/// The numbers of a layer's answer, in the order of the recording.
struct Answer {
  std::vector<double> output, attention, gate_scores;
};

/// The extents that gate_scores are recorded with: [tokens, heads] or [tokens, heads, width].
inline Index width_of_scores(const TensorView& scores) {
  return scores.shape.size() == 3 ? scores.shape[2] : 1;
}

/// The position of the gate that runs last, if there is one.
inline int last_gate(const reference::Description& layer) {
  int last = -1;
  for (const reference::Stage& stage : layer.stages)
    if (stage.kind == reference::Stage::Kind::gate)
      last = std::max(last, static_cast<int>(stage.position));
  return last;
}

/// What a recording gives a call to read.
template <class Scalar>
struct RecordedBatch {
  std::vector<Scalar> x, context;
  std::vector<Index> lengths, prefixes;
  Batch<Scalar> batch;

  RecordedBatch(const Recording& recording, const Shape& shape)
      : x(read_values<Scalar>(recording.tensor("hidden_states"),
                              {recording.tokens(), shape.model_dim})),
        lengths(recording.lengths()),
        prefixes(recording.prefixes()) {
    batch.x = MatrixView<const Scalar>(x.data(), recording.tokens(), shape.model_dim);
    batch.lengths = lengths;
    batch.prefixes = prefixes;
    if (!recording.has_context()) return;
    const Index rows = recording.context_tokens(), columns = recording.context_dim();
    context = read_values<Scalar>(recording.tensor("context_states"), {rows, columns});
    batch.context = MatrixView<const Scalar>(context.data(), rows, columns);
  }
  RecordedBatch(const RecordedBatch&) = delete;
  RecordedBatch& operator=(const RecordedBatch&) = delete;
};

/// call(batch, y, results) on the recorded input.
template <class Scalar, class Call>
Answer answer_of(const Composed<Scalar>& layer, const Recording& recording, const Call& call) {
  const Shape& shape = layer.description.shape;
  const Index tokens = recording.tokens();
  const RecordedBatch<Scalar> recorded(recording, shape);
  std::vector<Scalar> y(recorded.x.size(), std::numeric_limits<Scalar>::quiet_NaN());
  std::vector<Scalar> attention, scores;
  Results<Scalar> results;
  const auto take = [](std::vector<Scalar>& out, Index t, Index heads, Index width) {
    out.assign(static_cast<std::size_t>(t * heads * width),
               std::numeric_limits<Scalar>::quiet_NaN());
    return HeadsView<Scalar>(out.data(), t, heads, width);
  };
  results.attention = take(attention, tokens, shape.query_heads, shape.value_width());
  if (const auto expected = recording.expected("gate_scores")) {
    GateScores<Scalar>& at = results.gate_scores;
    HeadsView<Scalar>* const views[] = {&at.query, &at.key, &at.value, &at.sdpa, &at.output};
    const int position = last_gate(layer.description);
    if (position >= 0)
      *views[position] = take(scores, tokens, expected->shape[1], width_of_scores(*expected));
  }
  call(recorded.batch, MatrixView<Scalar>(y.data(), tokens, shape.model_dim), results);
  return {
      {y.begin(), y.end()}, {attention.begin(), attention.end()}, {scores.begin(), scores.end()}};
}

template <class Scalar>
Answer answer(const Composed<Scalar>& layer, const Recording& recording) {
  return answer_of(layer, recording, layer.forward);
}

template <class Scalar>
Answer answer_in_chunks(const Composed<Scalar>& layer, const Recording& recording,
                        const std::vector<Index>& sizes) {
  return answer_of(layer, recording, [&](const auto& batch, const auto& y, const auto& results) {
    layer.extend(batch, sizes, y, results);
  });
}

inline Answer answer_of_reference(const Composed<double>& layer, const Recording& recording) {
  const RecordedBatch<double> recorded(recording, layer.description.shape);
  const reference::Result result =
      reference::forward(layer.description, reference::tensors_of(layer.parameters),
                         reference::inputs_of(recorded.batch));
  const int position = last_gate(layer.description);
  return {result.y.values, result.attention.values,
          position < 0 ? std::vector<double>() : result.gate_scores[position].values};
}

/// max |value − expected| / max |expected|; infinite where a value is not a number.
inline double relative_error(const std::vector<double>& values, const TensorView& expected) {
  std::vector<double> wanted(static_cast<std::size_t>(expected.elements()));
  if (values.size() != wanted.size() || expected.type != ElementType::F64)
    return std::numeric_limits<double>::infinity();
  detail::widen(expected.type, expected.bytes.data(), expected.elements(), wanted.data());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double error = std::abs(values[i] - wanted[i]);
    worst = error >= 0 ? std::max(worst, error) : std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(wanted[i]));
  }
  return worst / largest;
}

/// Output, and where they are recorded attention and gate scores, each relative to its own largest
/// magnitude. The published tolerance of a float library is measured on the output alone; the other
/// two are nearer to the input, so the same factor holds for them too.
inline void expect_within(const Answer& answer, const Recording& recording, double tolerance) {
  const auto check = [&](const char* name, const std::vector<double>& values) {
    const auto expected = recording.expected(name);
    if (!expected) return;
    const double error = relative_error(values, *expected);
    EXPECT_LE(error, tolerance) << name;
    testing::Test::RecordProperty(name, std::to_string(error / tolerance));
  };
  ASSERT_TRUE(recording.expected("output").has_value());
  check("output", answer.output);
  check("attention", answer.attention);
  check("gate_scores", answer.gate_scores);
}

class RecordedLayer : public testing::TestWithParam<Entry> {
 protected:
  Recording recording() const { return Recording(GetParam().file, GetParam().variant); }
};

inline std::string entry_name(const testing::TestParamInfo<Entry>& info) {
  return info.param.name();
}

TEST_P(RecordedLayer, IsWhatItsConfigSays) {
  const Recording recording = this->recording();
  EXPECT_EQ(lines_of(GetParam().in_float(recording).description), lines_of(recording));
  EXPECT_EQ(lines_of(GetParam().in_double(recording).description), lines_of(recording));
}

TEST_P(RecordedLayer, AnswersInFloat) {
  const Recording recording = this->recording();
  expect_within(answer(GetParam().in_float(recording), recording), recording,
                recording.float_tolerance());
}

TEST_P(RecordedLayer, AnswersInDouble) {
  const Recording recording = this->recording();
  expect_within(answer(GetParam().in_double(recording), recording), recording, 1e-12);
}

TEST_P(RecordedLayer, AnswersInTheReference) {
  const Recording recording = this->recording();
  expect_within(answer_of_reference(GetParam().in_double(recording), recording), recording, 1e-13);
}

/// The layers that can be extended.
class RecordedCausalLayer : public RecordedLayer {};

inline std::vector<Entry> extendable(const std::vector<Entry>& table) {
  std::vector<Entry> some;
  for (const Entry& entry : table)
    if (entry.extendable) some.push_back(entry);
  return some;
}

/// Token by token, in random chunks and whole: within the tolerance, and the bits of forward.
template <class Scalar>
void expect_extends(const Composed<Scalar>& layer, const Recording& recording, double tolerance) {
  const Answer whole = answer(layer, recording);
  std::mt19937_64 random(static_cast<std::uint64_t>(recording.tokens()));
  std::uniform_int_distribution<Index> size(1, 9);
  std::vector<std::vector<Index>> chunkings = {{1}, {recording.tokens()}};
  for (int i = 0; i < 3; ++i)
    chunkings.push_back({size(random), size(random), size(random), size(random), size(random)});
  for (const std::vector<Index>& sizes : chunkings) {
    const Answer chunked = answer_in_chunks(layer, recording, sizes);
    expect_within(chunked, recording, tolerance);
    EXPECT_EQ(chunked.output, whole.output);
    EXPECT_EQ(chunked.attention, whole.attention);
    EXPECT_EQ(chunked.gate_scores, whole.gate_scores);
  }
}

TEST_P(RecordedCausalLayer, AnswersInChunksInFloat) {
  const Recording recording = this->recording();
  expect_extends(GetParam().in_float(recording), recording, recording.float_tolerance());
}

TEST_P(RecordedCausalLayer, AnswersInChunksInDouble) {
  const Recording recording = this->recording();
  expect_extends(GetParam().in_double(recording), recording, 1e-12);
}

/// The variants of a file, those that no layer expresses yet named, are the table's: none drops out
/// in silence.
inline void expect_variants(const std::string& file, const std::vector<Entry>& table,
                            std::set<std::string> not_expressible) {
  std::set<std::string> known = std::move(not_expressible);
  for (const Entry& entry : table) {
    EXPECT_EQ(entry.file, file);
    EXPECT_TRUE(known.insert(entry.variant).second) << entry.variant << " stands twice";
  }
  EXPECT_EQ(known, Recording::variants(file));
}

}  // namespace gated_attention::test
