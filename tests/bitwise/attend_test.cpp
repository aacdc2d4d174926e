// SPDX-License-Identifier: MIT
// A row of Attend has the same bits whatever runs beside it, wherever its numbers lie.
#include "bitwise/running_layer.hpp"

namespace gated_attention::test {
namespace {

constexpr AttendShape shape{.query_heads = 6, .kv_heads = 2, .head_dim = 11, .value_dim = 7};

/// q, k, v and gate logits of a batch, packed.
template <class Scalar>
struct Numbers {
  Index tokens, keys;
  std::vector<Scalar> q = normal_numbers<Scalar>(tokens * 6 * 11, 1);
  std::vector<Scalar> k = normal_numbers<Scalar>(keys * 2 * 11, 2);
  std::vector<Scalar> v = normal_numbers<Scalar>(keys * 2 * 7, 3);
  std::vector<Scalar> logits = normal_numbers<Scalar>(tokens * 6 * 7, 4);

  AttendBatch<Scalar> batch() const {
    return {.q = {q.data(), tokens, 6, 11},
            .k = {k.data(), keys, 2, 11},
            .v = {v.data(), keys, 2, 7},
            .gate_logits = {logits.data(), tokens, 6, 7}};
  }
};

template <class Scalar, class Mask>
Attend<Scalar, Mask, Gate<at::Sdpa>> gated(const Mask& mask) {
  return Attend<Scalar, Mask, Gate<at::Sdpa>>(shape, mask);
}

/// The view's rows moved apart, NaN between channels' ends and heads and tokens.
template <class Scalar>
HeadsView<const Scalar> spread(const HeadsView<const Scalar>& view, std::vector<Scalar>& memory) {
  const Index head_stride = view.width() + 3, token_stride = view.heads() * head_stride + 5;
  memory.assign(static_cast<std::size_t>(view.tokens() * token_stride), nan<Scalar>);
  for (Index t = 0; t < view.tokens(); ++t)
    for (Index h = 0; h < view.heads(); ++h)
      std::copy_n(view.row(t, h), view.width(),
                  memory.begin() + t * token_stride + h * head_stride);
  return {memory.data(), view.tokens(), view.heads(), view.width(), token_stride, head_stride};
}

TEST(AttendBits, DoNotDependOnThreads) {
  const Numbers<float> numbers{900, 1000};  // enough work that threads wake
  const auto attend = gated<float>(Causal{});
  std::vector<float> log_sum_exp, other;
  const auto alone = run_attend(attend, numbers.batch(), &log_sum_exp);
  for (Index threads = 2; threads <= 7; ++threads) {
    EXPECT_TRUE(same_bits(alone, run_attend(attend, numbers.batch(), &other, threads)))
        << threads << " threads";
    EXPECT_TRUE(same_bits(log_sum_exp, other)) << threads << " threads";
  }
}

// pytorch/pytorch#187504, #187506; ROCm/pytorch#3230; torch-spyre#4331; FlagGems#5896
template <class Scalar>
void expect_strides_are_followed() {
  const Numbers<Scalar> numbers{70, 140};
  const auto attend = gated<Scalar>(SlidingWindow{.window = 33});
  const AttendBatch<Scalar> packed = numbers.batch();
  std::vector<Scalar> q, k, v, logits;
  AttendBatch<Scalar> wide = packed;
  wide.q = spread(packed.q, q);
  wide.k = spread(packed.k, k);
  wide.v = spread(packed.v, v);
  wide.gate_logits = spread(packed.gate_logits, logits);
  EXPECT_TRUE(same_bits(run_attend(attend, packed), run_attend(attend, wide)));
}

TEST(AttendBits, AreTheSameForRowsWithGaps) {
  expect_strides_are_followed<float>();
  expect_strides_are_followed<double>();
}

TEST(AttendBits, AreTheSameForHeadsThatLieBeforeTokens) {
  // [Hq, T, D]: tokens are neighbours, heads far apart
  const Numbers<float> numbers{20, 20};
  const auto attend = gated<float>(Causal{});
  AttendBatch<float> batch = numbers.batch();
  std::vector<float> q(numbers.q.size());
  for (Index t = 0; t < 20; ++t)
    for (Index h = 0; h < 6; ++h) std::copy_n(batch.q.row(t, h), 11, q.begin() + (h * 20 + t) * 11);
  const auto wanted = run_attend(attend, batch);
  batch.q = {q.data(), 20, 6, 11, 11, 20 * 11};
  EXPECT_TRUE(same_bits(wanted, run_attend(attend, batch)));
}

TEST(AttendBits, LeaveTheGapsOfTheOutputAlone) {
  const Numbers<float> numbers{33, 33};
  const auto attend = gated<float>(Causal{});
  const auto wanted = run_attend(attend, numbers.batch());
  const Index head_stride = 9, token_stride = 60;
  std::vector<float> memory(33 * 60, -7);
  AttendWorkspace workspace(attend, {.tokens = 33, .keys = 33, .threads = 1});
  const HeadsView<float> out(memory.data(), 33, 6, 7, token_stride, head_stride);
  attend(numbers.batch(), workspace, out);
  for (Index t = 0; t < 33; ++t)
    for (Index i = 0; i < token_stride; ++i) {
      const Index head = i / head_stride, channel = i % head_stride;
      const float got = memory[static_cast<std::size_t>(t * token_stride + i)];
      const bool inside = head < 6 && channel < 7;
      EXPECT_EQ(got, inside ? wanted[static_cast<std::size_t>((t * 6 + head) * 7 + channel)] : -7);
    }
}

TEST(AttendBits, AreTheSameAloneAndInABatch) {
  const Numbers<float> numbers{60, 300};
  const auto attend = gated<float>(Causal{});
  const std::vector<Index> lengths = {17, 0, 30, 13}, key_lengths = {100, 3, 30, 167};
  AttendBatch<float> batch = numbers.batch();
  batch.lengths = lengths;
  batch.key_lengths = key_lengths;
  const auto together = run_attend(attend, batch);
  Index token = 0, key = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Index t = lengths[i], s = key_lengths[i];
    const auto alone =
        run_attend(attend, {.q = {batch.q.row(token, 0), t, 6, 11},
                            .k = {batch.k.row(key, 0), s, 2, 11},
                            .v = {batch.v.row(key, 0), s, 2, 7},
                            .gate_logits = {batch.gate_logits.row(token, 0), t, 6, 7}});
    EXPECT_TRUE(same_bits(
        std::span<const float>(alone),
        std::span<const float>(together.data() + token * 42, static_cast<std::size_t>(t * 42))))
        << "sequence " << i;
    token += t;
    key += s;
  }
}

// pytorch/pytorch#176091, llama.cpp#22956: T = 1 or many, S = 32 and 33
TEST(AttendBits, OfTheLastRowDoNotDependOnTheRowsBefore) {
  const auto attend = gated<float>(Causal{});
  for (const Index keys : {32, 33, 128, 129, 300}) {
    const Numbers<float> numbers{32, keys};
    const AttendBatch<float> all = numbers.batch();
    const auto whole = run_attend(attend, all);
    for (Index t = 1; t <= 32; ++t) {
      AttendBatch<float> last = all;
      last.q = {all.q.row(32 - t, 0), t, 6, 11};
      last.gate_logits = {all.gate_logits.row(32 - t, 0), t, 6, 7};
      const auto y = run_attend(attend, last);
      EXPECT_TRUE(same_bits(std::span<const float>(y),
                            std::span<const float>(whole.data() + (32 - t) * 42, y.size())))
          << keys << " keys, T = " << t;
    }
  }
}

TEST(AttendBits, KeepClearOfNotFiniteKeysAndValuesOutsideTheWindow) {
  const Numbers<double> numbers{140, 140};
  const auto attend = gated<double>(SlidingWindow{.window = 10});
  const auto clean = run_attend(attend, numbers.batch());
  for (Index bad = 0; bad < 140; ++bad)
    for (const double value : {nan<double>, infinity<double>}) {
      Numbers<double> spoiled = numbers;
      std::fill_n(spoiled.k.begin() + bad * 22, 22, value);
      std::fill_n(spoiled.v.begin() + bad * 14, 14, value);
      const auto y = run_attend(attend, spoiled.batch());
      const auto rows = [](const std::vector<double>& all, Index first, Index last) {
        return std::span<const double>(all.data() + first * 42,
                                       static_cast<std::size_t>((last - first) * 42));
      };
      const Index seen = std::min<Index>(bad + 10, 140);
      EXPECT_TRUE(same_bits(rows(clean, 0, bad), rows(y, 0, bad))) << "key " << bad;
      EXPECT_TRUE(same_bits(rows(clean, seen, 140), rows(y, seen, 140))) << "key " << bad;
    }
}

TEST(AttendBits, StopAtOneSequenceAndOneHead) {
  // NaN in a query spoils its own row alone, NaN in a kv head its own query heads alone.
  const Numbers<float> numbers{40, 40};
  const auto attend = gated<float>(Causal{});
  const auto clean = run_attend(attend, numbers.batch());
  Numbers<float> spoiled = numbers;
  std::fill_n(spoiled.q.begin() + (20 * 6 + 4) * 11, 11, nan<float>);
  std::fill_n(spoiled.k.begin(), 11, nan<float>);
  const auto y = run_attend(attend, spoiled.batch());
  for (Index t = 0; t < 40; ++t)
    for (Index h = 0; h < 6; ++h) {
      const std::size_t at = static_cast<std::size_t>((t * 6 + h) * 7);
      if (h < 3 || (t == 20 && h == 4))
        EXPECT_TRUE(std::isnan(y[at])) << "row " << t << ", head " << h;
      else
        EXPECT_EQ(y[at], clean[at]) << "row " << t << ", head " << h;
    }
}

}  // namespace
}  // namespace gated_attention::test
