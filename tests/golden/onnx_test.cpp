// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gated_attention/gated_attention.hpp"
#include "gated_attention/io/safetensors.hpp"

// The node tests that the ONNX standard has for its operator Attention, each expressed through
// Attend: its attributes choose the mask and the stages, its inputs become one batch.
//
// A file holds `<case>/Q`, `K`, `V`, `attn_mask`, `past_key`, `past_value`, `nonpad_kv_seqlen`,
// `expected.Y` and further `expected.…`; metadata `cases` (JSON) each case's attributes and types.
// GATED_ATTENTION_ONNX_CASES names another file of the same form.

namespace gated_attention::test {
namespace {

std::size_t to_size(Index i) {
  return static_cast<std::size_t>(i);
}

/// A case that Attend has no words for.
struct NotExpressible : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// [batch, tokens, heads, width], the rows of one sequence behind those of the one before.
template <class Scalar>
struct Rows {
  Index batch = 0, tokens = 0, heads = 0, width = 0;
  std::vector<Scalar> values;

  Index row_size() const { return heads * width; }
  auto row(Index sequence, Index token) const {
    return values.begin() + (sequence * tokens + token) * row_size();
  }
};

/// One case of the file.
class Case {
 public:
  Case(const Safetensors& file, std::string name, const nlohmann::json& description)
      : file_(&file), name_(std::move(name)), description_(&description) {}

  const std::string& name() const { return name_; }
  bool has(const std::string& tensor) const { return file_->contains(name_ + '/' + tensor); }
  TensorView tensor(const std::string& tensor) const { return file_->tensor(name_ + '/' + tensor); }

  template <class Number>
  Number attribute(const char* key, Number absent) const {
    const auto& attributes = description_->at("attributes");
    return attributes.contains(key) ? attributes.at(key).get<Number>() : absent;
  }

  bool causal() const { return attribute<Index>("is_causal", 0) != 0; }
  double softcap() const { return attribute<double>("softcap", 0); }
  bool boolean_mask() const { return description_->at("mask") == "bool"; }
  bool half_precision() const {
    const std::string type = description_->at("dtype").get<std::string>();
    if (type == "float16" || type == "bfloat16") return true;
    if (type == "float32" || type == "float64") return false;
    throw NotExpressible("dtype " + type);
  }

  /// Refuses what would otherwise be left out in silence.
  void expect_known() const {
    static const std::set<std::string> attributes = {
        "is_causal",
        "kv_num_heads",
        "q_num_heads",
        "scale",
        "left_window_size",
        "right_window_size",
        "softcap",
        "softmax_precision",      // that of the scalar, float at least
        "qk_matmul_output_mode",  // of an output for debugging
    };
    static const std::set<std::string> inputs = {
        "Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};
    for (const auto& [key, value] : description_->at("attributes").items())
      if (!attributes.contains(key)) throw NotExpressible("attribute " + key);
    for (const std::string_view tensor : file_->names()) {
      if (!tensor.starts_with(name_ + '/')) continue;
      const std::string input(tensor.substr(name_.size() + 1));
      if (!input.starts_with("expected.") && !inputs.contains(input))
        throw NotExpressible("input " + input);
    }
  }

  /// A tensor [batch, heads, tokens, width] or [batch, tokens, heads·width] as rows of tokens.
  template <class Scalar>
  Rows<Scalar> rows(const std::string& name, Index heads_of_three_axes) const {
    const TensorView stored = tensor(name);
    detail::expect_floating(stored);
    std::vector<Scalar> values(to_size(stored.elements()));
    detail::widen(stored.type, stored.bytes.data(), stored.elements(), values.data());
    if (stored.shape.size() == 3) {
      const Index heads = heads_of_three_axes;
      if (heads < 1 || stored.shape[2] % heads != 0)
        throw std::runtime_error(name + " does not split into heads");
      return {stored.shape[0], stored.shape[1], heads, stored.shape[2] / heads, std::move(values)};
    }
    if (stored.shape.size() != 4) throw std::runtime_error(name + " has neither 3 nor 4 axes");
    Rows<Scalar> rows{stored.shape[0], stored.shape[2], stored.shape[1], stored.shape[3], {}};
    rows.values.reserve(values.size());
    for (Index b = 0; b < rows.batch; ++b)
      for (Index t = 0; t < rows.tokens; ++t)
        for (Index h = 0; h < rows.heads; ++h) {
          const auto row = values.begin() + ((b * rows.heads + h) * rows.tokens + t) * rows.width;
          rows.values.insert(rows.values.end(), row, row + rows.width);
        }
    return rows;
  }

 private:
  const Safetensors* file_;
  std::string name_;
  const nlohmann::json* description_;
};

/// past, then now, in each sequence.
template <class Scalar>
Rows<Scalar> concatenate(const Rows<Scalar>& past, const Rows<Scalar>& now) {
  if (past.batch != now.batch || past.heads != now.heads || past.width != now.width)
    throw std::runtime_error("the past has other extents");
  Rows<Scalar> all{now.batch, past.tokens + now.tokens, now.heads, now.width, {}};
  for (Index b = 0; b < all.batch; ++b) {
    all.values.insert(all.values.end(), past.row(b, 0), past.row(b, past.tokens));
    all.values.insert(all.values.end(), now.row(b, 0), now.row(b, now.tokens));
  }
  return all;
}

/// The first lengths[b] rows of each sequence b, back to back.
template <class Scalar>
std::vector<Scalar> first_rows(const Rows<Scalar>& rows, const std::vector<Index>& lengths) {
  std::vector<Scalar> first;
  for (Index b = 0; b < rows.batch; ++b)
    first.insert(first.end(), rows.row(b, 0), rows.row(b, lengths[to_size(b)]));
  return first;
}

/// A case's attn_mask, [batch or 1, heads or 1, tokens or 1, keys]: keys behind its last column are
/// hidden.
template <class Element>
struct Mask {
  Index batch = 1, heads = 1, tokens = 1, keys = 0;
  std::unique_ptr<Element[]> elements;

  Mask(const Case& test, Index all_keys, Element hidden) : keys(all_keys) {
    const TensorView stored = test.tensor("attn_mask");
    std::vector<Index> shape(stored.shape.begin(), stored.shape.end());
    if (shape.empty() || shape.size() > 4) throw std::runtime_error("attn_mask has no 1 to 4 axes");
    shape.insert(shape.begin(), 4 - shape.size(), 1);
    batch = shape[0], heads = shape[1], tokens = shape[2];
    const Index columns = shape[3], rows = batch * heads * tokens;
    if (columns > keys) throw std::runtime_error("attn_mask has more columns than there are keys");
    const std::vector<Element> values = read(stored);
    elements = std::make_unique<Element[]>(to_size(rows * keys));
    std::fill_n(elements.get(), rows * keys, hidden);
    for (Index r = 0; r < rows; ++r)
      std::copy_n(values.begin() + r * columns, columns, elements.get() + r * keys);
  }

  /// What sequence b meets, over its own keys.
  ScoreView<const Element> view(Index b, Index own_keys) const {
    const Index sequence = batch == 1 ? 0 : b * heads * tokens * keys;
    return {elements.get() + sequence, heads, tokens, own_keys, heads == 1 ? 0 : tokens * keys,
            tokens == 1 ? 0 : keys};
  }

 private:
  static std::vector<Element> read(const TensorView& stored) {
    std::vector<Element> values(to_size(stored.elements()));
    if constexpr (std::is_same_v<Element, bool>) {
      if (size_of(stored.type) != 1) throw std::runtime_error("attn_mask is not of bytes");
      std::transform(stored.bytes.begin(), stored.bytes.end(), values.begin(),
                     [](std::byte byte) { return byte != std::byte{0}; });
    } else {
      detail::expect_floating(stored);
      detail::widen(stored.type, stored.bytes.data(), stored.elements(), values.data());
    }
    return values;
  }
};

/// What one case asks of Attend.
template <class Scalar>
struct Problem {
  const Case* test = nullptr;
  Rows<Scalar> q, k, v;  ///< k and v: the past's in front
  std::vector<Index> lengths, key_lengths;
  std::optional<Index> offset;  ///< absent: the last query stands at its sequence's last key
  std::optional<Mask<Scalar>> bias;
  std::optional<Mask<bool>> boolean;

  explicit Problem(const Case& given) : test(&given) {
    q = given.rows<Scalar>("Q", given.attribute<Index>("q_num_heads", 0));
    const Index kv_heads = given.attribute<Index>("kv_num_heads", 0);
    k = given.rows<Scalar>("K", kv_heads);
    v = given.rows<Scalar>("V", kv_heads);
    Index past = 0;
    if (given.has("past_key")) {
      const Rows<Scalar> past_key = given.rows<Scalar>("past_key", kv_heads);
      past = past_key.tokens;
      k = concatenate(past_key, k);
      v = concatenate(given.rows<Scalar>("past_value", kv_heads), v);
    }
    if (k.batch != q.batch || v.batch != q.batch || v.tokens != k.tokens)
      throw std::runtime_error("Q, K and V do not belong together");
    lengths.assign(to_size(q.batch), q.tokens);
    key_lengths.assign(to_size(q.batch), k.tokens);
    offset = past;
    if (given.has("nonpad_kv_seqlen")) {
      offset.reset();
      const auto own = read_integers(given.tensor("nonpad_kv_seqlen"), {q.batch});
      key_lengths.assign(own.begin(), own.end());
      for (const Index keys : key_lengths)
        if (keys < 0 || keys > k.tokens)
          throw std::runtime_error("nonpad_kv_seqlen is not a number of keys");
    }
    if (!given.has("attn_mask")) return;
    if (given.boolean_mask())
      boolean.emplace(given, k.tokens, false);
    else
      bias.emplace(given, k.tokens, -std::numeric_limits<Scalar>::infinity());
  }
};

/// Y as rows of tokens, from one composition.
template <class Scalar, class... Stages>
std::vector<Scalar> attend(const Problem<Scalar>& problem, const Stages&... stages) {
  const auto& [test, q, k, v, lengths, key_lengths, offset, bias, boolean] = problem;
  const Attend<Scalar, Stages...> attention(
      {.query_heads = q.heads, .kv_heads = k.heads, .head_dim = q.width, .value_dim = v.width},
      stages...);
  const std::vector<Scalar> keys = first_rows(k, key_lengths), values = first_rows(v, key_lengths);
  const Index tokens = q.batch * q.tokens,
              key_count = static_cast<Index>(keys.size()) / k.row_size();
  std::vector<ScoreView<const Scalar>> biases;
  std::vector<ScoreView<const bool>> booleans;
  for (Index b = 0; b < q.batch; ++b) {
    if (bias) biases.push_back(bias->view(b, key_lengths[to_size(b)]));
    if (boolean) booleans.push_back(boolean->view(b, key_lengths[to_size(b)]));
  }
  std::vector<Scalar> y(to_size(tokens * q.heads * v.width),
                        std::numeric_limits<Scalar>::quiet_NaN());
  AttendWorkspace workspace(
      attention, {.tokens = tokens, .keys = key_count, .sequences = q.batch, .threads = 1});
  attention({.q = {q.values.data(), tokens, q.heads, q.width},
             .k = {keys.data(), key_count, k.heads, k.width},
             .v = {values.data(), key_count, v.heads, v.width},
             .lengths = lengths,
             .key_lengths = key_lengths,
             .offset = offset,
             .score_bias = biases,
             .boolean_mask = booleans},
            workspace, {y.data(), tokens, q.heads, v.width});
  return y;
}

/// The mask that bounds loops, from is_causal and the windows, which do not count the own key.
template <class Scalar, class... Stages>
std::vector<Scalar> bound(const Problem<Scalar>& problem, const Stages&... stages) {
  const Case& test = *problem.test;
  const Index left = test.attribute<Index>("left_window_size", -1);
  const Index right = test.attribute<Index>("right_window_size", -1);
  const Index all = problem.q.tokens + problem.k.tokens;
  if (test.causal() && left >= 0)
    return attend(problem, SlidingWindow{.window = left + 1}, stages...);
  if (test.causal()) {
    if (problem.offset == Index{0}) return attend(problem, CausalTopLeft{}, stages...);
    return attend(problem, Causal{}, stages...);
  }
  if (left < 0 && right < 0) return attend(problem, Bidirectional{}, stages...);
  return attend(
      problem, BidirectionalWindow{.left = left < 0 ? all : left, .right = right < 0 ? all : right},
      stages...);
}

/// Y from the composition that a case's attributes and inputs name: scale, softcap, mask.
template <class Scalar>
std::vector<Scalar> answer(const Problem<Scalar>& problem) {
  const Case& test = *problem.test;
  const auto masked = [&](const auto&... stages) {
    if (problem.bias) return bound(problem, stages..., ScoreBias{});
    if (problem.boolean) return bound(problem, stages..., BooleanMask{});
    return bound(problem, stages...);
  };
  const SoftmaxScale scale{
      .scale = test.attribute("scale", 1 / std::sqrt(static_cast<double>(problem.q.width)))};
  if (test.softcap() > 0) return masked(scale, Softcap{.cap = test.softcap()});
  return masked(scale);
}

/// What is wrong with y, if something is: the error relative to the largest magnitude expected, and
/// rows that see nothing, which are exactly 0.
template <class Scalar>
std::string mistake(const std::vector<Scalar>& y, const Rows<double>& expected, double tolerance) {
  if (y.size() != expected.values.size()) return "Y has other extents";
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(static_cast<double>(y[i]) - expected.values[i]);
    worst = error >= 0 ? std::max(worst, error) : std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(expected.values[i]));
  }
  if (!(worst <= tolerance * largest))
    return "the error is " + std::to_string(worst / largest) + " of the largest magnitude";
  const auto is_zero = [](auto value) { return value == 0; };
  for (Index i = 0; i < static_cast<Index>(y.size()); i += expected.width) {
    const auto row = expected.values.begin() + i;
    if (std::all_of(row, row + expected.width, is_zero) &&
        !std::all_of(y.begin() + i, y.begin() + i + expected.width, is_zero))
      return "a row that sees nothing is not 0";
  }
  return "";
}

template <class Scalar>
std::string mistake(const Case& test) {
  const Problem<Scalar> problem(test);
  const auto same = [&](const char* name, const Rows<Scalar>& rows) {
    return !test.has(name) || test.rows<Scalar>(name, rows.heads).values == rows.values;
  };
  if (!same("expected.present_key", problem.k) || !same("expected.present_value", problem.v))
    return "the past and the new keys and values are not the expected ones";
  const std::string found =
      mistake(answer(problem), test.rows<double>("expected.Y", problem.q.heads),
              test.half_precision() ? 1e-2 : 1e-5);
  return found.empty() ? found : (sizeof(Scalar) == 4 ? "float: " : "double: ") + found;
}

/// The names of cases by what became of them.
struct Outcome {
  std::vector<std::string> passed, failed, not_expressible;
};

void judge(const Case& test, Outcome& outcome) {
  std::string found;
  try {
    test.expect_known();
    found = mistake<float>(test);
    if (found.empty() && !test.half_precision()) found = mistake<double>(test);
  } catch (const NotExpressible& reason) {
    std::cout << test.name() << " is not expressible: " << reason.what() << '\n';
    return outcome.not_expressible.push_back(test.name());
  } catch (const std::exception& error) {
    found = error.what();
  }
  if (!found.empty()) ADD_FAILURE() << test.name() << ": " << found;
  (found.empty() ? outcome.passed : outcome.failed).push_back(test.name());
}

void print(const Outcome& outcome) {
  std::cout << "ONNX attention cases: " << outcome.passed.size() << " passed, "
            << outcome.failed.size() << " failed, " << outcome.not_expressible.size()
            << " not expressible";
  const auto names = [](const char* what, const std::vector<std::string>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) std::cout << (i == 0 ? what : ", ") << list[i];
  };
  names("; failed: ", outcome.failed);
  names("; not expressible: ", outcome.not_expressible);
  std::cout << std::endl;
}

TEST(OnnxAttention, EveryCaseOfTheStandardIsExpressedAndRight) {
  const char* const other = std::getenv("GATED_ATTENTION_ONNX_CASES");
  const bool own = other == nullptr || *other == '\0';
  const Safetensors file = Safetensors::open(own ? std::string(GATED_ATTENTION_TEST_DATA) +
                                                       "/golden/onnx_attention.safetensors"
                                                 : std::string(other));
  const auto entry = file.metadata().find("cases");
  ASSERT_TRUE(entry != file.metadata().end()) << file.file() << " has no metadata 'cases'";
  const nlohmann::json cases = detail::parse_json(entry->second, file.file() + ": cases");
  Outcome outcome;
  for (const auto& [name, description] : cases.items()) judge({file, name, description}, outcome);
  print(outcome);
  if (!own) return;
  EXPECT_EQ(outcome.passed.size(), 51u);
  EXPECT_EQ(outcome.failed.size(), 0u);
  EXPECT_EQ(outcome.not_expressible.size(), 0u);
}

}  // namespace
}  // namespace gated_attention::test
