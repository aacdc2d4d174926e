// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gated_attention/core/view.hpp"

namespace gated_attention {

/// One learned tensor of a layer: a row-major [rows, columns] matrix; a vector is one row.
struct TensorInfo {
  std::string name;
  Index rows = 0;
  Index columns = 0;

  Index count() const { return rows * columns; }
};

/// What a layer learns, owned: its tensors one after the other, each row-major [out, in] as PyTorch stores it.
///
/// Names: q_proj.weight [Hq·D, E], k_proj.weight [Hkv·D, E], v_proj.weight [Hkv·Dv, E] (E: of the context, in cross-attention), o_proj.weight [E, Hq·Dv] and their
/// .bias where the layer has one; for a stage its position and kind: sdpa_gate.weight, sdpa_gate.bias, sdpa_gate.logits
/// (a Constant gate), sdpa_gate.down (a LowRank one), query_norm.weight, sink.logits, …; a second one of a kind at a position is sdpa_gate_2.weight.
///
/// A new object is zero, norm weights are neutral (1, or 0 for OffsetFromOne). A value: copying copies the numbers.
template <class Scalar>
class Parameters {
 public:
  /// Zero parameters for a layer.
  template <class Layer>
    requires std::is_same_v<typename Layer::Scalar, Scalar>
  explicit Parameters(const Layer& layer) : tensors_(layer.tensors()) {
    Index total = 0;
    for (const TensorInfo& tensor : tensors_) {
      offsets_.push_back(total);
      total += tensor.count();
    }
    values_.resize(static_cast<std::size_t>(total));
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (layer.starts_at_one(tensors_[i].name))
        for (Index j = 0; j < tensors_[i].count(); ++j) values_[static_cast<std::size_t>(offsets_[i] + j)] = Scalar(1);
  }

  /// The tensors in the order in which they lie in values().
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  /// All numbers of all tensors.
  std::span<Scalar> values() { return values_; }
  std::span<const Scalar> values() const { return values_; }

  /// The tensor of that name; a ShapeError lists the names there are.
  MatrixView<Scalar> operator[](std::string_view name) {
    const std::size_t i = find(name);
    return {values_.data() + offsets_[i], tensors_[i].rows, tensors_[i].columns};
  }
  MatrixView<const Scalar> operator[](std::string_view name) const {
    const std::size_t i = find(name);
    return {values_.data() + offsets_[i], tensors_[i].rows, tensors_[i].columns};
  }

  /// The numbers of tensor i.
  const Scalar* data(Index i) const { return values_.data() + offsets_[static_cast<std::size_t>(i)]; }

 private:
  std::size_t find(std::string_view name) const {
    std::string known;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].name == name) return i;
      known += (i == 0 ? "" : ", ") + tensors_[i].name;
    }
    detail::raise<ShapeError>("Parameters: there is no tensor '", name, "'; this layer has ", known);
  }

  std::vector<TensorInfo> tensors_;
  std::vector<Index> offsets_;
  std::vector<Scalar> values_;
};

template <class Layer>
explicit Parameters(const Layer&) -> Parameters<typename Layer::Scalar>;

}  // namespace gated_attention
