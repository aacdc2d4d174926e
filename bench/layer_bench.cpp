// SPDX-License-Identifier: MIT

// The gate variants beside the ungated layer, in one process: for each published shape and number of tokens all variants
// run in turn, round by round, each between two probes of the multiply-add peak. What is printed are medians over the
// rounds: time, GFLOP/s, share of the peak, and the time as a ratio to the ungated layer's of the same round.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gated_attention/gated_attention.hpp"
#include "probe.hpp"

namespace {

using namespace gated_attention;

struct NamedShape {
  const char* name;
  Shape shape;
};

constexpr NamedShape shapes[] = {
    {"qwen3_next", {.model_dim = 2048, .query_heads = 16, .kv_heads = 2, .head_dim = 256}},
    {"15a2b", {.model_dim = 2048, .query_heads = 32, .kv_heads = 4, .head_dim = 128}},
    {"1.7b", {.model_dim = 2048, .query_heads = 16, .kv_heads = 8, .head_dim = 128}},
};

/// A layer ready to run on a number of tokens.
struct Runner {
  std::string name;
  std::function<void()> run;
  double operations = 0;
};

std::vector<float> normal_values(Index count) {
  std::mt19937_64 engine(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

/// Multiplications and additions of one forward over a causal sequence of T tokens.
double operations(const Shape& shape, Index parameters, Index tokens) {
  const double t = static_cast<double>(tokens);
  const double pairs = t * (t + 1) / 2 * static_cast<double>(shape.query_heads);
  return 2 * t * static_cast<double>(parameters) +
         2 * pairs * static_cast<double>(shape.head_dim + shape.value_width());
}

template <class... Stages>
Runner make_runner(const char* name, const Shape& shape, Index tokens, Index threads,
                   const Stages&... stages) {
  const auto attention =
      compose<float>(shape, stages..., QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e6}, Causal{});
  using Layer = std::remove_const_t<decltype(attention)>;
  struct State {
    Layer layer;
    PackedWeights<Layer> weights;
    Workspace<Layer> workspace;
    std::vector<float> x, y;
  };
  Parameters parameters(attention);
  initialize(parameters, 1);
  auto state = std::make_shared<State>(
      State{attention, pack(attention, parameters),
            Workspace(attention, {.tokens = tokens, .threads = threads}),
            normal_values(tokens * shape.model_dim),
            std::vector<float>(static_cast<std::size_t>(tokens * shape.model_dim))});
  const auto run = [state, tokens] {
    const Index columns = state->layer.shape().model_dim;
    state->layer.forward({.x = {state->x.data(), tokens, columns}}, state->weights,
                         state->workspace, {state->y.data(), tokens, columns});
  };
  return {name, run, operations(shape, Layer::parameter_count(shape), tokens)};
}

/// The variants, the ungated layer first.
std::vector<Runner> make_runners(const Shape& shape, Index tokens, Index threads) {
  const auto make = [&](const char* name, const auto&... stages) {
    return make_runner(name, shape, tokens, threads, stages...);
  };
  return {make("none"),
          make("sdpa_elementwise", Gate<at::Sdpa>{}),
          make("sdpa_headwise", Gate<at::Sdpa, Headwise>{}),
          make("sdpa_head_mean", Gate<at::Sdpa, HeadMean>{}),
          make("sdpa_add_silu", Gate<at::Sdpa, Add, Silu>{}),
          make("value_elementwise", Gate<at::Value>{}),
          make("value_headwise", Gate<at::Value, Headwise>{}),
          make("key_elementwise", Gate<at::Key>{}),
          make("query_elementwise", Gate<at::Query>{}),
          make("output_elementwise", Gate<at::Output>{}),
          make("sdpa_norm", Normalize<at::Sdpa>{.eps = 1e-6})};
}

struct Measured {
  double seconds = 0, gflops = 0, share = 0, ratio = 0;
};

using Table = std::map<std::string, Measured>;

/// All variants in turn, round by round.
Table measure(const Shape& shape, Index tokens, int threads) {
  constexpr int least_rounds = 5, most_rounds = 21;
  constexpr double enough_seconds = 12;
  const std::vector<Runner> runners = make_runners(shape, tokens, threads);
  std::vector<std::vector<double>> seconds(runners.size()), share(runners.size()),
      ratio(runners.size());
  for (const Runner& runner : runners) runner.run();
  const auto start = bench::Clock::now();
  for (int round = 0; round < most_rounds; ++round) {
    if (round >= least_rounds && bench::seconds_since(start) > enough_seconds) break;
    double before = bench::fma_probe_gflops(threads);
    for (std::size_t i = 0; i < runners.size(); ++i) {
      const auto begin = bench::Clock::now();
      runners[i].run();
      seconds[i].push_back(bench::seconds_since(begin));
      const double after = bench::fma_probe_gflops(threads);
      share[i].push_back(runners[i].operations / seconds[i].back() * 1e-9 / ((before + after) / 2));
      ratio[i].push_back(seconds[i].back() / seconds[0].back());
      before = after;
    }
  }
  Table table;
  for (std::size_t i = 0; i < runners.size(); ++i) {
    const double median = bench::median(seconds[i]);
    table[runners[i].name] = {median, runners[i].operations / median * 1e-9,
                              bench::median(share[i]), bench::median(ratio[i])};
  }
  return table;
}

void forward(benchmark::State& state, const NamedShape& shape, const std::string& gate,
             Index tokens, int threads) {
  static std::map<std::string, Table> measured;
  const std::string key =
      std::string(shape.name) + "/" + std::to_string(tokens) + "/" + std::to_string(threads);
  if (!measured.contains(key)) measured[key] = measure(shape.shape, tokens, threads);
  const Measured& own = measured[key][gate];
  for (auto _ : state) state.SetIterationTime(own.seconds);
  state.counters["gflops"] = own.gflops;
  state.counters["share"] = own.share;
  state.counters["ratio"] = own.ratio;
}

/// One Markdown row a benchmark.
class MarkdownReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override {
    std::printf("%s, %s; medians; share of the multiply-add peak of the same run\n\n",
                instruction_set, GATED_ATTENTION_BENCH_FLAGS);
    std::printf(
        "| shape | tokens | threads | gate | ms | GFLOP/s | share of peak | time / ungated |\n");
    std::printf("|---|---|---|---|---|---|---|---|\n");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      std::string name = run.benchmark_name();
      for (const char* label :
           {"BM_forward/", "shape:", "tokens:", "threads:", "gate:", "/iterations:1/manual_time"})
        if (const auto at = name.find(label); at != std::string::npos)
          name.erase(at, std::string(label).size());
      for (std::size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 3))
        name.replace(at, 1, " | ");
      std::printf("| %s | %.2f | %.0f | %.1f %% | %.3f |\n", name.c_str(),
                  run.GetAdjustedRealTime(), run.counters.at("gflops").value,
                  100 * run.counters.at("share").value, run.counters.at("ratio").value);
      std::fflush(stdout);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  constexpr const char* gates[] = {"none",
                                   "sdpa_elementwise",
                                   "sdpa_headwise",
                                   "sdpa_head_mean",
                                   "sdpa_add_silu",
                                   "value_elementwise",
                                   "value_headwise",
                                   "key_elementwise",
                                   "query_elementwise",
                                   "output_elementwise",
                                   "sdpa_norm"};
  for (const NamedShape& shape : shapes)
    for (const Index tokens : {128, 512, 2048, 8192})
      for (const int threads : {1, 2})
        for (const char* gate : gates)
          benchmark::RegisterBenchmark(
              ("BM_forward/shape:" + std::string(shape.name) + "/tokens:" + std::to_string(tokens) +
               "/threads:" + std::to_string(threads) + "/gate:" + gate)
                  .c_str(),
              [&shape, gate, tokens, threads](benchmark::State& state) {
                forward(state, shape, gate, tokens, threads);
              })
              ->UseManualTime()
              ->Iterations(1)
              ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  MarkdownReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
}
