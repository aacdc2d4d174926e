// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "property/schedule.hpp"

// A schedule run on a cache, beside a record of what each sequence was given and what came out.

namespace gated_attention::test {

template <class Cache>
inline constexpr bool is_ring = false;
template <class Layer, class Stored>
inline constexpr bool is_ring<RingCache<Layer, Stored>> = true;

template <class Running, class Cache>
class Trial {
  using Scalar = typename Running::Scalar;
  using Stored = typename Cache::Stored;
  using Layer = typename Running::Layer;
  static constexpr bool prefixed = Layer::template has_stage<PrefixCausal>;
  static constexpr bool paged = requires(Cache & c) { c.fork(Index{}, Index{}, Index{}); };

 public:
  Trial(const Running& running, Cache& cache, const Schedule& schedule, Index most_tokens)
      : running_(running), cache_(cache), schedule_(schedule), most_tokens_(most_tokens) {
    poison(cache);
    records_.resize(static_cast<std::size_t>(cache.sequences()));
  }

  /// Every token that was ever appended has been compared behind it.
  void run() {
    for (const Step& step : schedule_.steps) take(step);
    for (Index s = 0; s < sequences(); ++s) check(s);
    RC_CLASSIFY(most_threads_ > 1, "on several threads");
    RC_CLASSIFY(most_pieces_ > 1, "tiles in pieces");
  }

 private:
  /// What a sequence has been given, and what came out.
  struct Record {
    std::vector<Scalar> x, y, log_sum_exp;
    Index size = 0, prefix = 0;
  };

  Index sequences() const { return cache_.sequences(); }
  Record& record(Index s) { return records_[static_cast<std::size_t>(s)]; }

  void take(const Step& step) {
    const Index sequence = step.sequence % sequences(), size = record(sequence).size;
    const Index share = size * step.permille / 1000;
    switch (step.action) {
      case Step::Action::append:
        append(step, -1);
        break;
      case Step::Action::spoil:
        append(step, sequence);
        break;
      case Step::Action::truncate:
        truncate(sequence, share);
        break;
      case Step::Action::reset:
        check(sequence);
        cache_.reset(sequence);
        shorten(sequence, 0);
        break;
      case Step::Action::fork:
        if constexpr (paged) fork(sequence, step.other % sequences(), share);
    }
    for (Index s = 0; s < sequences(); ++s)
      if (cache_.size(s) != record(s).size)
        RC_FAIL("sequence " + std::to_string(s) + " has " + std::to_string(cache_.size(s)) +
                " keys, not " + std::to_string(record(s).size));
  }

  /// Appends; the tokens of sequence `spoilt` are not finite, and are dropped again.
  void append(const Step& step, Index spoilt) {
    Tokens<Scalar> tokens;
    std::vector<Index> pasts;
    std::uint64_t seed = static_cast<std::uint64_t>(step.seed);
    for (Index s = 0; s < sequences(); ++s) {
      Record& own = record(s);
      const Index length =
          std::min(step.lengths[static_cast<std::size_t>(s)], most_tokens_ - own.size);
      const std::vector<Scalar> x =
          s == spoilt ? not_finite(length, seed) : running_.input(length, ++seed);
      tokens.x.insert(tokens.x.end(), x.begin(), x.end());
      tokens.lengths.push_back(length);
      pasts.push_back(own.size);
      if (own.size == 0) own.prefix = s == spoilt ? 0 : length * schedule_.prefix_permille / 1000;
      if (prefixed) tokens.prefixes.push_back(own.prefix);
    }
    const AttendDivision division =
        attend_division(running_.layer, tokens.lengths, pasts, step.run.threads);
    most_threads_ = std::max(most_threads_, division.threads);
    most_pieces_ = std::max(most_pieces_, division.most_pieces);
    const Outputs<Scalar> outputs = extend(running_, cache_, tokens, step.run);
    Index row = 0;
    for (Index s = 0; s < sequences(); ++s) {
      const Index length = tokens.lengths[static_cast<std::size_t>(s)];
      if (s != spoilt) {
        add(record(s).x, tokens.x, row, length, running_.model_dim());
        add(record(s).y, outputs.y, row, length, running_.model_dim());
        add(record(s).log_sum_exp, outputs.log_sum_exp, row, length, heads());
        record(s).size += length;
      }
      row += length;
    }
    if (spoilt >= 0 && !truncated(spoilt, record(spoilt).size)) {
      check(spoilt);
      cache_.reset(spoilt);
      shorten(spoilt, 0);
    }
  }

  void truncate(Index s, Index keys) {
    if (prefixed && keys < record(s).prefix) keys = 0;  // what stays has seen what goes
    check(s);
    if (truncated(s, keys)) shorten(s, keys);
  }

  /// Whether the cache has done so: a ring may have lost the keys that are wanted back.
  bool truncated(Index s, Index keys) {
    try {
      cache_.truncate(s, keys);
      return true;
    } catch (const ShapeError& error) {
      if (!is_ring<Cache>) RC_FAIL(error.what());
      return false;
    }
  }

  void fork(Index from, Index to, Index keys) {
    if (prefixed && keys < record(from).prefix) keys = 0;
    check(to);
    cache_.fork(from, to, keys);
    record(to) = record(from);
    shorten(to, keys);
  }

  /// The record keeps what the cache does.
  void shorten(Index s, Index keys) {
    Record& own = record(s);
    own.x.resize(static_cast<std::size_t>(keys * running_.model_dim()));
    own.y.resize(own.x.size());
    own.log_sum_exp.resize(static_cast<std::size_t>(keys * heads()));
    own.size = keys;
  }

  /// Everything that came out of a sequence so far, against the whole of it at once.
  void check(Index s) {
    const Record& own = record(s);
    expect(own, extend_alone<Stored>(running_, own.x, own.prefix), s,
           "extend of the whole sequence alone");
    if constexpr (std::is_same_v<Stored, Scalar>) {
      std::vector<Index> prefixes;
      if (prefixed) prefixes.push_back(own.prefix);
      expect(own, forward(running_, {own.x, {own.size}, prefixes}), s, "forward");
    }
  }

  void expect(const Record& own, const Outputs<Scalar>& wanted, Index s, const char* what) {
    const auto same = [&](const char* name, const std::vector<Scalar>& got,
                          const std::vector<Scalar>& given, Index row) {
      for (std::size_t i = 0; i < given.size(); ++i)
        if (std::memcmp(&got[i], &given[i], sizeof(Scalar)) != 0)
          RC_FAIL(std::string(name) + " of token " + std::to_string(static_cast<Index>(i) / row) +
                  " of " + std::to_string(own.size) + " of sequence " + std::to_string(s) +
                  " is not that of " + what + ": " + std::to_string(got[i]) + " and " +
                  std::to_string(given[i]));
    };
    same("y", own.y, wanted.y, running_.model_dim());
    same("log_sum_exp", own.log_sum_exp, wanted.log_sum_exp, heads());
  }

  std::vector<Scalar> not_finite(Index tokens, std::uint64_t seed) const {
    const Scalar numbers[] = {nan<Scalar>, infinity<Scalar>, -infinity<Scalar>};
    return std::vector<Scalar>(static_cast<std::size_t>(tokens * running_.model_dim()),
                               numbers[seed % 3]);
  }

  static void add(std::vector<Scalar>& to, const std::vector<Scalar>& from, Index row, Index count,
                  Index width) {
    to.insert(to.end(), from.begin() + row * width, from.begin() + (row + count) * width);
  }

  Index heads() const { return running_.layer.shape().query_heads; }

  const Running& running_;
  Cache& cache_;
  const Schedule& schedule_;
  Index most_tokens_;
  std::vector<Record> records_;
  Index most_threads_ = 1, most_pieces_ = 1;  // of any step
};

template <class Stored, class Running>
void run_trial(const Running& running, const Schedule& schedule, Index most_tokens) {
  using Layer = typename Running::Layer;
  const Index sequences = schedule.sequences;
  const auto run = [&](auto cache) { Trial(running, cache, schedule, most_tokens).run(); };
  const Layer& layer = running.layer;
  if (schedule.cache == 0)
    return run(
        ContiguousCache<Layer, Stored>(layer, {.tokens = most_tokens, .sequences = sequences}));
  if constexpr (Layer::template has_stage<SlidingWindow> ||
                Layer::template has_stage<StreamingWindow>)
    if (schedule.cache == 1)
      return run(RingCache<Layer, Stored>(
          layer, {.tokens = schedule.ring_spare < 0 ? 0 : schedule.window + schedule.ring_spare,
                  .sequences = sequences}));
  const Index pages = sequences * detail::divide_up(most_tokens, page_keys);
  run(PagedCache<Layer, Stored>(layer, {.pages = pages, .sequences = sequences}));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int trial_divisor = 10;
#elif defined(__has_feature)
inline constexpr int trial_divisor =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ? 10 : 1;
#else
inline constexpr int trial_divisor = 1;
#endif

/// Trials of a layer that composition(schedule) composes, its keys stored as one of Stored; fewer under a sanitizer.
template <class... Stored, class Composition>
void expect_same_bits_in_every_schedule(const Composition& composition,
                                        const ScheduleLimits& limits = {}) {
  const auto trial = [&] {
    const Schedule schedule = *any_schedule(limits);
    const RunningLayer running(composition(schedule));
    Index left = schedule.storage % static_cast<Index>(sizeof...(Stored));
    const auto run = [&]<class S>(StoredAs<S>) {
      if (left-- == 0) run_trial<S>(running, schedule, limits.most_tokens);
    };
    (run(StoredAs<Stored>{}), ...);
  };
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::max(1, params.maxSuccess * limits.trials / 100 / trial_divisor);
  const auto result = rc::detail::checkTestable(trial, rc::detail::TestMetadata{}, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << text.str();
  std::cout << text.str() << '\n';  // how many trials had what
}

}  // namespace gated_attention::test
