// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gated_attention/cache/key_value_blocks.hpp"
#include "gated_attention/core/error.hpp"
#include "gated_attention/core/shape.hpp"
#include "gated_attention/core/storage.hpp"
#include "gated_attention/policy/mask.hpp"

namespace gated_attention {
inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// What every cache of keys and values does, whichever way it keeps them. A cache belongs to one layer of one shape and has a
/// number of sequences; a sequence's size is how many tokens it has been given, and so the position of its next. One call at
/// a time may extend a cache; the layer and its weights may be shared. Movable, not copyable.
///
/// The second half is for GatedAttention::extend: check_mask refuses a layer that sees keys which the cache forgets, and
/// check_room what does not fit, both before anything changes; reserve makes ready for so many tokens more and cannot fail
/// behind them; room says how many of them one pass may append behind the first `past`; blocks is where their keys go;
/// commit counts them.
template <class T>
concept KeyValueCache = requires(T& cache, const T& constant, Index n, const char* function) {
  typename T::Scalar;
  typename T::Stored;
  { constant.shape() } -> std::same_as<const Shape&>;
  { constant.key_signature() } -> std::same_as<std::uint64_t>;
  { constant.sequences() } -> std::same_as<Index>;
  { constant.size(n) } -> std::same_as<Index>;      // keys of a sequence
  { constant.capacity(n) } -> std::same_as<Index>;  // the most keys that it can have
  { constant.bytes() } -> std::same_as<Index>;
  cache.truncate(n, n);  // drops what follows the first n keys; exact, or refused
  cache.reset(n);
  cache.reset();

  constant.check_mask(function, detail::MaskRule{});
  constant.check_room(function, std::span<const Index>{});
  cache.reserve(n, n);
  { constant.room(n, n) } -> std::same_as<Index>;
  { constant.blocks(n) } -> std::same_as<KeyValueSequence>;
  cache.commit(n, n);
};

namespace kernel {

/// What all caches have in common: the extents, and the sizes of the sequences.
template <class Layer, class StoredType>
class CacheBase {
 public:
  using Scalar = typename Layer::Scalar;
  using Stored = StoredType;

  static constexpr bool keys_can_be_stored_so = detail::stores_keys<Stored, Scalar>;
  static_assert(keys_can_be_stored_so,
                "gated_attention: a cache stores the layer's scalar, float, bfloat16, half or std::int8_t");

  const Shape& shape() const { return shape_; }
  /// Of the layers whose keys and values it can hold.
  std::uint64_t key_signature() const { return key_signature_; }
  Index sequences() const { return static_cast<Index>(sizes_.size()); }
  /// Tokens that the sequence has been given: the position of its next one.
  Index size(Index sequence = 0) const { return sizes_[place("size", sequence)]; }
  /// Bytes of keys and values that it holds memory for.
  Index bytes() const { return memory_.size(); }
  /// For GatedAttention::extend, see KeyValueCache: a cache that keeps all keys serves every mask.
  void check_mask(const char*, const detail::MaskRule&) const {}

 protected:
  CacheBase(const char* name, const Layer& layer, Index sequences)
      : name_(name),
        shape_(layer.shape()),
        key_signature_(layer.key_signature()),
        layout_{shape_.head_dim, shape_.value_width()} {
    if (sequences < 1)
      detail::raise<ShapeError>(name, ": limits.sequences is ", sequences, ", the least is 1");
    if (shape_.is_cross())
      detail::raise<ShapeError>(name, ": the layer's keys come from a context of context_dim ", shape_.context_dim,
                                ", which prepare_context prepares; a cache takes 0");
    sizes_.resize(static_cast<std::size_t>(sequences));
  }

  Index head_bytes() const { return layout_.bytes(); }

  /// Memory for so many blocks of all kv heads.
  void allocate(Index blocks) {
    memory_ = detail::AlignedBytes(detail::checked_product(
        blocks, detail::checked_product(shape_.kv_heads, layout_.bytes(), name_), name_));
  }

  std::size_t place(const char* what, Index sequence) const {
    if (sequence < 0 || sequence >= sequences())
      detail::raise<ShapeError>(name_, "::", what, ": sequence ", sequence, ", the cache has ", sequences());
    return static_cast<std::size_t>(sequence);
  }

  void check_truncate(Index sequence, Index keys) const {
    const Index held = sizes_[place("truncate", sequence)];
    if (keys < 0 || keys > held)
      detail::raise<ShapeError>(name_, "::truncate: to ", keys, " keys, sequence ", sequence, " has ", held);
  }

  Index& size_of(Index sequence) { return sizes_[static_cast<std::size_t>(sequence)]; }

  const char* name_;
  Shape shape_;
  std::uint64_t key_signature_;
  KeyValueLayout<Scalar, Stored> layout_;
  std::vector<Index> sizes_;
  detail::AlignedBytes memory_;
};

}  // namespace kernel
}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
