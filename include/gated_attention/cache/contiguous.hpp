// SPDX-License-Identifier: MIT
#pragma once

#include "gated_attention/cache/cache.hpp"

namespace gated_attention {

/// How large a ContiguousCache is to be.
struct CacheLimits {
  Index tokens = 0;     ///< that each sequence can hold
  Index sequences = 1;
};

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Keys and values of each sequence in one piece of memory of its own, for up to `tokens` tokens: the fastest, and the
/// simplest. The memory is what the limits say, rounded up to blocks of 64 keys; pages that are never written may cost
/// nothing.
///
///     ContiguousCache cache(attention, {.tokens = 4096});
///     ContiguousCache cache(attention, {.tokens = 4096, .sequences = 8}, stored_as<bfloat16>);
template <class Layer, class StoredType = typename Layer::Scalar>
class ContiguousCache : public kernel::CacheBase<Layer, StoredType> {
  using Base = kernel::CacheBase<Layer, StoredType>;

 public:
  ContiguousCache(const Layer& layer, const CacheLimits& limits, StoredAs<StoredType> = {})
      : Base("ContiguousCache", layer, limits.sequences), tokens_(limits.tokens) {
    if (limits.tokens < 0)
      detail::raise<ShapeError>("ContiguousCache: limits.tokens is ", limits.tokens, ", the least is 0");
    blocks_ = detail::divide_up(limits.tokens, block_keys);
    this->allocate(detail::checked_product(blocks_, limits.sequences, "ContiguousCache"));
  }

  /// The most tokens that a sequence can hold.
  Index capacity(Index sequence = 0) const {
    this->place("capacity", sequence);
    return tokens_;
  }

  /// Drops what follows the first `keys` keys: as if no more had been given.
  void truncate(Index sequence, Index keys) {
    this->check_truncate(sequence, keys);
    this->size_of(sequence) = keys;
  }
  void reset(Index sequence) { truncate(sequence, 0); }
  void reset() {
    for (Index s = 0; s < this->sequences(); ++s) reset(s);
  }

  // For GatedAttention::extend, see KeyValueCache.
  void check_room(const char* function, std::span<const Index> lengths) const {
    for (Index s = 0; s < static_cast<Index>(lengths.size()); ++s) {
      const Index more = lengths[static_cast<std::size_t>(s)];
      if (more > tokens_ - this->size(s))
        detail::raise<ShapeError>(function, ": sequence ", s, " has ", this->size(s), " keys and would get ", more,
                                  " more, the ContiguousCache holds ", tokens_);
    }
  }
  void reserve(Index, Index) {}
  Index room(Index, Index past) const { return tokens_ - past; }
  KeyValueSequence blocks(Index sequence) const {
    const Index head = blocks_ * this->head_bytes();
    return {.base = this->memory_.data() + sequence * this->shape().kv_heads * head,
            .block_stride = this->head_bytes(),
            .head_stride = head};
  }
  void commit(Index sequence, Index tokens) { this->size_of(sequence) += tokens; }

 private:
  Index tokens_;
  Index blocks_;  ///< of a sequence and head
};

template <class Layer>
ContiguousCache(const Layer&, const CacheLimits&) -> ContiguousCache<Layer>;
template <class Layer, class Stored>
ContiguousCache(const Layer&, const CacheLimits&, StoredAs<Stored>) -> ContiguousCache<Layer, Stored>;

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
