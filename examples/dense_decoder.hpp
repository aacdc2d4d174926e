// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gated_attention/kernel/product.hpp"
#include "gated_attention/model/gated_qwen3.hpp"
#include "gated_attention/model/gated_qwen3_decoder.hpp"

// A small dense decoder around the library's attention:
//
//   h = embeddings[token]                                        h: [T, E]
//   h += attention(norm(h)·input_norm)                           for every block
//   h += down (silu(gate n) ⊙ up n), n = norm(h)·mlp_norm        for every block
//   logits = head (norm(h)·norm)                                 [T, V]
//
// Like the attention, all of it gives a token the same bits whatever stands beside it in a call: the
// products are the library's, the rest goes number by number.

namespace dense_decoder {

namespace ga = gated_attention;
using ga::Index;

template <class Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using Row = Eigen::Matrix<Scalar, 1, Eigen::Dynamic, Eigen::RowMajor>;

/// y = x Wᵀ      x: [T, in], W: [out, in], packed once, y: [T, out]
template <class Scalar>
class Linear {
 public:
  Linear() = default;
  explicit Linear(const Matrix<Scalar>& weight)
      : out_(weight.rows()), in_(weight.cols()), panels_(ga::kernel::panel_elements(out_, in_)) {
    ga::kernel::clear_padding<Scalar>(panels_.data(), out_, in_);
    ga::kernel::pack_columns<Scalar>(panels_.data(), in_, 0, weight);
  }

  Index parameters() const { return out_ * in_; }

  Matrix<Scalar> operator()(const Matrix<Scalar>& x, Index threads) const {
    const Index block = std::min(x.rows(), ga::kernel::product_row_block);
    Row<Scalar> packed_rows(block * in_), tiles(threads * block * ga::panel_columns);
    Matrix<Scalar> y(x.rows(), out_);
    ga::kernel::multiply<Scalar, Scalar>(
        {.data = x.data(), .rows = x.rows(), .row_stride = in_, .group_width = in_},
        {panels_.data(), out_, in_}, {.data = y.data(), .row_stride = out_},
        {packed_rows.data(), tiles.data()}, threads);
    return y;
  }

 private:
  Index out_ = 0, in_ = 0;
  Row<Scalar> panels_;  // Eigen's memory lies as the packets like it
};

/// Everything but the attention. V: vocabulary, E: model_dim, M: mlp_dim.
template <class Scalar>
struct Weights {
  struct Block {
    Row<Scalar> input_norm, mlp_norm;  ///< [E]
    Linear<Scalar> gate, up;           ///< [M, E]
    Linear<Scalar> down;               ///< [E, M]
  };

  double eps = 0;             ///< of every norm
  Matrix<Scalar> embeddings;  ///< [V, E]
  std::vector<Block> blocks;
  Row<Scalar> norm;     ///< [E]
  Linear<Scalar> head;  ///< [V, E]
  bool is_tied = true;  ///< whether the head is the embeddings
  Index threads = 1;    ///< of the products

  Index parameters() const {
    Index count = embeddings.size() + norm.size() + (is_tied ? 0 : head.parameters());
    for (const Block& block : blocks)
      count += block.input_norm.size() + block.mlp_norm.size() + block.gate.parameters() +
               block.up.parameters() + block.down.parameters();
    return count;
  }
};

/// How large a decoder is to be.
struct Size {
  ga::GatedQwen3Numbers attention;
  Index layers = 0;
  Index mlp_dim = 0;
  Index vocabulary = 0;
};

// ------------------------------------------------------------------------------------ weights

/// The decoder of a checkpoint.
template <class Scalar>
Weights<Scalar> read(const ga::GatedQwen3Decoder& found, Index threads = 1) {
  const auto matrix = [](const ga::TensorView& tensor) {
    Matrix<Scalar> values(tensor.shape[0], tensor.shape[1]);
    ga::read_matrix<Scalar>(tensor, values);
    return values;
  };
  const auto linear = [&](const ga::TensorView& tensor) { return Linear<Scalar>(matrix(tensor)); };
  const auto row = [](const ga::TensorView& tensor) {
    Row<Scalar> values(tensor.elements());
    ga::read_vector<Scalar>(tensor, {values.data(), static_cast<std::size_t>(values.size())});
    return values;
  };
  Weights<Scalar> weights;
  weights.eps = found.numbers.eps;
  weights.embeddings = matrix(found.embed_tokens);
  for (const ga::GatedQwen3Decoder::Block& block : found.blocks)
    weights.blocks.push_back({row(block.input_norm), row(block.post_attention_norm),
                              linear(block.gate_proj), linear(block.up_proj),
                              linear(block.down_proj)});
  weights.norm = row(found.norm);
  weights.head = linear(found.lm_head);
  weights.is_tied = found.is_tied;
  weights.threads = threads;
  return weights;
}

/// Weights from N(0, 0.02²), norms of 1, the head tied.
template <class Scalar>
Weights<Scalar> draw(const Size& size, std::uint64_t seed, Index threads = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0, 0.02);
  const auto matrix = [&](Index rows, Index columns) -> Matrix<Scalar> {
    return Matrix<Scalar>::NullaryExpr(rows, columns,
                                       [&] { return static_cast<Scalar>(normal(engine)); });
  };
  const Index model_dim = size.attention.model_dim, mlp_dim = size.mlp_dim;
  const Row<Scalar> ones = Row<Scalar>::Ones(model_dim);
  Weights<Scalar> weights;
  weights.eps = size.attention.eps;
  weights.embeddings = matrix(size.vocabulary, model_dim);
  for (Index layer = 0; layer < size.layers; ++layer)
    weights.blocks.push_back({ones, ones, Linear<Scalar>(matrix(mlp_dim, model_dim)),
                              Linear<Scalar>(matrix(mlp_dim, model_dim)),
                              Linear<Scalar>(matrix(model_dim, mlp_dim))});
  weights.norm = ones;
  weights.head = Linear<Scalar>(weights.embeddings);
  weights.threads = threads;
  return weights;
}

// ------------------------------------------------------------------------------------ forward

/// y[t, :] = x[t, :] / √(mean x[t, :]² + eps) ⊙ weight
template <class Scalar>
Matrix<Scalar> rms_norm(const Matrix<Scalar>& x, const Row<Scalar>& weight, double eps) {
  Matrix<Scalar> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    double squares = 0;
    for (Index c = 0; c < x.cols(); ++c)
      squares += static_cast<double>(x(t, c)) * static_cast<double>(x(t, c));
    const auto factor =
        static_cast<Scalar>(1 / std::sqrt(squares / static_cast<double>(x.cols()) + eps));
    for (Index c = 0; c < x.cols(); ++c) y(t, c) = x(t, c) * factor * weight(c);
  }
  return y;
}

/// down (silu(gate x) ⊙ up x), silu(z) = z / (1 + e^−z)
template <class Scalar>
Matrix<Scalar> mlp(const typename Weights<Scalar>::Block& block, const Matrix<Scalar>& x,
                   Index threads) {
  const Matrix<Scalar> gate = block.gate(x, threads);
  Matrix<Scalar> inner = block.up(x, threads);
  for (Index i = 0; i < inner.size(); ++i) {
    const Scalar z = gate.data()[i];
    inner.data()[i] *= z / (1 + std::exp(-z));
  }
  return block.down(inner, threads);
}

template <class Scalar>
Matrix<Scalar> embed(const Weights<Scalar>& weights, std::span<const Index> tokens) {
  Matrix<Scalar> h(static_cast<Index>(tokens.size()), weights.embeddings.cols());
  for (Index t = 0; t < h.rows(); ++t) {
    const Index token = tokens[static_cast<std::size_t>(t)];
    if (token < 0 || token >= weights.embeddings.rows())
      throw ga::ShapeError("dense_decoder::embed: token " + std::to_string(token) +
                           ", the vocabulary has " + std::to_string(weights.embeddings.rows()));
    h.row(t) = weights.embeddings.row(token);
  }
  return h;
}

/// The normed hidden states behind the last block, [T, E]. attend(layer, x, y) is the attention of
/// block `layer`: y = attention(x), both [T, E]; what it keeps of earlier calls is its own affair.
template <class Scalar, class Attend>
Matrix<Scalar> run(const Weights<Scalar>& weights, std::span<const Index> tokens,
                   const Attend& attend) {
  Matrix<Scalar> h = embed(weights, tokens);
  Matrix<Scalar> attended(h.rows(), h.cols());
  Index layer = 0;
  for (const auto& block : weights.blocks) {
    const Matrix<Scalar> normed = rms_norm(h, block.input_norm, weights.eps);
    attend(layer++, ga::MatrixView<const Scalar>(normed), ga::MatrixView<Scalar>(attended));
    h += attended;
    h += mlp<Scalar>(block, rms_norm(h, block.mlp_norm, weights.eps), weights.threads);
  }
  return rms_norm(h, weights.norm, weights.eps);
}

/// The most likely token behind the last of the hidden states.
template <class Scalar>
Index next_token(const Weights<Scalar>& weights, const Matrix<Scalar>& hidden) {
  const Matrix<Scalar> last = hidden.bottomRows(1);
  const Matrix<Scalar> logits = weights.head(last, weights.threads);
  return std::max_element(logits.data(), logits.data() + logits.size()) - logits.data();
}

}  // namespace dense_decoder
