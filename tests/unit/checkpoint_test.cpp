// SPDX-License-Identifier: MIT
#include "gated_attention/io/checkpoint.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gated_attention/model/qwen3_next_config.hpp"
#include "unit/checkpoint_support.hpp"

namespace gated_attention {
namespace {

using test::checkpoints;
using test::expect_parts;
using test::message_of;
using test::Patch;
using test::Shapes;

/// E = 12, Hq = 4, Hkv = 2, D = 8: a layer whose widths are all different.
Shapes attention_shapes(const std::string& prefix) {
  return {{prefix + "q_proj.weight", {64, 12}}, {prefix + "k_proj.weight", {16, 12}},
          {prefix + "v_proj.weight", {16, 12}}, {prefix + "o_proj.weight", {12, 32}},
          {prefix + "q_norm.weight", {8}},      {prefix + "k_norm.weight", {8}}};
}

const char* const small_config = R"({
  "model_type": "qwen3_next", "hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention", "sliding_attention", "full_attention"],
  "rms_norm_eps": 1e-5, "attention_bias": false,
  "rope_parameters": {"rope_type": "default", "rope_theta": 5000, "partial_rotary_factor": 0.5}
})";

/// A qwen3_next that a test spoils.
class SmallCheckpoint : public test::CheckpointDirectory {
 public:
  explicit SmallCheckpoint(const Shapes& shapes = attention_shapes("model.layers.3.self_attn."))
      : CheckpointDirectory(small_config, shapes) {}
  std::string open_error() const {
    return message_of<FileError>([&] { Checkpoint checkpoint(path()); });
  }
  std::string read_error(Index layer = 3) const {
    return message_of<FileError>([&] { read_qwen3_next(Checkpoint(path()), layer); });
  }
};

// -------------------------------------------------------------------------------------------
// published checkpoints

TEST(Checkpoint, ThePublishedLayersNumbersAreRead) {
  for (const auto& [name, type] : {std::pair{"qwen3_next", ElementType::F32},
                                   std::pair{"qwen3_next_bf16", ElementType::BF16}}) {
    const Checkpoint checkpoint(checkpoints / name);
    EXPECT_EQ(checkpoint.model_type(), "qwen3_next");
    EXPECT_EQ(checkpoint.layers(), 4);
    EXPECT_EQ(checkpoint.softmax_layers(), (std::vector<Index>{3}));
    EXPECT_EQ(checkpoint.config()["vocab_size"], 160);
    const Qwen3NextDescription layer = read_qwen3_next(checkpoint, 3);
    EXPECT_EQ(layer.numbers.model_dim, 64);
    EXPECT_EQ(layer.numbers.query_heads, 4);
    EXPECT_EQ(layer.numbers.kv_heads, 2);
    EXPECT_EQ(layer.numbers.head_dim, 32);
    EXPECT_EQ(layer.numbers.eps, 1e-6);
    EXPECT_EQ(layer.numbers.theta, 1e7);
    EXPECT_EQ(layer.numbers.rotary_dim, 8);
    EXPECT_EQ(layer.q_proj.type, type);
    EXPECT_EQ(layer.q_proj.name, "model.layers.3.self_attn.q_proj.weight");
    EXPECT_EQ(layer.packing().rows(), 256);
  }
}

TEST(Checkpoint, WeightsAreThoseOfTheFile) {
  struct Element {
    Index row, column;
    double value;
  };
  const auto expect = [](const char* name, const std::vector<Element>& elements) {
    const Checkpoint checkpoint(checkpoints / name);
    const std::vector<double> values =
        read_values<double>(checkpoint.attention_tensor(3, "q_proj.weight"), {256, 64});
    for (const Element& element : elements)
      EXPECT_EQ(values[static_cast<std::size_t>(element.row * 64 + element.column)], element.value);
  };
  expect("qwen3_next_bf16", {{0, 0, -0x1.34p-1},
                             {0, 63, 0x1.44p-3},
                             {32, 5, -0x1.02p-7},
                             {64, 0, -0x1.18p-2},
                             {255, 63, 0x1.5p-1}});
  expect("qwen3_next", {{0, 0, -0x1.7dc89p-1},
                        {0, 63, 0x1.7673ecp-4},
                        {32, 5, 0x1.dd81ecp-3},
                        {64, 0, 0x1.2e1b42p-4},
                        {255, 63, -0x1.35b09cp-2}});
}

TEST(Checkpoint, QueryAndGateRowsAlternateHeadByHead) {
  const Checkpoint checkpoint(checkpoints / "qwen3_next_bf16");
  const Qwen3NextDescription layer = read_qwen3_next(checkpoint, 3);
  const std::vector<float> stored = read_values<float>(layer.q_proj, {256, 64});
  std::vector<float> query(128 * 64), gate(128 * 64);
  read_packed_query(layer.q_proj, layer.packing(), MatrixView<float>(query.data(), 128, 64),
                    MatrixView<float>(gate.data(), 128, 64));
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t i = 0; i < 32 * 64; ++i) {
      ASSERT_EQ(query[h * 32 * 64 + i], stored[(2 * h) * 32 * 64 + i]);
      ASSERT_EQ(gate[h * 32 * 64 + i], stored[(2 * h + 1) * 32 * 64 + i]);
    }
  PackedQuery wide = layer.packing();
  wide.gate_dim = 1;
  expect_parts(message_of<FileError>([&] {
                 read_packed_query(layer.q_proj, wide, MatrixView<float>(query.data(), 128, 64),
                                   MatrixView<float>(gate.data(), 4, 64));
               }),
               {"q_proj.weight", "[256, 64]", "[132, 64]", "PerQueryHead"});
}

TEST(Checkpoint, ExpectedOutputsAreFoundBesideTheConfig) {
  const Checkpoint checkpoint(checkpoints / "qwen3_next_bf16");
  const auto expected = ExpectedOutputs::beside(checkpoint);
  ASSERT_TRUE(expected.has_value());
  EXPECT_EQ(expected->layers(), (std::vector<Index>{3}));
  EXPECT_TRUE(expected->has(3));
  EXPECT_FALSE(expected->has(1));
  EXPECT_EQ(expected->input(3).type, ElementType::F32);
  EXPECT_EQ(read_values<double>(expected->output(3), {29, 64}).back(), 0x1.1615993b528ccp-1);
  expect_parts(message_of<FileError>([&] { expected->input(1); }), {"layers.1.self_attn.input"});
}

TEST(Checkpoint, ExpectedOutputsMayBeMissingOrLie) {
  const SmallCheckpoint small;
  EXPECT_FALSE(ExpectedOutputs::beside(Checkpoint(small.path())).has_value());
  small.directory().write("expected.safetensors",
                          test::zeros_file({{"layers.3.self_attn.input", {2, 12}},
                                            {"layers.3.self_attn.output", {3, 12}},
                                            {"layers.1.self_attn.input", {12}},
                                            {"layers.1.self_attn.output", {12}}}));
  const auto expected = ExpectedOutputs::beside(Checkpoint(small.path()));
  EXPECT_EQ(expected->layers(), (std::vector<Index>{1, 3}));
  expect_parts(message_of<FileError>([&] { expected->output(3); }),
               {"output", "[3, 12]", "[2, 12]"});
  expect_parts(message_of<FileError>([&] { expected->output(1); }),
               {"input", "[12]", "[tokens, model_dim]"});
}

// -------------------------------------------------------------------------------------------------------
// the names

TEST(Checkpoint, ALayersAttentionIsFoundWhateverItsPrefix) {
  for (const char* prefix :
       {"", "model.", "model.language_model.", "my_layers.9.", "layers.3.x.", "xlayers.3."}) {
    SCOPED_TRACE(prefix);
    Shapes shapes = attention_shapes(std::string(prefix) + "layers.3.self_attn.");
    shapes["model.layers.3.mlp.gate_proj.weight"] = {1};      // another module
    shapes["model.layers.13.self_attn.q_proj.weight"] = {1};  // other layers
    shapes["model.layers.33.self_attn.q_proj.weight"] = {1};
    shapes["model.layers.03.self_attn.q_proj.weight"] = {1};
    shapes["model.layers.3.self_attn2.q_proj.weight"] = {1};  // other modules
    shapes["model.sublayers.3.self_attn.q_proj.weight"] = {1};
    shapes["mtp.layers.3.self_attn.q_proj.weight"] = {
        1};  // the prediction head numbers its own layers
    const SmallCheckpoint small(shapes);
    Checkpoint opened(small.path());
    const Checkpoint checkpoint = std::move(opened);
    EXPECT_EQ(checkpoint.attention_tensor_names(3),
              (std::vector<std::string>{"k_norm.weight", "k_proj.weight", "o_proj.weight",
                                        "q_norm.weight", "q_proj.weight", "v_proj.weight"}));
    EXPECT_EQ(checkpoint.attention_tensor(3, "q_proj.weight").name,
              std::string(prefix) + "layers.3.self_attn.q_proj.weight");
    EXPECT_EQ(checkpoint.attention_tensor(3, "q_proj.weight", "mtp.").elements(), 1);
    EXPECT_EQ(read_qwen3_next(checkpoint, 3).numbers.rotary_dim, 4);
  }
}

TEST(Checkpoint, AnAmbiguousNameListsThePrefixes) {
  Shapes shapes = attention_shapes("model.L_module.layers.3.self_attn.");
  shapes.merge(attention_shapes("model.H_module.layers.3.self_attn."));
  const SmallCheckpoint small(shapes);
  const Checkpoint checkpoint(small.path());
  expect_parts(message_of<FileError>([&] { checkpoint.attention_tensor(3, "q_proj.weight"); }),
               {small.path().string(), "ambiguous", "model.H_module., model.L_module."});
  EXPECT_EQ(checkpoint.attention_tensor(3, "q_proj.weight", "H_module.").name,
            "model.H_module.layers.3.self_attn.q_proj.weight");
}

TEST(Checkpoint, AMissingNameSaysWhatWasLookedForAndWhatIsThere) {
  Shapes shapes = attention_shapes("model.layers.3.self_attn.");
  shapes.erase("model.layers.3.self_attn.v_proj.weight");
  const SmallCheckpoint small(shapes);
  const Checkpoint checkpoint(small.path());
  expect_parts(message_of<FileError>([&] { checkpoint.attention_tensor(3, "v_proj.weight"); }),
               {small.path().string(), "'model.layers.3.self_attn.v_proj.weight'",
                "k_norm.weight, k_proj.weight"});
  expect_parts(message_of<FileError>([&] { checkpoint.attention_tensor(2, "v_proj.weight"); }),
               {small.path().string(), "layers.2.self_attn"});
  expect_parts(small.read_error(), {"v_proj.weight"});
}

// ----------------------------------------------------------------------------------------------
// opening a directory

TEST(Checkpoint, ADirectoryThatIsNoneIsNamed) {
  const SmallCheckpoint small;
  const auto error = [](const std::filesystem::path& path) {
    return message_of<FileError>([&] { Checkpoint checkpoint(path); });
  };
  expect_parts(error(small.path() / "gone"), {(small.path() / "gone").string(), "does not exist"});
  expect_parts(error(small.path() / "config.json"), {"config.json", "is not a directory"});
  std::filesystem::remove(small.path() / "model.safetensors");
  expect_parts(small.open_error(), {"has neither model.safetensors"});
  std::filesystem::remove(small.path() / "config.json");
  expect_parts(small.open_error(), {"config.json", "cannot be opened", "No such file"});
  small.directory().write("config.json", "{\"a\": }");
  expect_parts(small.open_error(), {"config.json", "not JSON"});
  small.directory().write("config.json", "[1]");
  expect_parts(small.open_error(), {"config.json", "an object is expected"});
}

TEST(Checkpoint, AConfigThatIsNoModelsIsRefusedByKey) {
  SmallCheckpoint small;
  for (const Patch& patch : std::vector<Patch>{
           {R"({"model_type": null})", {"'model_type' is missing", "string"}},
           {R"({"model_type": 3})", {"'model_type' is 3", "string"}},
           {R"({"num_hidden_layers": null})",
            {"'num_hidden_layers' is missing", "positive integer"}},
           {R"({"num_hidden_layers": 3})", {"'layer_types' has 4", "'num_hidden_layers' is 3"}},
           {R"({"num_hidden_layers": 1000000000, "layer_types": null})",
            {"1000000000", "at most 1048576"}},
           {R"({"layer_types": "full_attention"})",
            {"'layer_types' is \"full_attention\"", "array of strings"}},
           {R"({"layer_types": [1, 2, 3, 4]})", {"'layer_types'", "array of strings"}},
       }) {
    SCOPED_TRACE(patch.patch);
    small.patch(patch.patch);
    const std::string message =
        message_of<FileError>([&] { Checkpoint(small.path()).softmax_layers(); });
    expect_parts(message, patch.message);
    expect_parts(message, {(small.path() / "config.json").string()});
  }
}

TEST(Checkpoint, LayerTypesFollowFromTheIntervalWhereTheyAreNotListed) {
  SmallCheckpoint small;
  const auto layers_of = [&](const std::string& patch) {
    small.patch(patch);
    return Checkpoint(small.path()).softmax_layers();
  };
  EXPECT_EQ(layers_of("{}"), (std::vector<Index>{1, 2, 3}));
  EXPECT_EQ(layers_of(R"({"layer_types": null, "num_hidden_layers": 9})"),
            (std::vector<Index>{3, 7}));
  EXPECT_EQ(layers_of(R"({"layer_types": null, "full_attention_interval": 2})"),
            (std::vector<Index>{1, 3}));
  EXPECT_EQ(layers_of(R"({"layer_types": null, "model_type": "qwen3"})"),
            (std::vector<Index>{0, 1, 2, 3}));
}

// ------------------------------------------------------------------------------------------- what
// qwen3_next honours

TEST(Qwen3NextConfig, ReadsOlderSpellingsAndDefaults) {
  SmallCheckpoint small;
  const auto numbers_of = [&](const std::string& patch) {
    small.patch(patch);
    return read_qwen3_next(Checkpoint(small.path()), 3).numbers;
  };
  EXPECT_EQ(numbers_of("{}").theta, 5000);
  EXPECT_EQ(numbers_of("{}").rotary_dim, 4);
  EXPECT_EQ(numbers_of("{}").eps, 1e-5);
  const Qwen3NextNumbers absent = numbers_of(R"({"rope_parameters": null})");
  EXPECT_EQ(absent.theta, 10000);
  EXPECT_EQ(absent.rotary_dim, 2);
  const Qwen3NextNumbers old = numbers_of(
      R"({"rope_parameters": null, "rope_scaling": null, "rope_theta": 10000000, "partial_rotary_factor": 0.75})");
  EXPECT_EQ(old.theta, 1e7);
  EXPECT_EQ(old.rotary_dim, 6);
  EXPECT_EQ(numbers_of(R"({"rope_theta": 7, "partial_rotary_factor": 1})").theta,
            5000);  // the inner one counts
  EXPECT_EQ(numbers_of(R"({"rope_parameters": {"rope_theta": null}, "rope_theta": 7})").theta, 7);
  EXPECT_EQ(numbers_of(R"({"rope_parameters": {"full_attention": {"rope_theta": 9}}})").theta, 9);
  EXPECT_EQ(numbers_of(R"({"attention_bias": null, "attn_output_gate": true})").head_dim, 8);
}

TEST(Qwen3NextConfig, WithoutHeadDimItIsAShareOfTheHiddenSize) {
  Shapes shapes;
  for (const auto& [name, shape] : attention_shapes("layers.3.self_attn.")) shapes[name] = shape;
  shapes["layers.3.self_attn.q_proj.weight"] = {64, 32};
  shapes["layers.3.self_attn.k_proj.weight"] = {16, 32};
  shapes["layers.3.self_attn.v_proj.weight"] = {16, 32};
  shapes["layers.3.self_attn.o_proj.weight"] = {32, 32};
  SmallCheckpoint small(shapes);
  small.patch(R"({"head_dim": null, "hidden_size": 32})");
  EXPECT_EQ(read_qwen3_next(Checkpoint(small.path()), 3).numbers.head_dim, 8);
  small.patch(R"({"head_dim": null, "hidden_size": 34})");
  expect_parts(small.read_error(), {"head_dim", "34", "4"});
}

TEST(Qwen3NextConfig, WhatTheLayerCannotHonourIsRefusedByName) {
  SmallCheckpoint small;
  for (
      const Patch& patch : std::vector<Patch>{
          {R"({"model_type": "foo"})", {"model_type 'foo' is not known; known: qwen3_next"}},
          {R"({"attention_bias": true})", {"attention_bias true", "not supported"}},
          {R"({"attention_bias": 1})", {"'attention_bias' is 1", "true or false"}},
          {R"({"attn_output_gate": false})", {"attn_output_gate false"}},
          {R"({"quantization_config": {"quant_method": "fp8"}})", {"quantization_config"}},
          {R"({"rope_parameters": {"rope_type": "yarn"}})",
           {"rope_parameters", "'yarn'", "supported: default"}},
          {R"({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 2}})",
           {"rope_scaling", "'linear'", "supported: default"}},
          {R"({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}})",
           {"full_attention", "'yarn'"}},
          {R"({"rope_parameters": {"rope_type": 3}})", {"'rope_type' is 3"}},
          {R"({"rope_parameters": 3})", {"'rope_parameters' is 3", "object"}},
          {R"({"rope_parameters": {"rope_theta": 0}})", {"'rope_theta' is 0", "greater than 0"}},
          {R"({"rope_parameters": {"rope_theta": "1e7"}})",
           {"'rope_theta' is \"1e7\"", "a number"}},
          {R"({"rope_parameters": {"partial_rotary_factor": 0.375}})",
           {"0.375", "3.0", "even integer"}},
          {R"({"rope_parameters": {"partial_rotary_factor": 0.3}})",
           {"0.3", "2.4", "even integer"}},
          {R"({"rope_parameters": {"partial_rotary_factor": 0.1}})",
           {"0.1", "0.8", "even integer"}},
          {R"({"rope_parameters": {"partial_rotary_factor": 1.25}})",
           {"1.25", "10.0", "from 2 to 8"}},
          {R"({"rope_parameters": {"partial_rotary_factor": 1e300}})", {"1e+300", "even integer"}},
          {R"({"num_key_value_heads": 3})", {"num_attention_heads 4", "num_key_value_heads 3"}},
          {R"({"num_key_value_heads": null})", {"'num_key_value_heads' is missing"}},
          {R"({"hidden_size": -12})", {"'hidden_size' is -12", "positive integer"}},
          {R"({"hidden_size": 12.5})", {"'hidden_size' is 12.5", "positive integer"}},
          {R"({"hidden_size": "12"})", {"'hidden_size' is \"12\"", "positive integer"}},
          {R"({"hidden_size": [12]})", {"'hidden_size' is an array", "positive integer"}},
          {R"({"hidden_size": 0})", {"'hidden_size' is 0", "positive integer"}},
          {R"({"hidden_size": 18446744073709551615})", {"18446744073709551615", "1073741824"}},
          {R"({"head_dim": 0})", {"'head_dim' is 0"}},
          {R"({"rms_norm_eps": null})", {"'rms_norm_eps' is missing", "a number"}},
          {R"({"rms_norm_eps": -1e-6})", {"'rms_norm_eps' is -1e-06", "greater than 0"}},
          {R"({"rms_norm_eps": true})", {"'rms_norm_eps' is true", "a number"}},
          {R"({"hidden_size": 14})", {"q_proj.weight", "[64, 12]", "[64, 14]"}},
          {R"({"num_attention_heads": 2})",
           {"q_proj.weight", "[64, 12]", "[32, 12]", "2 heads of 8"}},
          {R"({"num_key_value_heads": 4})",
           {"k_proj.weight", "[16, 12]", "[32, 12]", "4 kv heads of 8"}},
          {R"({"num_attention_heads": 1073741824, "num_key_value_heads": 1, "head_dim": 1073741824})",
           {"q_proj.weight", "[2305843009213693952, 12]"}},
      }) {
    SCOPED_TRACE(patch.patch);
    small.patch(patch.patch);
    const std::string message = small.read_error();
    expect_parts(message, patch.message);
    expect_parts(message, {small.path().string()});
  }
}

TEST(Qwen3NextConfig, OnlyALayerOfFullAttentionIsRead) {
  SmallCheckpoint small;
  expect_parts(small.read_error(0),
               {"layer 0 is linear_attention; softmax-attention layers: 1, 2, 3"});
  expect_parts(small.read_error(2), {"layer 2 is sliding_attention", "supported: full_attention"});
  expect_parts(small.read_error(4), {"layer 4 does not exist", "4 layers, 0 to 3"});
  expect_parts(small.read_error(-1), {"layer -1 does not exist"});
  small.patch(R"({"layer_types": ["mamba", "mamba", "mamba", "mamba"]})");
  expect_parts(small.read_error(3), {"layer 3 is mamba; softmax-attention layers: none"});
}

TEST(Qwen3NextConfig, WithoutANumberTheFirstSoftmaxLayerIsRead) {
  EXPECT_EQ(read_qwen3_next(Checkpoint(checkpoints / "qwen3_next")).layer, 3);
  SmallCheckpoint small;
  const auto error = [&](const char* patch) {
    small.patch(patch);
    return message_of<FileError>([&] { read_qwen3_next(Checkpoint(small.path())); });
  };
  expect_parts(error(R"({"layer_types": ["a", "b", "c", "d"]})"),
               {"has no softmax-attention layer"});
  // An unknown model is told as such, whatever else its configuration lacks.
  expect_parts(error(R"({"model_type": "gpt2", "layer_types": null, "num_hidden_layers": null})"),
               {"model_type 'gpt2' is not known; known: qwen3_next"});
}

TEST(Qwen3NextConfig, ATensorOfAnotherShapeOrTypeIsRefused) {
  const std::string prefix = "model.layers.3.self_attn.";
  SmallCheckpoint small;
  const auto error_with = [&](const std::string& name, const std::vector<Index>& shape) {
    Shapes shapes = attention_shapes(prefix);
    shapes[prefix + name] = shape;
    small.set_tensors(shapes);
    return small.read_error();
  };
  expect_parts(error_with("q_proj.weight", {32, 12}),
               {"q_proj.weight", "[32, 12]", "[64, 12]", "8 query and 8 gate"});
  expect_parts(error_with("v_proj.weight", {32, 12}), {"v_proj.weight", "[32, 12]", "[16, 12]"});
  expect_parts(error_with("o_proj.weight", {32, 12}), {"o_proj.weight", "[32, 12]", "[12, 32]"});
  expect_parts(error_with("q_norm.weight", {32}), {"q_norm.weight", "[32]", "[8]"});
  expect_parts(error_with("k_norm.weight", {1, 8}), {"k_norm.weight", "[1, 8]", "[8]"});
  for (const char* extra : {"q_proj.bias", "g_proj.weight", "sinks", "q_proj.weight_scale_inv"})
    expect_parts(error_with(extra, {4}), {"layer 3", std::string("'") + extra + "'"});

  std::string header;
  Index offset = 0;
  for (const auto& [name, shape] : attention_shapes(prefix)) {
    const bool is_odd = name.ends_with("q_proj.weight");
    const Index size = (is_odd ? 1 : 4) * shape[0] * (shape.size() == 2 ? shape[1] : 1);
    header += (header.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":")" +
              (is_odd ? "F8_E4M3" : "F32") + R"(","shape":[)" + std::to_string(shape[0]) +
              (shape.size() == 2 ? "," + std::to_string(shape[1]) : "") + R"(],"data_offsets":[)" +
              std::to_string(offset) + "," + std::to_string(offset + size) + "]}";
    offset += size;
  }
  small.directory().write("model.safetensors",
                          test::safetensors_bytes(header + "}", static_cast<std::size_t>(offset)));
  expect_parts(small.read_error(), {"q_proj.weight", "F8_E4M3", "F64, F32, F16, BF16"});
}

}  // namespace
}  // namespace gated_attention
