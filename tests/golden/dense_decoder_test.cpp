// SPDX-License-Identifier: MIT
#include "../../examples/dense_decoder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/decoder_attention.hpp"
#include "gated_attention/io/checkpoint.hpp"
#include "unit/layer_support.hpp"

// The decoder of examples/generate, on checkpoints of the paper's own models: what reaches the
// attention of every block is what reached it in the published code, however the tokens arrive.

namespace gated_attention {
namespace {

using dense_decoder::DecoderAttention;
using dense_decoder::Matrix;
using layers::at;

/// Without a cache: keeps what every block was given and runs it all again at every call.
template <class Layer>
class RecomputedAttention : public DecoderAttention<typename Layer::Scalar> {
 public:
  using Scalar = typename Layer::Scalar;

  RecomputedAttention(dense_decoder::BlockLayers<Layer> blocks, const Limits& limits)
      : blocks_(std::move(blocks)),
        workspace_(blocks_.layer, limits),
        given_(blocks_.weights.size()) {}

  void append(Index layer, MatrixView<const Scalar> x, MatrixView<Scalar> y) override {
    std::vector<Scalar>& all = given_[at(layer)];
    for (Index t = 0; t < x.rows(); ++t) all.insert(all.end(), x.row(t), x.row(t) + x.columns());
    const Index tokens = static_cast<Index>(all.size()) / x.columns();
    Matrix<Scalar> outputs(tokens, x.columns());
    blocks_.layer.forward({.x = MatrixView<const Scalar>(all.data(), tokens, x.columns())},
                          blocks_.weights[at(layer)], workspace_, outputs);
    for (Index t = 0; t < y.rows(); ++t)
      std::copy_n(&outputs(tokens - y.rows() + t, 0), y.columns(), y.row(t));
  }

  void reset() override {
    for (std::vector<Scalar>& all : given_) all.clear();
  }
  Index cache_bytes() const override { return 0; }
  Index parameters() const override { return blocks_.parameters(); }
  std::string description() const override { return describe(blocks_.layer); }

 private:
  dense_decoder::BlockLayers<Layer> blocks_;
  Workspace<Layer> workspace_;
  std::vector<std::vector<Scalar>> given_;  ///< of each block, [tokens so far, E]
};

constexpr Index recorded_tokens = 29;

/// A checkpoint's decoder, what was recorded of it, and the tokens that this was.
template <class Scalar>
class RecordedDecoder {
 public:
  explicit RecordedDecoder(const std::string& name)
      : checkpoint_(GATED_ATTENTION_TEST_DATA "/checkpoints/" + name),
        expected_(*ExpectedOutputs::beside(checkpoint_)),
        weights_(dense_decoder::read<Scalar>(read_gated_qwen3_decoder(checkpoint_))) {
    find_tokens();
  }

  const std::vector<Index>& tokens() const { return tokens_; }
  const dense_decoder::Weights<Scalar>& weights() const { return weights_; }

  template <class Layer, class Mask = Causal>
  dense_decoder::BlockLayers<Layer> blocks(const Mask& mask = {}) const {
    const GatedQwen3Numbers numbers = read_gated_qwen3_numbers(checkpoint_);
    return {gated_qwen3_attention<Layer>(numbers, mask), checkpoint_.layers(),
            [&](Index layer, Parameters<Scalar>& parameters) {
              read_parameters(read_gated_qwen3(checkpoint_, layer), parameters);
            }};
  }

  /// The hidden states behind the decoder, where the tokens arrive in chunks of these lengths. What
  /// reaches every block on the way is what was recorded.
  Matrix<Scalar> expect_recorded_inputs(DecoderAttention<Scalar>& attention,
                                        const std::vector<Index>& chunks) const {
    attention.reset();
    std::vector<std::vector<Scalar>> inputs(weights_.blocks.size());
    const auto attend = [&](Index layer, MatrixView<const Scalar> x, MatrixView<Scalar> y) {
      std::vector<Scalar>& to = inputs[at(layer)];
      for (Index t = 0; t < x.rows(); ++t) to.insert(to.end(), x.row(t), x.row(t) + x.columns());
      attention.append(layer, x, y);
    };
    const Matrix<Scalar> hidden = run(chunks, attend);
    for (std::size_t layer = 0; layer < inputs.size(); ++layer)
      EXPECT_LE(layers::relative_error(inputs[layer], recorded_input(static_cast<Index>(layer))),
                1e-5)
          << "layer " << layer;
    return hidden;
  }

  template <class Attend>
  Matrix<Scalar> run(const std::vector<Index>& chunks, const Attend& attend) const {
    Matrix<Scalar> hidden(recorded_tokens, weights_.embeddings.cols());
    Index done = 0;
    for (const Index count : chunks) {
      const std::span<const Index> chunk(tokens_.data() + done, at(count));
      hidden.middleRows(done, count) = dense_decoder::run(weights_, chunk, attend);
      done += count;
    }
    EXPECT_EQ(done, recorded_tokens);
    return hidden;
  }

 private:
  std::vector<double> recorded_input(Index layer) const {
    return read_values<double>(expected_.input(layer),
                               {recorded_tokens, weights_.embeddings.cols()});
  }

  /// The one token for each recorded row whose normed embedding it is.
  void find_tokens() {
    const Index width = weights_.embeddings.cols();
    const Matrix<Scalar> normed =
        dense_decoder::rms_norm(weights_.embeddings, weights_.blocks[0].input_norm, weights_.eps);
    const std::vector<double> recorded = recorded_input(0);
    for (Index t = 0; t < recorded_tokens; ++t) {
      std::vector<Index> found;
      for (Index token = 0; token < normed.rows(); ++token) {
        double distance = 0;
        for (Index c = 0; c < width; ++c)
          distance += std::abs(static_cast<double>(normed(token, c)) - recorded[at(t * width + c)]);
        if (distance < 1e-5 * static_cast<double>(width)) found.push_back(token);
      }
      ASSERT_EQ(found.size(), 1U) << "row " << t;
      tokens_.push_back(found.front());
    }
  }

  Checkpoint checkpoint_;
  ExpectedOutputs expected_;
  dense_decoder::Weights<Scalar> weights_;
  std::vector<Index> tokens_;
};

const std::vector<Index> at_once = {recorded_tokens};
const std::vector<Index> one_by_one(recorded_tokens, 1);
const std::vector<Index> in_chunks = {7, 1, 1, 13, 2, 5};
constexpr Limits limits{.tokens = recorded_tokens, .threads = 1};

/// Through the cache in each of these ways the bits are those of `expected`.
template <class Scalar>
void expect_bits(const RecordedDecoder<Scalar>& decoder, DecoderAttention<Scalar>& attention,
                 const Matrix<Scalar>& expected) {
  const auto attend = [&](Index layer, MatrixView<const Scalar> x, MatrixView<Scalar> y) {
    attention.append(layer, x, y);
  };
  for (const std::vector<Index>& chunks : {at_once, one_by_one, in_chunks}) {
    attention.reset();
    EXPECT_EQ(decoder.run(chunks, attend), expected) << chunks.size() << " chunks";
  }
}

/// With caches like make_cache(), however the tokens arrive, every block is given what was recorded
/// and the bits are those of `expected`.
template <class Layer, class Scalar, class MakeCache>
void expect_cached(const RecordedDecoder<Scalar>& decoder, const Matrix<Scalar>& expected,
                   const MakeCache& make_cache) {
  dense_decoder::CachedAttention<Layer, decltype(make_cache())> cached(
      decoder.template blocks<Layer>(), limits, make_cache);
  for (const std::vector<Index>& chunks : {at_once, one_by_one, in_chunks})
    EXPECT_EQ(decoder.expect_recorded_inputs(cached, chunks), expected)
        << chunks.size() << " chunks";
}

template <class Layer>
void expect_published_decoder(const std::string& name) {
  using Scalar = typename Layer::Scalar;
  SCOPED_TRACE(name);
  const RecordedDecoder<Scalar> decoder(name);
  ASSERT_EQ(decoder.tokens().size(), at(recorded_tokens));
  RecomputedAttention<Layer> recomputed(decoder.template blocks<Layer>(), limits);
  const Matrix<Scalar> whole = decoder.expect_recorded_inputs(recomputed, at_once);
  expect_bits(decoder, recomputed, whole);
  const Layer layer = decoder.template blocks<Layer>().layer;
  expect_cached<Layer>(decoder, whole,
                       [&] { return ContiguousCache(layer, {.tokens = recorded_tokens}); });
  expect_cached<Layer>(decoder, whole, [&] { return PagedCache(layer, {.pages = 1}); });
}

TEST(DenseDecoder, EveryBlockIsGivenWhatThePublishedCodeGaveIt) {
  expect_published_decoder<GatedQwen3Baseline<float>>("official_baseline");
  expect_published_decoder<GatedQwen3Headwise<float>>("official_headwise");
  expect_published_decoder<GatedQwen3Headwise<double>>("official_headwise");
  expect_published_decoder<GatedQwen3Elementwise<float, Bias>>("official_elementwise");
  expect_published_decoder<GatedQwen3Elementwise<double, Bias>>("official_elementwise");
}

using Windowed = GatedQwen3Headwise<float, NoBias, SlidingWindow>;

TEST(DenseDecoder, ARingGivesTheBitsOfForwardWithItsWindow) {
  const RecordedDecoder<float> decoder("official_headwise");
  ASSERT_EQ(decoder.tokens().size(), at(recorded_tokens));
  for (const Index window : {Index{1}, Index{5}, recorded_tokens}) {
    SCOPED_TRACE(window);
    const auto blocks = [&] { return decoder.blocks<Windowed>(SlidingWindow{.window = window}); };
    RecomputedAttention<Windowed> recomputed(blocks(), limits);
    const auto attend = [&](Index layer, MatrixView<const float> x, MatrixView<float> y) {
      recomputed.append(layer, x, y);
    };
    const Matrix<float> whole = decoder.run(at_once, attend);
    dense_decoder::CachedAttention<Windowed, RingCache<Windowed>> ring(
        blocks(), limits, [&] { return RingCache(blocks().layer, {}); });
    expect_bits(decoder, ring, whole);
    // A window that holds all tokens hides nothing from them.
    if (window == recorded_tokens) {
      EXPECT_EQ(decoder.expect_recorded_inputs(ring, one_by_one), whole);
    }
  }
}

TEST(DenseDecoder, ARoundedCacheGivesTheSameBitsHoweverTokensArrive) {
  using Layer = GatedQwen3Headwise<float>;
  const RecordedDecoder<float> decoder("official_headwise");
  ASSERT_EQ(decoder.tokens().size(), at(recorded_tokens));
  const auto with = [&](auto storage, double tolerance) {
    const Layer layer = decoder.blocks<Layer>().layer;
    const auto run_with = [&](const auto& make_cache) {
      dense_decoder::CachedAttention<Layer, decltype(make_cache())> cached(decoder.blocks<Layer>(),
                                                                           limits, make_cache);
      const Matrix<float> whole =
          decoder.run(at_once, [&](Index number, MatrixView<const float> x, MatrixView<float> y) {
            cached.append(number, x, y);
          });
      expect_bits(decoder, cached, whole);
      return whole;
    };
    const Matrix<float> rounded =
        run_with([&] { return ContiguousCache(layer, {.tokens = recorded_tokens}, storage); });
    EXPECT_EQ(run_with([&] { return PagedCache(layer, {.pages = 1}, storage); }), rounded);
    const Matrix<float> exact =
        run_with([&] { return ContiguousCache(layer, {.tokens = recorded_tokens}); });
    EXPECT_NE(rounded, exact);
    const std::vector<double> wanted(exact.data(), exact.data() + exact.size());
    EXPECT_LE(layers::relative_error(
                  std::vector<float>(rounded.data(), rounded.data() + rounded.size()), wanted),
              tolerance);
  };
  with(stored_as<bfloat16>, 0x1p-7);
  with(stored_as<half>, 0x1p-10);
  with(stored_as<std::int8_t>, 0x1p-5);
}

TEST(DenseDecoder, TheNextTokenHasTheLargestLogit) {
  using Layer = GatedQwen3Elementwise<float, Bias>;
  const RecordedDecoder<float> decoder("official_elementwise");
  ASSERT_EQ(decoder.tokens().size(), at(recorded_tokens));
  RecomputedAttention<Layer> recomputed(decoder.blocks<Layer>(), limits);
  const Matrix<float> hidden = decoder.expect_recorded_inputs(recomputed, at_once);
  const Matrix<float>& head = decoder.weights().embeddings;  // tied
  for (Index t = 0; t < recorded_tokens; ++t) {
    std::vector<double> logits(at(head.rows()));
    for (Index token = 0; token < head.rows(); ++token)
      for (Index c = 0; c < head.cols(); ++c)
        logits[at(token)] +=
            static_cast<double>(hidden(t, c)) * static_cast<double>(head(token, c));
    const Index next = dense_decoder::next_token<float>(decoder.weights(), hidden.topRows(t + 1));
    EXPECT_EQ(next, std::max_element(logits.begin(), logits.end()) - logits.begin()) << "row " << t;
  }
}

TEST(DenseDecoder, ATokenOutsideTheVocabularyIsRefused) {
  const RecordedDecoder<float> decoder("official_headwise");
  const auto nothing = [](Index, MatrixView<const float>, MatrixView<float>) {};
  for (const Index token : {Index{-1}, Index{64}}) {
    const std::vector<Index> tokens = {0, token};
    EXPECT_THROW(dense_decoder::run(decoder.weights(), tokens, nothing), ShapeError);
  }
}

}  // namespace
}  // namespace gated_attention
