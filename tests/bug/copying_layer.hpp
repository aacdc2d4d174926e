// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gated_attention/gated_attention.hpp"

namespace gated_attention::test {

template <class Scalar>
inline constexpr Scalar nan = std::numeric_limits<Scalar>::quiet_NaN();
template <class Scalar>
inline constexpr Scalar infinity = std::numeric_limits<Scalar>::infinity();

/// Whether both hold the same bits; NaN equals the same NaN.
template <class Scalar>
testing::AssertionResult same_bits(std::span<const Scalar> a, std::span<const Scalar> b) {
  if (a.size() != b.size())
    return testing::AssertionFailure() << a.size() << " and " << b.size() << " numbers";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(Scalar)) != 0)
      return testing::AssertionFailure() << "number " << i << ": " << a[i] << " and " << b[i];
  return testing::AssertionSuccess();
}
template <class Scalar>
testing::AssertionResult same_bits(const std::vector<Scalar>& a, const std::vector<Scalar>& b) {
  return same_bits(std::span<const Scalar>(a), std::span<const Scalar>(b));
}

/// What the caller may give beside x.
struct Extras {
  std::vector<Index> lengths = {};
  std::vector<Index> positions = {};
};

/// A layer whose projections copy, so that a small input can be checked by hand along the whole way: a row of x is
/// [q | k | v | gate logits in the order of the gates], and y begins with the row's [Hq, Dv] behind the stages at Sdpa.
template <class ScalarType, class... Stages>
class CopyingLayer {
 public:
  using Scalar = ScalarType;
  using Layer = GatedAttention<Scalar, Stages...>;

  explicit CopyingLayer(const AttendShape& heads, const Stages&... stages)
      : heads_(heads), layer_(shape_of(heads, stages...), stages...), parameters_(layer_) {
    Index column = 0;
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"})
      column = copy(name, column);
    for (const TensorInfo& tensor : layer_.tensors())
      if (tensor.name.find("_gate") != std::string::npos && tensor.name.ends_with(".weight"))
        column = copy(tensor.name, column);
    const MatrixView<Scalar> output = parameters_["o_proj.weight"];
    for (Index i = 0; i < output.columns(); ++i) output(i, i) = 1;
  }

  const Layer& layer() const { return layer_; }
  Parameters<Scalar>& parameters() { return parameters_; }
  const Parameters<Scalar>& parameters() const { return parameters_; }
  Index model_dim() const { return layer_.shape().model_dim; }
  /// Hq·Dv, the channels of y that mean something.
  Index width() const { return heads_.query_heads * layer_.shape().value_width(); }

  /// x from its rows, each filled up with zeros.
  std::vector<Scalar> rows(const std::vector<std::vector<Scalar>>& given) const {
    std::vector<Scalar> x(given.size() * static_cast<std::size_t>(model_dim()));
    for (std::size_t t = 0; t < given.size(); ++t)
      std::copy(given[t].begin(), given[t].end(), x.begin() + static_cast<Index>(t) * model_dim());
    return x;
  }

  /// y's first channels, [T, Hq·Dv]; log_sum_exp, if given, becomes [T, Hq].
  std::vector<Scalar> forward(const std::vector<std::vector<Scalar>>& given,
                              const Extras& extras = {},
                              std::vector<Scalar>* log_sum_exp = nullptr) const {
    const std::vector<Scalar> x = rows(given);
    const Index tokens = static_cast<Index>(given.size());
    Workspace workspace(layer_,
                        {.tokens = tokens,
                         .sequences = std::max<Index>(1, static_cast<Index>(extras.lengths.size())),
                         .threads = 1});
    const auto weights = pack(layer_, parameters_);
    std::vector<Scalar> y(x.size());
    Results<Scalar> results;
    if (log_sum_exp != nullptr) {
      log_sum_exp->resize(static_cast<std::size_t>(tokens * heads_.query_heads));
      results.log_sum_exp = {log_sum_exp->data(), tokens, heads_.query_heads};
    }
    layer_.forward({.x = {x.data(), tokens, model_dim()},
                    .lengths = extras.lengths,
                    .positions = extras.positions},
                   weights, workspace, {y.data(), tokens, model_dim()}, results);
    std::vector<Scalar> cut;
    for (Index t = 0; t < tokens; ++t)
      cut.insert(cut.end(), y.begin() + t * model_dim(), y.begin() + t * model_dim() + width());
    return cut;
  }

  /// What the stages at Query make of q at a position, channel by channel, for one head and no stage at Key but Rope:
  /// a key √D·e_i at position 0 beside a key of zeros at `position` gives the row the scores (q_i·f, 0), f being what
  /// Rope multiplies a key at position 0 by.
  std::vector<double> query_at(const std::vector<Scalar>& q, Index position) const {
    const std::size_t dim = q.size();
    std::vector<double> channels;
    for (std::size_t i = 0; i < dim; ++i) {
      std::vector<Scalar> first(3 * dim), second(3 * dim);
      first[dim + i] = std::sqrt(static_cast<Scalar>(dim));
      std::copy(q.begin(), q.end(), second.begin());
      std::vector<Scalar> log_sum_exp;
      forward({first, second}, {.lengths = {}, .positions = {0, position}}, &log_sum_exp);
      channels.push_back(std::log(std::expm1(static_cast<double>(log_sum_exp[1]))));
    }
    return channels;
  }

 private:
  static Shape shape_of(const AttendShape& heads, const Stages&... stages) {
    Shape shape{.model_dim = 1,
                .query_heads = heads.query_heads,
                .kv_heads = heads.kv_heads,
                .head_dim = heads.head_dim,
                .value_dim = heads.value_dim};
    const Layer narrow(shape, stages...);
    Index in = 0;
    for (const TensorInfo& tensor : narrow.tensors())
      if (tensor.name.ends_with(".weight") && tensor.name != "o_proj.weight" &&
          tensor.name.find("_norm") == std::string::npos)
        in += tensor.rows;
    shape.model_dim = std::max(in, heads.query_heads * shape.value_width());
    return shape;
  }

  /// The tensor's rows take over x's channels from `column` on.
  Index copy(const std::string& name, Index column) {
    const MatrixView<Scalar> tensor = parameters_[name];
    for (Index i = 0; i < tensor.rows(); ++i) tensor(i, column + i) = 1;
    return column + tensor.rows();
  }

  AttendShape heads_;
  Layer layer_;
  Parameters<Scalar> parameters_;
};

template <class Scalar, class... Stages>
CopyingLayer<Scalar, Stages...> copying_layer(const AttendShape& heads, const Stages&... stages) {
  return CopyingLayer<Scalar, Stages...>(heads, stages...);
}

/// Attend on packed rows.
template <class Scalar>
struct Rows {
  Index tokens = 0;
  Index heads = 1;
  Index width = 1;
  std::vector<Scalar> values;

  HeadsView<const Scalar> view() const { return {values.data(), tokens, heads, width}; }
};

template <class Scalar, class... Stages>
std::vector<Scalar> run_attend(const Attend<Scalar, Stages...>& attend,
                               const AttendBatch<Scalar>& batch,
                               std::vector<Scalar>* log_sum_exp = nullptr, Index threads = 1) {
  AttendWorkspace workspace(
      attend, {.tokens = batch.q.tokens(),
               .keys = batch.k.tokens(),
               .sequences = std::max<Index>(1, static_cast<Index>(batch.lengths.size())),
               .threads = threads});
  const Index heads = attend.shape().query_heads, width = batch.v.width();
  std::vector<Scalar> out(static_cast<std::size_t>(batch.q.tokens() * heads * width), nan<Scalar>);
  AttendResults<Scalar> results;
  if (log_sum_exp != nullptr) {
    log_sum_exp->assign(static_cast<std::size_t>(batch.q.tokens() * heads), nan<Scalar>);
    results.log_sum_exp = {log_sum_exp->data(), batch.q.tokens(), heads};
  }
  attend(batch, workspace, {out.data(), batch.q.tokens(), heads, width}, results);
  return out;
}

/// Attend of one head and dim 1 over `keys` values with all logits 0.
template <class Scalar, class Mask>
std::vector<Scalar> attend_with_equal_logits(const Mask& mask, Index tokens,
                                             const std::vector<Scalar>& values,
                                             std::optional<Index> offset = std::nullopt) {
  const Attend<Scalar, Mask> attend({.query_heads = 1, .kv_heads = 1, .head_dim = 1}, mask);
  const Index keys = static_cast<Index>(values.size());
  const std::vector<Scalar> zeros(static_cast<std::size_t>(std::max(tokens, keys)) + 1);
  return run_attend(attend, {.q = {zeros.data(), tokens, 1, 1},
                             .k = {zeros.data(), keys, 1, 1},
                             .v = {values.data(), keys, 1, 1},
                             .offset = offset});
}

template <class Scalar>
void expect_near(const std::vector<Scalar>& got, const std::vector<double>& wanted,
                 double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(static_cast<double>(got[i]), wanted[i], tolerance) << "number " << i;
}

/// Whether some number is farther than `margin` from what faulty code gave.
template <class Scalar>
bool differs(const std::vector<Scalar>& got, const std::vector<double>& faulty, double margin) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(static_cast<double>(got[i]) - faulty[i]) <= margin)) return true;
  return false;
}

}  // namespace gated_attention::test
