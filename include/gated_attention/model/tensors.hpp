// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/io/checkpoint.hpp"
#include "gated_attention/io/safetensors.hpp"

namespace gated_attention::detail {

/// The tensor, if it has exactly this shape and a type that can be read; else a FileError.
inline TensorView expect_weights(const TensorView& tensor, std::initializer_list<Index> shape,
                                 std::string_view meaning = {}) {
  expect_shape(tensor, shape, meaning);
  expect_floating(tensor);
  return tensor;
}

/// A FileError unless every tensor of the layer's attention is known: one that the layer would not
/// use means that it is another layer.
inline void refuse_other_attention_tensors(const Checkpoint& checkpoint, Index layer,
                                           std::initializer_list<std::string_view> known,
                                           std::string_view model) {
  for (const std::string& leaf : checkpoint.attention_tensor_names(layer))
    if (std::find(known.begin(), known.end(), leaf) == known.end())
      raise<FileError>("checkpoint ", checkpoint.directory().string(), ": layer ", layer,
                       " has an attention tensor ", in_quotes(leaf), ", which a ", model,
                       " layer does not have");
}

}  // namespace gated_attention::detail
