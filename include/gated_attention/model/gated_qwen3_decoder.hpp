// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/io/checkpoint.hpp"
#include "gated_attention/io/json.hpp"
#include "gated_attention/io/safetensors.hpp"
#include "gated_attention/model/gated_qwen3_config.hpp"
#include "gated_attention/model/tensors.hpp"

namespace gated_attention {

/// What stands around the attention of one of the paper's own models, with exactly the shapes that
/// follow from its numbers. The tensors look into the checkpoint, which must stay open.
///
///   h = embed_tokens[token]                                    embed_tokens: [vocabulary, E]
///   h += attention(norm(h)·input_norm)                         norms: [E]
///   h += down_proj (silu(gate_proj n) ⊙ up_proj n)             gate_proj, up_proj: [M, E]
///   with n = norm(h)·post_attention_norm                       down_proj: [E, M]
///   logits = lm_head (norm(h)·norm)                            lm_head: [vocabulary, E]
struct GatedQwen3Decoder {
  struct Block {
    TensorView input_norm, post_attention_norm, gate_proj, up_proj, down_proj;
  };

  GatedQwen3Numbers numbers;  ///< of the attention; eps is that of every norm
  Index vocabulary = 0;       ///< vocab_size
  Index mlp_dim = 0;          ///< M, intermediate_size
  bool is_tied = false;       ///< tie_word_embeddings; absent: false. lm_head is embed_tokens
  TensorView embed_tokens, norm, lm_head;
  std::vector<Block> blocks;
};

namespace detail {

/// Reads tensors by name, and then says whether there were others.
class DecoderTensors {
 public:
  explicit DecoderTensors(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  TensorView read(const std::string& name, std::initializer_list<Index> shape,
                  std::string_view meaning) {
    known_.insert(name);
    return expect_weights(checkpoint_.tensors().tensor(name), shape, meaning);
  }

  void ignore(const std::string& name) { known_.insert(name); }

  /// A FileError for a tensor that was neither read nor belongs to a layer's attention.
  void refuse_others(const std::string& prefix, Index layers) const {
    for (const std::string_view name : checkpoint_.tensors().names()) {
      if (known_.contains(std::string(name))) continue;
      const auto attention = parse_layer_tensor(name, "self_attn");
      if (attention && attention->prefix == prefix && attention->layer < layers) continue;
      raise<FileError>("checkpoint ", checkpoint_.directory().string(), ": has a tensor ",
                       in_quotes(name), ", which a decoder of ", layers,
                       " gated qwen3 layers does not have");
    }
  }

 private:
  const Checkpoint& checkpoint_;
  std::set<std::string> known_;
};

/// What stands before "layers.0.self_attn." in the names of layer 0.
inline std::string decoder_prefix(const Checkpoint& checkpoint) {
  constexpr std::string_view behind = "layers.0.self_attn.q_proj.weight";
  const std::string_view name = checkpoint.attention_tensor(0, "q_proj.weight").name;
  return std::string(name.substr(0, name.size() - behind.size()));
}

inline GatedQwen3Decoder::Block read_gated_qwen3_block(DecoderTensors& tensors,
                                                       const std::string& prefix, Index model_dim,
                                                       Index mlp_dim) {
  constexpr const char *wide = "intermediate_size", *narrow = "hidden_size";
  GatedQwen3Decoder::Block block;
  block.input_norm = tensors.read(prefix + "input_layernorm.weight", {model_dim}, narrow);
  block.post_attention_norm =
      tensors.read(prefix + "post_attention_layernorm.weight", {model_dim}, narrow);
  block.gate_proj = tensors.read(prefix + "mlp.gate_proj.weight", {mlp_dim, model_dim}, wide);
  block.up_proj = tensors.read(prefix + "mlp.up_proj.weight", {mlp_dim, model_dim}, wide);
  block.down_proj = tensors.read(prefix + "mlp.down_proj.weight", {model_dim, mlp_dim}, wide);
  return block;
}

}  // namespace detail

/// The decoder of a checkpoint of the paper's own models, every number and shape checked. A
/// FileError names what does not fit: what the attention's numbers refuse, another activation than
/// silu, a tensor of another shape, one too many or one too few.
inline GatedQwen3Decoder read_gated_qwen3_decoder(const Checkpoint& checkpoint) {
  GatedQwen3Decoder found;
  found.numbers = read_gated_qwen3_numbers(checkpoint);
  const JsonObject& config = checkpoint.numbers();
  if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu")
    detail::raise<FileError>(config.place(), ": hidden_act ", detail::in_quotes(act),
                             " is not supported; supported: silu");
  found.vocabulary = config.extent("vocab_size");
  found.mlp_dim = config.extent("intermediate_size");
  found.is_tied = config.flag_or("tie_word_embeddings", false);

  const Index layers = checkpoint.layers(), model_dim = found.numbers.model_dim;
  const std::string prefix = detail::decoder_prefix(checkpoint);
  detail::DecoderTensors tensors(checkpoint);
  found.embed_tokens =
      tensors.read(prefix + "embed_tokens.weight", {found.vocabulary, model_dim}, "vocab_size");
  for (Index layer = 0; layer < layers; ++layer)
    found.blocks.push_back(detail::read_gated_qwen3_block(
        tensors, prefix + "layers." + std::to_string(layer) + ".", model_dim, found.mlp_dim));
  found.norm = tensors.read(prefix + "norm.weight", {model_dim}, "hidden_size");
  // A tied model's own lm_head, which some files hold too, is not read by the published code either.
  if (found.is_tied) tensors.ignore("lm_head.weight");
  found.lm_head = found.is_tied
                      ? found.embed_tokens
                      : tensors.read("lm_head.weight", {found.vocabulary, model_dim}, "vocab_size");
  tensors.refuse_others(prefix, layers);
  return found;
}

}  // namespace gated_attention
