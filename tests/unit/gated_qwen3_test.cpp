// SPDX-License-Identifier: MIT
#include "gated_attention/model/gated_qwen3.hpp"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "gated_attention/model/gated_qwen3_decoder.hpp"
#include "unit/checkpoint_support.hpp"

namespace gated_attention {
namespace {

using test::checkpoints;
using test::expect_parts;
using test::message_of;
using test::Patch;
using test::Shapes;

// Query and gate rows a kv head; E = 12, Hq = 4, Hkv = 2, D = 8, M = 10, a vocabulary of 7.
constexpr Index no_gate = 16, headwise = 18, elementwise = 32;

Shapes attention_shapes(Index group_rows, bool has_bias, const std::string& layer = "0") {
  const std::string prefix = "model.layers." + layer + ".self_attn.";
  Shapes shapes = {{prefix + "q_proj.weight", {2 * group_rows, 12}},
                   {prefix + "k_proj.weight", {16, 12}},
                   {prefix + "v_proj.weight", {16, 12}},
                   {prefix + "o_proj.weight", {12, 32}},
                   {prefix + "q_norm.weight", {8}},
                   {prefix + "k_norm.weight", {8}}};
  if (has_bias)
    shapes.merge(Shapes{{prefix + "q_proj.bias", {2 * group_rows}},
                        {prefix + "k_proj.bias", {16}},
                        {prefix + "v_proj.bias", {16}},
                        {prefix + "o_proj.bias", {12}}});
  return shapes;
}

Shapes decoder_shapes() {
  Shapes shapes = {{"model.embed_tokens.weight", {7, 12}}, {"model.norm.weight", {12}}};
  for (const char* layer : {"0", "1"}) {
    shapes.merge(attention_shapes(headwise, false, layer));
    const std::string prefix = std::string("model.layers.") + layer + ".";
    shapes.merge(Shapes{{prefix + "input_layernorm.weight", {12}},
                        {prefix + "post_attention_layernorm.weight", {12}},
                        {prefix + "mlp.gate_proj.weight", {10, 12}},
                        {prefix + "mlp.up_proj.weight", {10, 12}},
                        {prefix + "mlp.down_proj.weight", {12, 10}}});
  }
  return shapes;
}

const char* const small_config = R"({
  "model_type": "qwen3", "hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "num_hidden_layers": 2, "intermediate_size": 10, "vocab_size": 7, "tie_word_embeddings": true,
  "rms_norm_eps": 1e-5, "rope_theta": 5000, "qkv_bias": false, "max_position_embeddings": 64,
  "headwise_attn_output_gate": true, "elementwise_attn_output_gate": false
})";

class SmallGatedQwen3 : public test::CheckpointDirectory {
 public:
  explicit SmallGatedQwen3(const Shapes& shapes = decoder_shapes())
      : CheckpointDirectory(small_config, shapes) {}
  GatedQwen3Numbers numbers(const std::string& change) {
    patch(change);
    return read_gated_qwen3_numbers(Checkpoint(path()));
  }
  std::string layer_error(Index layer = 0) const {
    return message_of<FileError>([&] { read_gated_qwen3(Checkpoint(path()), layer); });
  }
  std::string decoder_error() const {
    return message_of<FileError>([&] { read_gated_qwen3_decoder(Checkpoint(path())); });
  }
};

const char* const no_gate_config =
    R"({"headwise_attn_output_gate": false, "elementwise_attn_output_gate": false})";
const char* const elementwise_config =
    R"({"headwise_attn_output_gate": false, "elementwise_attn_output_gate": true})";

// ---------------------------------------------------------------------------------- numbers

TEST(GatedQwen3, ThePublishedNumbersAreRead) {
  struct Expected {
    const char* name;
    GatedQwen3Gate gate;
    bool has_bias;
    Index query_rows;
  };
  for (const Expected& expected :
       {Expected{"official_baseline", GatedQwen3Gate::None, false, 96},
        Expected{"official_headwise", GatedQwen3Gate::Headwise, false, 102},
        Expected{"official_elementwise", GatedQwen3Gate::Elementwise, true, 192}}) {
    SCOPED_TRACE(expected.name);
    const Checkpoint checkpoint(checkpoints / expected.name);
    EXPECT_TRUE(is_gated_qwen3(checkpoint));
    const GatedQwen3Description layer = read_gated_qwen3(checkpoint, 2);
    EXPECT_EQ(layer.numbers.model_dim, 48);
    EXPECT_EQ(layer.numbers.query_heads, 6);
    EXPECT_EQ(layer.numbers.kv_heads, 2);
    EXPECT_EQ(layer.numbers.head_dim, 16);
    EXPECT_EQ(layer.numbers.eps, 1e-6);
    EXPECT_EQ(layer.numbers.theta, 1e6);
    EXPECT_FALSE(layer.numbers.yarn);
    EXPECT_EQ(layer.numbers.gate, expected.gate);
    EXPECT_EQ(layer.numbers.has_bias, expected.has_bias);
    EXPECT_EQ(layer.q_proj.name, "model.layers.2.self_attn.q_proj.weight");
    EXPECT_EQ(layer.q_proj.shape[0], expected.query_rows);
    EXPECT_EQ(layer.biases.has_value(), expected.has_bias);
    const GatedQwen3Decoder decoder = read_gated_qwen3_decoder(checkpoint);
    EXPECT_EQ(decoder.blocks.size(), 3U);
    EXPECT_EQ(decoder.vocabulary, 64);
    EXPECT_EQ(decoder.mlp_dim, 32);
    EXPECT_TRUE(decoder.is_tied);
  }
  EXPECT_FALSE(is_gated_qwen3(Checkpoint(checkpoints / "qwen3_next")));
}

TEST(GatedQwen3, AbsentKeysAreTheConfigurationClasss) {
  SmallGatedQwen3 small;
  const GatedQwen3Numbers absent = small.numbers(
      R"({"head_dim": null, "rms_norm_eps": null, "rope_theta": null, "use_qk_norm": null,
          "headwise_attn_output_gate": null, "attention_bias": true, "sliding_window": 4})");
  EXPECT_EQ(absent.head_dim, 128);
  EXPECT_EQ(absent.eps, 1e-6);
  EXPECT_EQ(absent.theta, 10000);
  EXPECT_EQ(absent.gate, GatedQwen3Gate::None);
  EXPECT_FALSE(absent.has_bias);
  EXPECT_FALSE(absent.yarn);
}

TEST(GatedQwen3, OneOfTheGatesKeysIsEnoughAndHeadwiseWins) {
  SmallGatedQwen3 small;
  EXPECT_EQ(small.numbers(R"({"elementwise_attn_output_gate": true})").gate,
            GatedQwen3Gate::Headwise);
  EXPECT_EQ(small.numbers(R"({"elementwise_attn_output_gate": null})").gate,
            GatedQwen3Gate::Headwise);
  EXPECT_EQ(small.numbers(elementwise_config).gate, GatedQwen3Gate::Elementwise);
  EXPECT_EQ(small.numbers(no_gate_config).gate, GatedQwen3Gate::None);
  small.patch(R"({"headwise_attn_output_gate": null, "elementwise_attn_output_gate": null})");
  EXPECT_FALSE(is_gated_qwen3(Checkpoint(small.path())));
  expect_parts(small.layer_error(), {small.path().string(), "neither headwise_attn_output_gate"});
}

TEST(GatedQwen3, YarnIsOfTheLengthThatThePublishedCodeTakes) {
  SmallGatedQwen3 small;
  const Yarn yarn = *small.numbers(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})").yarn;
  EXPECT_EQ(yarn.factor, 4);
  EXPECT_EQ(yarn.original_max_position, 64);
  EXPECT_EQ(yarn.beta_fast, 32);
  EXPECT_EQ(yarn.beta_slow, 1);
  EXPECT_TRUE(yarn.truncate);
  EXPECT_FALSE(yarn.attention_factor);
  const Yarn given = *small
                          .numbers(R"({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 8,
      "beta_slow": 2, "attention_factor": 1.5, "original_max_position_embeddings": 64}})")
                          .yarn;
  EXPECT_EQ(given.beta_fast, 8);
  EXPECT_EQ(given.beta_slow, 2);
  EXPECT_EQ(*given.attention_factor, 1.5);
  EXPECT_FALSE(small.numbers(R"({"rope_scaling": {"rope_type": "default"}})").yarn);
}

TEST(GatedQwen3, WhatTheLayerCannotHonourIsRefusedByName) {
  SmallGatedQwen3 small;
  for (const Patch& patch : std::vector<Patch>{
           {R"({"model_type": "foo"})", {"model_type 'foo' is not known; known: qwen3"}},
           {R"({"use_qk_norm": false})", {"use_qk_norm false", "not supported"}},
           {R"({"use_qk_norm": 1})", {"'use_qk_norm' is 1", "true or false"}},
           {R"({"use_sliding_window": true})", {"use_sliding_window true", "not supported"}},
           {R"({"partial_rotary_factor": 0.5})", {"partial_rotary_factor 0.5"}},
           {R"({"rope_parameters": {}})", {"rope_parameters", "at the top level"}},
           {R"({"quantization_config": {}})", {"quantization_config"}},
           {R"({"qkv_bias": null})", {"'qkv_bias' is missing", "true or false"}},
           {R"({"qkv_bias": 0})", {"'qkv_bias' is 0", "true or false"}},
           {R"({"headwise_attn_output_gate": 1})", {"'headwise_attn_output_gate' is 1"}},
           {R"({"elementwise_attn_output_gate": "no"})", {"'elementwise_attn_output_gate'"}},
           {R"({"rope_theta": 0})", {"'rope_theta' is 0", "greater than 0"}},
           {R"({"rope_scaling": 3})", {"'rope_scaling' is 3", "object"}},
           {R"({"rope_scaling": {"factor": 4}})", {"rope_scaling", "'rope_type' is missing"}},
           {R"({"rope_scaling": {"type": "linear", "factor": 2}})",
            {"'linear'", "supported: default, yarn"}},
           {R"({"rope_scaling": {"type": "yarn"}})", {"'factor' is missing"}},
           {R"({"rope_scaling": {"type": "yarn", "factor": 0.5}})",
            {"factor is 0.5", "at least 1"}},
           {R"({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}})", {"'mscale'"}},
           {R"({"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": 0}})",
            {"'attention_factor' is 0"}},
           {R"({"rope_scaling": {"type": "yarn", "factor": 2}, "max_position_embeddings": null})",
            {"'max_position_embeddings' is missing"}},
           {R"({"rope_scaling": {"type": "yarn", "factor": 2,
                                 "original_max_position_embeddings": 32}})",
            {"original_max_position_embeddings is 32", "64"}},
           {R"({"num_key_value_heads": 3})", {"num_attention_heads 4", "num_key_value_heads 3"}},
           {R"({"hidden_size": 12.5})", {"'hidden_size' is 12.5", "positive integer"}},
           {R"({"head_dim": 7})", {"head_dim is 7", "even"}},
           {R"({"rms_norm_eps": 0})", {"'rms_norm_eps' is 0"}},
           {R"({"layer_types": ["sliding_attention", "full_attention"]})",
            {"layer 0 is sliding_attention", "supported: full_attention"}},
           {R"({"hidden_size": 14})", {"q_proj.weight", "[36, 12]", "[36, 14]"}},
           {no_gate_config, {"q_proj.weight", "[36, 12]", "[32, 12]", "0 gate rows"}},
           {elementwise_config, {"q_proj.weight", "[36, 12]", "[64, 12]", "8 gate rows"}},
           {R"({"qkv_bias": true})", {"no tensor 'model.layers.0.self_attn.q_proj.bias'"}},
       }) {
    SCOPED_TRACE(patch.patch);
    small.patch(patch.patch);
    const std::string message = small.layer_error();
    expect_parts(message, patch.message);
    expect_parts(message, {small.path().string()});
  }
}

TEST(GatedQwen3, ATensorOfAnotherShapeOrOneTooManyIsRefused) {
  SmallGatedQwen3 small;
  const auto error_with = [&](const std::string& leaf, const std::vector<Index>& shape) {
    Shapes shapes = decoder_shapes();
    shapes["model.layers.0.self_attn." + leaf] = shape;
    small.set_tensors(shapes);
    return small.layer_error();
  };
  expect_parts(error_with("k_proj.weight", {32, 12}), {"k_proj.weight", "[32, 12]", "[16, 12]"});
  expect_parts(error_with("v_proj.weight", {16, 13}), {"v_proj.weight", "[16, 13]", "[16, 12]"});
  expect_parts(error_with("o_proj.weight", {32, 12}), {"o_proj.weight", "[32, 12]", "[12, 32]"});
  expect_parts(error_with("q_norm.weight", {32}), {"q_norm.weight", "[32]", "[8]"});
  expect_parts(error_with("k_norm.weight", {7}), {"k_norm.weight", "[7]", "[8]"});
  for (const char* extra : {"q_proj.bias", "g_proj.weight", "sinks"})
    expect_parts(error_with(extra, {4}), {"layer 0", std::string("'") + extra + "'"});
  expect_parts(small.layer_error(2), {"layer 2 does not exist"});
}

// -------------------------------------------------------------------------------- parameters

/// Element i of a stored tensor of `columns` columns is i: the number at the start of each row.
void expect_rows(const MatrixView<float>& rows, Index columns, const std::vector<Index>& stored) {
  ASSERT_EQ(rows.rows() * rows.columns() / columns, static_cast<Index>(stored.size()));
  for (std::size_t i = 0; i < stored.size(); ++i)
    EXPECT_EQ(rows.data()[static_cast<Index>(i) * columns], static_cast<float>(stored[i] * columns))
        << "row " << i;
}

std::vector<Index> counted(Index first, Index count) {
  std::vector<Index> numbers;
  for (Index i = 0; i < count; ++i) numbers.push_back(first + i);
  return numbers;
}

std::vector<Index> joined(std::vector<Index> a, const std::vector<Index>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Opens a layer of that type from numbered tensors: the two kv heads' blocks are [16 query rows of
/// two heads | their gate rows].
template <class Layer>
void expect_parted_rows(const std::string& config, Index group_rows) {
  constexpr bool has_bias = std::is_same_v<Layer, GatedQwen3Baseline<float, Bias>> ||
                            std::is_same_v<Layer, GatedQwen3Headwise<float, Bias>> ||
                            std::is_same_v<Layer, GatedQwen3Elementwise<float, Bias>>;
  SmallGatedQwen3 small;
  nlohmann::json change = nlohmann::json::parse(config);
  change["qkv_bias"] = has_bias;
  small.patch(change.dump());
  small.number_tensors(attention_shapes(group_rows, has_bias));
  const Checkpoint checkpoint(small.path());
  OpenedLayer<Layer> opened = open_gated_qwen3<Layer>(checkpoint, 0);
  Parameters<float>& parameters = opened.parameters;
  const Index gate_rows = group_rows - no_gate;
  const std::vector<Index> query = joined(counted(0, 16), counted(group_rows, 16));
  const std::vector<Index> gate =
      joined(counted(16, gate_rows), counted(group_rows + 16, gate_rows));
  expect_rows(parameters["q_proj.weight"], 12, query);
  expect_rows(parameters["k_proj.weight"], 12, counted(0, 16));
  expect_rows(parameters["v_proj.weight"], 12, counted(0, 16));
  expect_rows(parameters["o_proj.weight"], 32, counted(0, 12));
  expect_rows(parameters["query_norm.weight"], 1, counted(0, 8));
  expect_rows(parameters["key_norm.weight"], 1, counted(0, 8));
  if (gate_rows > 0) expect_rows(parameters["sdpa_gate.weight"], 12, gate);
  EXPECT_EQ(visit_gated_qwen3<float>(read_gated_qwen3_numbers(checkpoint),
                                     [](const auto& layer) { return describe(layer); }),
            describe(opened.layer));
  if (!has_bias) return;
  expect_rows(parameters["q_proj.bias"], 1, query);
  expect_rows(parameters["k_proj.bias"], 1, counted(0, 16));
  expect_rows(parameters["v_proj.bias"], 1, counted(0, 16));
  expect_rows(parameters["o_proj.bias"], 1, counted(0, 12));
  if (gate_rows > 0) expect_rows(parameters["sdpa_gate.bias"], 1, gate);
}

TEST(GatedQwen3, QueryAndGateRowsArePartedForEachKvHead) {
  expect_parted_rows<GatedQwen3Baseline<float>>(no_gate_config, no_gate);
  expect_parted_rows<GatedQwen3Headwise<float>>("{}", headwise);
  expect_parted_rows<GatedQwen3Elementwise<float>>(elementwise_config, elementwise);
}

TEST(GatedQwen3, BiasesArePartedTheSame) {
  expect_parted_rows<GatedQwen3Baseline<float, Bias>>(no_gate_config, no_gate);
  expect_parted_rows<GatedQwen3Headwise<float, Bias>>("{}", headwise);
  expect_parted_rows<GatedQwen3Elementwise<float, Bias>>(elementwise_config, elementwise);
}

TEST(GatedQwen3, ALayerTypeWithAnotherGateOrBiasesIsRefused) {
  const SmallGatedQwen3 small;
  const Checkpoint checkpoint(small.path());
  const auto error = [&]<class Layer>(std::type_identity<Layer>) {
    return message_of<FileError>([&] { open_gated_qwen3<Layer>(checkpoint, 0); });
  };
  expect_parts(error(std::type_identity<GatedQwen3Baseline<float>>()),
               {small.path().string(), "4 gate rows", "asked for has 0"});
  expect_parts(error(std::type_identity<GatedQwen3Elementwise<float>>()),
               {"4 gate rows", "asked for has 32"});
  expect_parts(error(std::type_identity<GatedQwen3Headwise<float, Bias>>()),
               {"4 gate rows and no biases", "asked for has 4 and biases"});
}

// ----------------------------------------------------------------------------------- decoder

TEST(GatedQwen3Decoder, HeadIsTheEmbeddingsWhereItIsTied) {
  SmallGatedQwen3 small;
  const Checkpoint checkpoint(small.path());
  const GatedQwen3Decoder tied = read_gated_qwen3_decoder(checkpoint);
  EXPECT_TRUE(tied.is_tied);
  EXPECT_EQ(tied.lm_head.name, "model.embed_tokens.weight");
  EXPECT_EQ(tied.blocks.size(), 2U);
  EXPECT_EQ(tied.blocks[1].down_proj.name, "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(tied.blocks[1].input_norm.name, "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(tied.numbers.eps, 1e-5);

  small.patch(R"({"tie_word_embeddings": null})");
  expect_parts(small.decoder_error(), {"'lm_head.weight'"});
  Shapes shapes = decoder_shapes();
  shapes["lm_head.weight"] = {7, 12};
  small.set_tensors(shapes);
  EXPECT_EQ(read_gated_qwen3_decoder(Checkpoint(small.path())).lm_head.name, "lm_head.weight");
  small.patch("{}");
  EXPECT_EQ(read_gated_qwen3_decoder(Checkpoint(small.path())).lm_head.name,
            "model.embed_tokens.weight");
}

TEST(GatedQwen3Decoder, WhatItCannotHonourIsRefusedByName) {
  SmallGatedQwen3 small;
  for (const Patch& patch : std::vector<Patch>{
           {R"({"hidden_act": "gelu"})", {"hidden_act 'gelu'", "supported: silu"}},
           {R"({"use_qk_norm": false})", {"use_qk_norm false"}},
           {R"({"vocab_size": null})", {"'vocab_size' is missing"}},
           {R"({"intermediate_size": -3})", {"'intermediate_size' is -3"}},
           {R"({"tie_word_embeddings": 1})", {"'tie_word_embeddings' is 1"}},
           {R"({"vocab_size": 8})", {"embed_tokens.weight", "[7, 12]", "[8, 12]", "vocab_size"}},
           {R"({"intermediate_size": 11})",
            {"layers.0.mlp.gate_proj.weight", "[10, 12]", "[11, 12]"}},
           {R"({"num_hidden_layers": 3})", {"'model.layers.2.input_layernorm.weight'"}},
           {R"({"num_hidden_layers": 1})", {"'model.layers.1.", "a decoder of 1"}},
       }) {
    SCOPED_TRACE(patch.patch);
    small.patch(patch.patch);
    const std::string message = small.decoder_error();
    expect_parts(message, patch.message);
    expect_parts(message, {small.path().string()});
  }
}

TEST(GatedQwen3Decoder, ATensorOfAnotherShapeOrOneTooManyIsRefused) {
  SmallGatedQwen3 small;
  const auto error_with = [&](const std::string& name, const std::vector<Index>& shape) {
    Shapes shapes = decoder_shapes();
    shapes[name] = shape;
    small.set_tensors(shapes);
    return small.decoder_error();
  };
  for (const auto& [name, shape] : decoder_shapes()) {
    if (name.find("self_attn") != name.npos) continue;
    std::vector<Index> wrong = shape;
    ++wrong.front();
    expect_parts(error_with(name, wrong), {name});
    expect_parts(error_with(name + "_scale", shape), {name + "_scale"});
  }
  expect_parts(error_with("model.layers.0.mlp.gate_proj.bias", {10}), {"mlp.gate_proj.bias"});
  expect_parts(error_with("model.layers.5.self_attn.q_proj.weight", {10}), {"layers.5.self_attn"});
}

}  // namespace
}  // namespace gated_attention
