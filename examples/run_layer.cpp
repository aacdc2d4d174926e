// SPDX-License-Identifier: MIT

// Opens a softmax-attention layer of a checkpoint, runs hidden states through it and reports what it is, how fast it ran,
// how open its gate was, how much attention the first token got, and how far the output is from what was recorded; with
// --decode also how far it is when half of the tokens fill a cache and the others follow one by one.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gated_attention/analysis/gate_statistics.hpp"
#include "gated_attention/analysis/probe.hpp"
#include "gated_attention/model/qwen3_next.hpp"

namespace {

namespace ga = gated_attention;
using ga::Index;

struct Options {
  std::string checkpoint = GATED_ATTENTION_SOURCE_DIR "/tests/data/checkpoints/qwen3_next_bf16";
  std::optional<Index> layer;
  std::optional<Index> tokens;
  Index threads = 0;
  std::string precision = "float";
  bool decode = false;
  bool json = false;
};

/// Hidden states, and the output that was recorded for them, if any.
template <class Scalar>
struct Input {
  std::vector<Scalar> x;
  std::vector<double> expected;
  Index tokens = 0;
  std::string source;
};

template <class Scalar>
Input<Scalar> recorded_input(const ga::ExpectedOutputs& recorded, Index layer, Index tokens,
                             Index model_dim) {
  const ga::TensorView input = recorded.input(layer), output = recorded.output(layer);
  Input<Scalar> found;
  found.tokens = tokens;
  found.source = "recorded hidden states";
  found.x.resize(static_cast<std::size_t>(tokens * model_dim));
  found.expected.resize(found.x.size());
  ga::read_rows<Scalar>(input, 0, ga::MatrixView<Scalar>(found.x.data(), tokens, model_dim));
  ga::read_rows<double>(output, 0,
                        ga::MatrixView<double>(found.expected.data(), tokens, model_dim));
  return found;
}

template <class Scalar>
Input<Scalar> seeded_input(Index tokens, Index model_dim) {
  Input<Scalar> made;
  made.tokens = tokens;
  made.source = "seeded hidden states";
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal;
  made.x.resize(static_cast<std::size_t>(tokens * model_dim));
  for (Scalar& value : made.x) value = static_cast<Scalar>(normal(engine));
  return made;
}

template <class Scalar>
Input<Scalar> choose_input(const ga::Checkpoint& checkpoint, const Options& options, Index layer,
                           Index model_dim) {
  constexpr Index default_tokens = 512;
  const auto recorded = ga::ExpectedOutputs::beside(checkpoint);
  if (recorded && recorded->has(layer)) {
    const Index available = recorded->input(layer).shape[0];
    const Index tokens = options.tokens.value_or(available);
    if (tokens <= available) return recorded_input<Scalar>(*recorded, layer, tokens, model_dim);
  }
  return seeded_input<Scalar>(options.tokens.value_or(default_tokens), model_dim);
}

/// max |y − expected| / max |expected|
template <class Scalar>
double max_relative_error(const std::vector<Scalar>& y, const std::vector<double>& expected) {
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(y[i]) - expected[i]);
    if (!(difference <= error)) error = difference;  // a NaN stays
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

/// y, where the first half of the tokens come at once and the others one by one, behind what a cache holds of them.
template <class Layer, class Scalar = typename Layer::Scalar>
std::vector<Scalar> decode(const Layer& attention, const ga::PackedWeights<Layer>& weights,
                           const std::vector<Scalar>& x, Index tokens, Index threads) {
  const Index width = attention.shape().model_dim;
  ga::ContiguousCache cache(attention, {.tokens = tokens});
  ga::Workspace workspace(attention,
                          {.tokens = std::max(tokens / 2, Index{1}), .threads = threads});
  std::vector<Scalar> y(x.size());
  for (Index done = 0; done < tokens;) {
    const Index count = done == 0 && tokens > 1 ? tokens / 2 : 1;
    attention.extend({.x = ga::MatrixView<const Scalar>(x.data() + done * width, count, width)},
                     weights, cache, workspace,
                     ga::MatrixView<Scalar>(y.data() + done * width, count, width));
    done += count;
  }
  return y;
}

/// Multiplications and additions of one forward over a causal sequence.
double operations(const ga::Shape& shape, Index parameters, Index tokens) {
  const double t = static_cast<double>(tokens);
  const double pairs = t * (t + 1) / 2 * static_cast<double>(shape.query_heads);
  return 2 * t * static_cast<double>(parameters) +
         2 * pairs * static_cast<double>(shape.head_dim + shape.value_width());
}

struct Timing {
  double milliseconds = 0;
  double gflops = 0;
  double peak_gflops = 0;
};

/// The median of repeated runs, and the multiply-add peak measured between them.
template <class Run>
Timing measure(const Run& run, double work, int threads) {
  constexpr double enough_seconds = 0.3;
  constexpr std::size_t least_runs = 5, most_runs = 200;
  run();
  std::vector<double> times, peaks;
  const auto start = ga::analysis::Clock::now();
  while (times.size() < least_runs ||
         (times.size() < most_runs && ga::analysis::seconds_since(start) < enough_seconds)) {
    peaks.push_back(ga::analysis::fma_probe_gflops(threads));
    const auto begin = ga::analysis::Clock::now();
    run();
    times.push_back(ga::analysis::seconds_since(begin));
  }
  const double seconds = ga::analysis::median(times);
  return {seconds * 1e3, work / seconds * 1e-9, ga::analysis::median(peaks)};
}

nlohmann::json number_or_null(std::optional<double> number) {
  return number ? nlohmann::json(*number) : nlohmann::json(nullptr);
}

void print(const nlohmann::json& report) {
  const auto text = [&](const char* key) { return report[key].get<std::string>(); };
  const auto number = [&](const char* key) { return report[key].get<double>(); };
  std::printf("%s, layer %ld of %s\n", text("model_type").c_str(), report["layer"].get<long>(),
              text("checkpoint").c_str());
  std::printf("  %s\n", text("description").c_str());
  std::printf("  input                   %ld tokens, %s, in %s\n", report["tokens"].get<long>(),
              text("input").c_str(), text("precision").c_str());
  std::printf(
      "  time                    %.3f ms on %ld threads, %.1f GFLOP/s, %.0f %% of the FMA peak "
      "(%s)\n",
      number("milliseconds"), report["threads"].get<long>(), number("gflops"),
      100 * number("share_of_peak"), text("instruction_set").c_str());
  const nlohmann::json& gate = report["gate"];
  std::printf(
      "  gate                    mean %.4f; %.2f %% of scores below 0.01, %.2f %% below 0.1\n",
      gate["mean"].get<double>(), 100 * gate["below_0_01"].get<double>(),
      100 * gate["below_0_1"].get<double>());
  std::printf("  first-token attention   %.4f\n", number("first_token_attention"));
  if (report["max_relative_error"].is_null())
    std::printf("  error                   no recorded output for this input\n");
  else
    std::printf("  error                   %.2e of the largest recorded output\n",
                number("max_relative_error"));
  if (!report["decode_max_relative_error"].is_null())
    std::printf("  error when decoded      %.2e: half of the tokens at once, then one by one\n",
                number("decode_max_relative_error"));
}

template <class Scalar>
nlohmann::json run(const Options& options) {
  const ga::Checkpoint checkpoint(options.checkpoint);
  checkpoint.check_model_type({"qwen3_next"});
  const Index layer = options.layer ? *options.layer : checkpoint.first_softmax_layer();
  const auto opened = ga::open_qwen3_next<Scalar>(checkpoint, layer);
  const auto& attention = opened.layer;
  const auto weights = pack(attention, opened.parameters);
  const ga::Shape& shape = attention.shape();

  const Input<Scalar> input = choose_input<Scalar>(checkpoint, options, layer, shape.model_dim);
  const Index tokens = input.tokens;
  ga::Workspace workspace(attention, {.tokens = tokens, .threads = options.threads});
  std::vector<Scalar> y(input.x.size());
  const ga::MatrixView<const Scalar> x_view(input.x.data(), tokens, shape.model_dim);
  const ga::MatrixView<Scalar> y_view(y.data(), tokens, shape.model_dim);

  std::vector<Scalar> scores(
      static_cast<std::size_t>(tokens * shape.query_heads * shape.value_width()));
  std::vector<Scalar> lse(static_cast<std::size_t>(tokens * shape.query_heads)), first(lse.size());
  ga::Results<Scalar> results;
  results.log_sum_exp = {lse.data(), tokens, shape.query_heads};
  results.first_token_attention = {first.data(), tokens, shape.query_heads};
  results.gate_scores.sdpa = {scores.data(), tokens, shape.query_heads, shape.value_width()};
  attention.forward({.x = x_view}, weights, workspace, y_view, results);

  const int threads = static_cast<int>(workspace.limits().threads);
  const Timing timing =
      measure([&] { attention.forward({.x = x_view}, weights, workspace, y_view); },
              operations(shape, attention.parameter_count(shape), tokens), threads);
  const ga::GateStatistics gate = ga::gate_statistics(results.gate_scores.sdpa);
  std::optional<double> error, decode_error;
  if (!input.expected.empty()) error = max_relative_error(y, input.expected);
  if (options.decode) {
    const std::vector<Scalar> decoded = decode(attention, weights, input.x, tokens, threads);
    if (!input.expected.empty()) decode_error = max_relative_error(decoded, input.expected);
  }
  return {{"checkpoint", options.checkpoint},
          {"model_type", checkpoint.model_type()},
          {"layer", layer},
          {"description", describe(attention)},
          {"model_dim", shape.model_dim},
          {"query_heads", shape.query_heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"parameters", attention.parameter_count(shape)},
          {"input", input.source},
          {"tokens", tokens},
          {"precision", options.precision},
          {"threads", threads},
          {"instruction_set", ga::instruction_set},
          {"milliseconds", timing.milliseconds},
          {"gflops", timing.gflops},
          {"peak_gflops", timing.peak_gflops},
          {"share_of_peak", timing.gflops / timing.peak_gflops},
          {"gate",
           {{"mean", gate.mean}, {"below_0_01", gate.below_0_01}, {"below_0_1", gate.below_0_1}}},
          {"first_token_attention", ga::mean(results.first_token_attention)},
          {"max_relative_error", number_or_null(error)},
          {"decode_max_relative_error", number_or_null(decode_error)}};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int bad_input = 2;
  Options options;
  CLI::App app{
      "Runs one softmax-attention layer of a published model on hidden states, and reports what it "
      "is and does."};
  app.add_option("checkpoint", options.checkpoint,
                 "directory with config.json and model*.safetensors (default: a small Qwen3-Next "
                 "of the repository)");
  app.add_option("--layer", options.layer,
                 "number of the layer (default: the first softmax-attention layer)");
  app.add_option("--tokens", options.tokens,
                 "how many tokens: the first of those recorded in expected.safetensors, or seeded "
                 "ones where that is "
                 "absent or has fewer (default: all recorded, or 512)")
      ->check(CLI::Range(Index{1}, Index{1} << 24));
  app.add_option("--threads", options.threads, "threads (default: what OpenMP gives)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--precision", options.precision, "float or double (default: float)")
      ->check(CLI::IsMember({"float", "double"}));
  app.add_flag("--decode", options.decode,
               "also run the first half of the tokens at once and the others one by one through a "
               "cache");
  app.add_flag("--json", options.json, "print one JSON object instead of text");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "run_layer: %s\n", error.what());
    return bad_input;
  }
  try {
    const nlohmann::json report =
        options.precision == "double" ? run<double>(options) : run<float>(options);
    if (options.json)
      std::printf("%s\n", report.dump(2).c_str());
    else
      print(report);
  } catch (const ga::Error& error) {
    std::fprintf(stderr, "run_layer: %s\n", error.what());
    return bad_input;
  }
}
