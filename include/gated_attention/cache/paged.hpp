// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>

#include "gated_attention/cache/cache.hpp"

namespace gated_attention {

/// Keys of a page.
inline constexpr Index page_keys = 64;

/// How large a PagedCache is to be.
struct PageLimits {
  Index pages = 0;  ///< of page_keys keys and values of all heads, for all sequences together
  Index sequences = 1;
};

inline namespace GATED_ATTENTION_INSTRUCTION_SET {

/// Keys and values in pages of 64 tokens out of one pool, with a page table per sequence: sequences of any length share the
/// memory. `fork` gives a sequence the prefix of another without a copy; a page that two sequences share is copied when one
/// of them writes to it. Freed pages return to the pool.
///
///     PagedCache cache(attention, {.pages = 1024, .sequences = 32});
template <class Layer, class StoredType = typename Layer::Scalar>
class PagedCache : public kernel::CacheBase<Layer, StoredType> {
  using Base = kernel::CacheBase<Layer, StoredType>;
  static_assert(page_keys == block_keys);

 public:
  PagedCache(const Layer& layer, const PageLimits& limits, StoredAs<StoredType> = {})
      : Base("PagedCache", layer, limits.sequences), pages_(limits.pages) {
    if (limits.pages < 0)
      detail::raise<ShapeError>("PagedCache: limits.pages is ", limits.pages, ", the least is 0");
    this->allocate(limits.pages);
    users_.resize(static_cast<std::size_t>(limits.pages));
    table_.resize(static_cast<std::size_t>(detail::checked_product(limits.pages, limits.sequences, "PagedCache")));
    free_.resize(static_cast<std::size_t>(limits.pages));
    for (Index page = 0; page < limits.pages; ++page)
      free_[static_cast<std::size_t>(page)] = limits.pages - 1 - page;
  }

  Index pages() const { return pages_; }
  Index free_pages() const { return static_cast<Index>(free_.size()); }

  /// The most tokens that the sequence could hold now: with its own pages and all free ones.
  Index capacity(Index sequence = 0) const {
    const Index copy = shares_last_page(sequence) ? 1 : 0, size = this->size(sequence);
    if (copy > free_pages()) return size;
    return (detail::divide_up(size, page_keys) + free_pages() - copy) * page_keys;
  }

  /// Drops what follows the first `keys` keys: as if no more had been given.
  void truncate(Index sequence, Index keys) {
    this->check_truncate(sequence, keys);
    for (Index i = detail::divide_up(keys, page_keys); i < detail::divide_up(this->size(sequence), page_keys); ++i)
      release(page(sequence, i));
    this->size_of(sequence) = keys;
  }
  void reset(Index sequence) { truncate(sequence, 0); }
  void reset() {
    for (Index s = 0; s < this->sequences(); ++s) reset(s);
  }

  /// Makes sequence `to`, whatever it held, the first `keys` keys of sequence `from`, whose pages they share from here on.
  void fork(Index from, Index to, Index keys) {
    const Index held = this->sizes_[this->place("fork", from)];
    this->place("fork", to);
    if (keys < 0 || keys > held)
      detail::raise<ShapeError>("PagedCache::fork: of ", keys, " keys, sequence ", from, " has ", held);
    if (from == to) return truncate(to, keys);
    reset(to);
    for (Index i = 0; i < detail::divide_up(keys, page_keys); ++i) {
      page(to, i) = page(from, i);
      ++users_of(page(from, i));
    }
    this->size_of(to) = keys;
  }

  // For GatedAttention::extend, see KeyValueCache.
  void check_room(const char* function, std::span<const Index> lengths) const {
    Index needed = 0;
    for (Index s = 0; s < static_cast<Index>(lengths.size()); ++s) {
      const Index more = lengths[static_cast<std::size_t>(s)];
      if (more > detail::checked_product(pages_, page_keys, function) - this->size(s))
        detail::raise<ShapeError>(function, ": sequence ", s, " has ", this->size(s), " keys and would get ", more,
                                  " more, the PagedCache has ", pages_, " pages of ", page_keys);
      needed += pages_to_take(s, more, leaving_before(s, lengths));
    }
    if (needed > free_pages())
      detail::raise<ShapeError>(function, ": the new tokens need ", needed, " pages, of its ", pages_,
                                " the PagedCache has ", free_pages(), " free");
  }
  void reserve(Index sequence, Index tokens) {
    const Index size = this->size(sequence);
    if (tokens > 0 && shares_last_page(sequence)) {
      Index& last = page(sequence, size / page_keys);
      const Index own = take();
      const Index bytes = this->shape().kv_heads * this->head_bytes();
      std::memcpy(this->memory_.data() + own * bytes, this->memory_.data() + last * bytes,
                  static_cast<std::size_t>(bytes));
      release(last);
      last = own;
    }
    for (Index i = detail::divide_up(size, page_keys); i < detail::divide_up(size + tokens, page_keys); ++i)
      page(sequence, i) = take();
  }
  Index room(Index, Index past) const { return pages_ * page_keys - past; }
  KeyValueSequence blocks(Index sequence) const {
    return {.base = this->memory_.data(),
            .block_stride = this->shape().kv_heads * this->head_bytes(),
            .head_stride = this->head_bytes(),
            .table = table_.data() + sequence * pages_};
  }
  void commit(Index sequence, Index tokens) { this->size_of(sequence) += tokens; }

 private:
  Index& page(Index sequence, Index i) { return table_[static_cast<std::size_t>(sequence * pages_ + i)]; }
  Index page(Index sequence, Index i) const { return table_[static_cast<std::size_t>(sequence * pages_ + i)]; }
  Index& users_of(Index page) { return users_[static_cast<std::size_t>(page)]; }

  /// Whether the next token goes to a page that another sequence uses too, when so many of them have left it.
  bool shares_last_page(Index sequence, Index left = 0) const {
    const Index size = this->size(sequence);
    return size % page_keys != 0 &&
           users_[static_cast<std::size_t>(page(sequence, size / page_keys))] - left > 1;
  }

  /// The sequences before this one that share its last page and get tokens too: each leaves the page for a copy of its own,
  /// so that the last of its users needs none.
  Index leaving_before(Index sequence, std::span<const Index> lengths) const {
    if (!shares_last_page(sequence)) return 0;
    const Index last = page(sequence, this->size(sequence) / page_keys);
    Index leaving = 0;
    for (Index s = 0; s < sequence; ++s) {
      const Index size = this->size(s);
      if (lengths[static_cast<std::size_t>(s)] > 0 && size % page_keys != 0 && page(s, size / page_keys) == last)
        ++leaving;
    }
    return leaving;
  }

  Index pages_to_take(Index sequence, Index tokens, Index left) const {
    const Index size = this->size(sequence);
    return detail::divide_up(size + tokens, page_keys) - detail::divide_up(size, page_keys) +
           (tokens > 0 && shares_last_page(sequence, left) ? 1 : 0);
  }

  Index take() {
    const Index page = free_.back();
    free_.pop_back();
    users_of(page) = 1;
    return page;
  }
  void release(Index page) {
    if (--users_of(page) == 0) free_.push_back(page);  // within the capacity that it was made with
  }

  Index pages_;
  std::vector<Index> users_;  ///< of each page
  std::vector<Index> table_;  ///< [sequences, pages]
  std::vector<Index> free_;
};

template <class Layer>
PagedCache(const Layer&, const PageLimits&) -> PagedCache<Layer>;
template <class Layer, class Stored>
PagedCache(const Layer&, const PageLimits&, StoredAs<Stored>) -> PagedCache<Layer, Stored>;

}  // namespace GATED_ATTENTION_INSTRUCTION_SET
}  // namespace gated_attention
