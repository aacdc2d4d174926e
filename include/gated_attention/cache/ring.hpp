// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "gated_attention/cache/cache.hpp"
#include "gated_attention/policy/mask.hpp"

namespace gated_attention {

/// How large a RingCache is to be.
struct RingLimits {
  Index tokens = 0;  ///< the last keys of each sequence that it holds, at least the window; 0: the window
  Index sequences = 1;
};

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// The last keys and values of each sequence, in blocks that are used round and round, for layers whose mask is
/// SlidingWindow or StreamingWindow; the kept keys of the latter lie before the ring and stay. Any number of tokens may be
/// given: the memory does not grow. Room beyond the window makes appending many at a time faster and lets `truncate` reach
/// further back.
///
///     RingCache cache(attention, {});
template <class Layer, class StoredType = typename Layer::Scalar>
class RingCache : public kernel::CacheBase<Layer, StoredType> {
  using Base = kernel::CacheBase<Layer, StoredType>;

 public:
  static constexpr bool the_layer_has_a_window =
      Layer::template has_stage<SlidingWindow> || Layer::template has_stage<StreamingWindow>;
  static_assert(the_layer_has_a_window,
                "gated_attention: a RingCache forgets keys: it needs a layer with SlidingWindow or StreamingWindow; use "
                "ContiguousCache or PagedCache");

  RingCache(const Layer& layer, const RingLimits& limits, StoredAs<StoredType> = {})
      : Base("RingCache", layer, limits.sequences),
        window_(layer.mask().before + 1),
        kept_(layer.mask().kept),
        tokens_(limits.tokens == 0 ? window_ : limits.tokens),
        kept_blocks_(detail::divide_up(kept_, block_keys)),
        ring_blocks_((tokens_ + block_keys - 2) / block_keys + 1),
        first_block_(static_cast<std::size_t>(limits.sequences), kept_blocks_) {
    if (tokens_ < window_)
      detail::raise<ShapeError>("RingCache: limits.tokens is ", limits.tokens, ", the window of the layer is ", window_);
    this->allocate(detail::checked_product(kept_blocks_ + ring_blocks_, limits.sequences, "RingCache"));
  }

  /// The last keys that it holds of a sequence, beside the kept ones. More may be given.
  Index capacity(Index sequence = 0) const {
    this->place("capacity", sequence);
    return tokens_;
  }

  /// Drops what follows the first `keys` keys: as if no more had been given. A ShapeError where the ring has lost keys that
  /// the next token would see.
  void truncate(Index sequence, Index keys) {
    this->check_truncate(sequence, keys);
    Index& first = first_block_[static_cast<std::size_t>(sequence)];
    const Index behind_kept = kept_blocks_ * block_keys, held = first * block_keys;
    const Index needed = std::max(keys - window_ + 1, behind_kept);
    if (needed < std::min(keys, held))
      detail::raise<ShapeError>("RingCache::truncate: the token behind ", keys, " keys sees them from ", needed,
                                " on, sequence ", sequence, " holds them from ", held, " on");
    if (keys <= behind_kept) first = kept_blocks_;
    this->size_of(sequence) = keys;
  }
  void reset(Index sequence) { truncate(sequence, 0); }
  void reset() {
    for (Index s = 0; s < this->sequences(); ++s) reset(s);
  }

  // For GatedAttention::extend, see KeyValueCache.
  void check_mask(const char* function, const detail::MaskRule& mask) const {
    if (mask.before < 0)
      detail::raise<ShapeError>(function, ": the RingCache was made for a window of ", window_, " and ", kept_,
                                " kept keys, this layer sees all keys");
    if (mask.before >= window_ || mask.kept > kept_)
      detail::raise<ShapeError>(function, ": the RingCache was made for a window of ", window_, " and ", kept_,
                                " kept keys, this layer's are ", mask.before + 1, " and ", mask.kept);
  }
  void check_room(const char*, std::span<const Index>) const {}
  void reserve(Index, Index) {}
  /// So many that no block is written over which the first of them sees.
  Index room(Index, Index past) const {
    const Index first_seen = std::max(past - window_ + 1, Index{0}) / block_keys;
    return (std::max(first_seen, kept_blocks_) + ring_blocks_) * block_keys - past;
  }
  KeyValueSequence blocks(Index sequence) const {
    const Index head = (kept_blocks_ + ring_blocks_) * this->head_bytes();
    return {.base = this->memory_.data() + sequence * this->shape().kv_heads * head,
            .block_stride = this->head_bytes(),
            .head_stride = head,
            .modulus = ring_blocks_,
            .kept = kept_blocks_};
  }
  void commit(Index sequence, Index tokens) {
    const Index size = this->size_of(sequence) += tokens;
    Index& first = first_block_[static_cast<std::size_t>(sequence)];
    first = std::max(first, detail::divide_up(size, block_keys) - ring_blocks_);
  }

 private:
  Index window_, kept_, tokens_;
  Index kept_blocks_;
  Index ring_blocks_;  ///< enough for `tokens` keys wherever in a block they start
  std::vector<Index> first_block_;  ///< of each sequence: the first block behind the kept ones that it still holds
};

template <class Layer>
RingCache(const Layer&, const RingLimits&) -> RingCache<Layer>;
template <class Layer, class Stored>
RingCache(const Layer&, const RingLimits&, StoredAs<Stored>) -> RingCache<Layer, Stored>;

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
