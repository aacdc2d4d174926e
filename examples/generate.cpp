// SPDX-License-Identifier: MIT

// A small dense decoder that generates tokens greedily: opens a checkpoint of the paper's own models, or draws weights of
// a given size, runs the prompt through in chunks, then one token after the other, and reports how fast both went.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "decoder_attention.hpp"
#include "dense_decoder.hpp"
#include "gated_attention/analysis/probe.hpp"

namespace {

namespace ga = gated_attention;
using dense_decoder::DecoderAttention;
using ga::Index;

struct Options {
  std::string checkpoint;
  std::string gate = "elementwise";
  Index layers = 8, model_dim = 512, query_heads = 8, kv_heads = 2, head_dim = 64;
  Index mlp_dim = 1536, vocabulary = 4096;
  std::uint64_t seed = 1;

  std::vector<Index> prompt;
  Index prompt_tokens = 128, tokens = 64, chunk = 512;

  std::string cache = "contiguous", storage = "float";
  Index window = 0;  ///< 0: none
  Index threads = ga::default_threads();
  bool json = false;
};

using AnyAttention = std::unique_ptr<DecoderAttention<float>>;

struct Model {
  std::string name;
  dense_decoder::Weights<float> weights;
  AnyAttention attention;
};

/// function(stored_as<T>) for the T of that name.
template <class Function>
AnyAttention with_storage(const std::string& name, const Function& function) {
  if (name == "bfloat16") return function(ga::stored_as<ga::bfloat16>);
  if (name == "half") return function(ga::stored_as<ga::half>);
  if (name == "int8") return function(ga::stored_as<std::int8_t>);
  return function(ga::stored_as<float>);
}

/// Sets the parameters of a block.
using Fill = std::function<void(Index layer, ga::Parameters<float>& parameters)>;

/// The attention of `layers` blocks of these numbers, in whatever type they ask for, with a cache of
/// make_cache() each.
template <class Mask, class MakeCache>
AnyAttention with_caches(const Options& options, const ga::GatedQwen3Numbers& numbers, Index layers,
                         const Fill& fill, const Mask& mask, const MakeCache& make_cache) {
  const ga::Limits limits{.tokens = std::min(options.chunk, options.prompt_tokens),
                          .threads = options.threads};
  const auto make = [&](const auto& layer) -> AnyAttention {
    using Layer = std::remove_cvref_t<decltype(layer)>;
    return std::make_unique<dense_decoder::CachedAttention<Layer, decltype(make_cache())>>(
        dense_decoder::BlockLayers<Layer>(layer, layers, fill), limits, make_cache);
  };
  return ga::visit_gated_qwen3<float>(numbers, make, mask);
}

/// The same with the caches that the options name. A cache is made for a layer's shape and mask,
/// whatever its gate and biases: those of a layer without either serve all, and compile once.
AnyAttention make_attention(const Options& options, const ga::GatedQwen3Numbers& numbers,
                            Index layers, const Fill& fill) {
  const Index tokens = options.prompt_tokens + options.tokens;
  return with_storage(options.storage, [&](auto storage) {
    if (options.cache == "ring") {
      const ga::SlidingWindow mask{.window = options.window};
      using Plain = ga::GatedQwen3Baseline<float, ga::NoBias, ga::SlidingWindow>;
      const auto plain = ga::gated_qwen3_attention<Plain>(numbers, mask);
      return with_caches(options, numbers, layers, fill, mask,
                         [&] { return ga::RingCache(plain, {}, storage); });
    }
    const auto plain = ga::gated_qwen3_attention<ga::GatedQwen3Baseline<float>>(numbers);
    if (options.cache == "paged") {
      const Index pages = (tokens + ga::page_keys - 1) / ga::page_keys;
      return with_caches(options, numbers, layers, fill, ga::Causal{},
                         [&] { return ga::PagedCache(plain, {.pages = pages}, storage); });
    }
    return with_caches(options, numbers, layers, fill, ga::Causal{},
                       [&] { return ga::ContiguousCache(plain, {.tokens = tokens}, storage); });
  });
}

Model open_model(const Options& options) {
  const ga::Checkpoint checkpoint(options.checkpoint);
  const ga::GatedQwen3Decoder found = ga::read_gated_qwen3_decoder(checkpoint);
  const auto fill = [&checkpoint](Index layer, ga::Parameters<float>& parameters) {
    ga::read_parameters(ga::read_gated_qwen3(checkpoint, layer), parameters);
  };
  return {options.checkpoint, dense_decoder::read<float>(found, options.threads),
          make_attention(options, found.numbers, checkpoint.layers(), fill)};
}

Model draw_model(const Options& options) {
  dense_decoder::Size size;
  size.attention = {.model_dim = options.model_dim,
                    .query_heads = options.query_heads,
                    .kv_heads = options.kv_heads,
                    .head_dim = options.head_dim,
                    .eps = 1e-6,
                    .theta = 1e4,
                    .gate = options.gate == "none"       ? ga::GatedQwen3Gate::None
                            : options.gate == "headwise" ? ga::GatedQwen3Gate::Headwise
                                                         : ga::GatedQwen3Gate::Elementwise};
  size.layers = options.layers;
  size.mlp_dim = options.mlp_dim;
  size.vocabulary = options.vocabulary;
  const auto fill = [&options](Index layer, ga::Parameters<float>& parameters) {
    initialize(parameters, options.seed + static_cast<std::uint64_t>(layer) + 1);
  };
  auto attention = make_attention(options, size.attention, size.layers, fill);
  return {"seeded weights", dense_decoder::draw<float>(size, options.seed, options.threads),
          std::move(attention)};
}

std::vector<Index> choose_prompt(const Options& options, Index vocabulary) {
  if (!options.prompt.empty()) return options.prompt;
  std::mt19937_64 engine(options.seed);
  std::uniform_int_distribution<Index> any(0, vocabulary - 1);
  std::vector<Index> prompt(static_cast<std::size_t>(options.prompt_tokens));
  for (Index& token : prompt) token = any(engine);
  return prompt;
}

struct Generated {
  std::vector<Index> tokens;
  double prefill_seconds = 0;
  double decode_seconds = 0;  ///< of all tokens but the first, which the prompt gives
};

Generated generate(const Model& model, std::span<const Index> prompt, Index tokens, Index chunk) {
  const auto attend = [&](Index layer, ga::MatrixView<const float> x, ga::MatrixView<float> y) {
    model.attention->append(layer, x, y);
  };
  // One token first, which wakes the threads and touches the weights.
  dense_decoder::run(model.weights, prompt.first(1), attend);
  model.attention->reset();
  Generated generated;
  auto start = ga::analysis::Clock::now();
  for (std::size_t at = 0; at < prompt.size(); at += static_cast<std::size_t>(chunk)) {
    const std::size_t count = std::min(prompt.size() - at, static_cast<std::size_t>(chunk));
    const auto hidden = dense_decoder::run(model.weights, prompt.subspan(at, count), attend);
    if (at + count == prompt.size())
      generated.tokens.push_back(dense_decoder::next_token(model.weights, hidden));
  }
  generated.prefill_seconds = ga::analysis::seconds_since(start);
  start = ga::analysis::Clock::now();
  while (static_cast<Index>(generated.tokens.size()) < tokens) {
    const std::span<const Index> last(&generated.tokens.back(), 1);
    const auto hidden = dense_decoder::run(model.weights, last, attend);
    generated.tokens.push_back(dense_decoder::next_token(model.weights, hidden));
  }
  generated.decode_seconds = ga::analysis::seconds_since(start);
  return generated;
}

nlohmann::json phase(std::size_t tokens, double seconds) {
  nlohmann::json report = {{"tokens", tokens}, {"milliseconds", seconds * 1e3}};
  report["tokens_per_second"] =
      tokens == 0 ? nlohmann::json(nullptr) : nlohmann::json(static_cast<double>(tokens) / seconds);
  return report;
}

nlohmann::json run(const Options& options) {
  const Model model = options.checkpoint.empty() ? draw_model(options) : open_model(options);
  const dense_decoder::Weights<float>& weights = model.weights;
  const std::vector<Index> prompt = choose_prompt(options, weights.embeddings.rows());
  const Generated generated = generate(model, prompt, options.tokens, options.chunk);
  return {
      {"model", model.name},
      {"attention", model.attention->description()},
      {"layers", weights.blocks.size()},
      {"vocabulary", weights.embeddings.rows()},
      {"parameters", weights.parameters() + model.attention->parameters()},
      {"cache", options.cache},
      {"storage", options.storage},
      {"window", options.window == 0 ? nlohmann::json(nullptr) : nlohmann::json(options.window)},
      {"cache_bytes", model.attention->cache_bytes()},
      {"threads", options.threads},
      {"instruction_set", ga::instruction_set},
      {"prompt", prompt},
      {"chunk", options.chunk},
      {"prefill", phase(prompt.size(), generated.prefill_seconds)},
      {"decode", phase(generated.tokens.size() - 1, generated.decode_seconds)},
      {"tokens", generated.tokens}};
}

void print(const nlohmann::json& report) {
  const auto text = [&](const char* key) { return report[key].get<std::string>(); };
  const auto print_phase = [&](const char* name) {
    const nlohmann::json& phase = report[name];
    if (phase["tokens_per_second"].is_null()) return;
    std::printf("  %-9s %ld tokens in %.1f ms, %.0f tokens/s\n", name, phase["tokens"].get<long>(),
                phase["milliseconds"].get<double>(), phase["tokens_per_second"].get<double>());
  };
  std::printf("%s\n  %ld layers of %s\n", text("model").c_str(), report["layers"].get<long>(),
              text("attention").c_str());
  std::printf("  %.1f million numbers, a vocabulary of %ld, in float on %ld threads (%s)\n",
              report["parameters"].get<double>() * 1e-6, report["vocabulary"].get<long>(),
              report["threads"].get<long>(), text("instruction_set").c_str());
  print_phase("prefill");
  print_phase("decode");
  std::printf("  cache     %s, in %s, %.1f KiB\n", text("cache").c_str(), text("storage").c_str(),
              report["cache_bytes"].get<double>() / 1024);
  std::printf("  tokens   ");
  for (const nlohmann::json& token : report["tokens"]) std::printf(" %ld", token.get<long>());
  std::printf("\n");
}

void add_options(CLI::App& app, Options& options) {
  constexpr Index most = Index{1} << 24;
  const auto count = [&](const char* name, Index& value, const char* what) {
    app.add_option(name, value, what)->capture_default_str()->check(CLI::Range(Index{1}, most));
  };
  app.add_option("checkpoint", options.checkpoint,
                 "directory with config.json and model*.safetensors of one of the paper's own "
                 "models (default: seeded weights of the size below)");
  count("--layers", options.layers, "blocks of seeded weights");
  count("--model-dim", options.model_dim, "width of the hidden states");
  count("--query-heads", options.query_heads, "query heads");
  count("--kv-heads", options.kv_heads, "key and value heads");
  count("--head-dim", options.head_dim, "width of a head");
  count("--mlp-dim", options.mlp_dim, "width of the SwiGLU");
  count("--vocabulary", options.vocabulary, "tokens");
  app.add_option("--gate", options.gate, "gate of seeded weights")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "headwise", "elementwise"}));
  app.add_option("--seed", options.seed, "of weights and prompt")->capture_default_str();
  app.add_option("--prompt", options.prompt, "token ids, comma separated (default: seeded ones)")
      ->delimiter(',');
  count("--prompt-tokens", options.prompt_tokens, "length of a seeded prompt");
  count("--tokens", options.tokens, "how many tokens to generate");
  count("--chunk", options.chunk, "most tokens of the prompt at once");
  app.add_option("--cache", options.cache,
                 "how keys and values are kept; ring: the last of them, see --window")
      ->capture_default_str()
      ->check(CLI::IsMember({"contiguous", "ring", "paged"}));
  app.add_option("--storage", options.storage, "what keys and values are stored as")
      ->capture_default_str()
      ->check(CLI::IsMember({"float", "bfloat16", "half", "int8"}));
  app.add_option("--window", options.window,
                 "with --cache ring: how many tokens every token sees, itself included")
      ->check(CLI::Range(Index{1}, most));
  app.add_option("--threads", options.threads, "threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_flag("--json", options.json, "print one JSON object instead of text");
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int bad_input = 2;
  Options options;
  CLI::App app{
      "Generates tokens with a small dense decoder, and reports how fast it reads and writes."};
  add_options(app, options);
  try {
    app.parse(argc, argv);
    if ((options.cache == "ring") != (options.window != 0))
      throw CLI::ValidationError("--window", "goes with --cache ring, which forgets tokens");
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return bad_input;
  }
  if (!options.prompt.empty()) options.prompt_tokens = static_cast<Index>(options.prompt.size());
  try {
    const nlohmann::json report = run(options);
    if (options.json)
      std::printf("%s\n", report.dump(2).c_str());
    else
      print(report);
  } catch (const ga::Error& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return bad_input;
  }
}
