// SPDX-License-Identifier: MIT
// Offsets beyond 32 bits: ggml-org/llama.cpp#24912; vllm-project/vllm#1514, #50427; flash-attention#772.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "bug/copying_layer.hpp"

namespace gated_attention::test {
namespace {

// Layer 31, position 1048575 of a memory of [32 layers][1048576 positions][1024 channels].
constexpr Index positions = 1048576, channels = 1024, row = 31 * positions + 1048575,
                wanted = 34359737344;
static_assert(row * channels == wanted);
static_assert(static_cast<std::int32_t>(static_cast<std::uint32_t>(wanted)) == -1024,
              "what 32 bits make of it");

// A view's offset is Index arithmetic from its arguments on: the blocks of keys and values as well.
static_assert(KeyValueLayout<float>{.key_dim = Index{1} << 30, .value_dim = Index{1} << 30}
                  .bytes() >= Index{1} << 39);
static_assert(KeyBounds{.keys = Index{1} << 40, .shift = Index{1} << 39, .before = 3, .after = 0}
                  .begin(7) == (Index{1} << 39) + 4);

TEST(OffsetsBug, AreCountedInSixtyFourBits) {
  const std::size_t bytes = static_cast<std::size_t>(32 * positions * channels) * sizeof(float);
  void* const reserved =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) GTEST_SKIP() << "no address space of " << bytes << " bytes";
  float* const base = static_cast<float*>(reserved);
  const MatrixView<float> matrix(base, 32 * positions, channels);
  EXPECT_EQ(matrix.row(row) - base, wanted);
  EXPECT_EQ(&matrix(row, 1023) - base, wanted + 1023);
  const HeadsView<float> heads(base, 32 * positions, 8, 128);
  EXPECT_EQ(heads.row(row, 7) - base, wanted + 7 * 128);
  const KeyValueSequence blocks{.base = static_cast<std::byte*>(reserved),
                                .block_stride = 2 * 64 * 128 * 4,
                                .head_stride = Index{1} << 30};
  EXPECT_EQ(blocks.block<float>(7, 1 << 20) - base, 7 * (Index{1} << 28) + (Index{1} << 34));
  munmap(reserved, bytes);
}

/// A layer of a window of one token, whose y is its v, [T, 4·128].
struct OwnValues {
  static constexpr Index heads = 4, dim = 128, width = heads * dim;
  CopyingLayer<float, SlidingWindow> copying{
      {.query_heads = heads, .kv_heads = heads, .head_dim = dim}, SlidingWindow{.window = 1}};

  /// Appends three tokens behind what the cache believes that it has; each must be its own value.
  template <class Cache>
  void expect_last_tokens(Cache& cache) const {
    const Index model = copying.model_dim(), tokens = 3;
    std::vector<float> x(static_cast<std::size_t>(tokens * model)), y(x.size(), nan<float>);
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < width; ++c)
        x[static_cast<std::size_t>(t * model + 2 * width + c)] = static_cast<float>(1000 * t + c);
    Workspace workspace(copying.layer(), {.tokens = tokens, .threads = 1});
    copying.layer().extend({.x = {x.data(), tokens, model}},
                           pack(copying.layer(), copying.parameters()), cache, workspace,
                           {y.data(), tokens, model});
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < width; ++c)
        ASSERT_EQ(y[static_cast<std::size_t>(t * model + c)], static_cast<float>(1000 * t + c));
  }
};

// 4 heads of 128 at 2^20 positions lie beyond 4 GiB; what is never written costs no memory.
TEST(OffsetsBug, OfCachesOf1048576TokensAreCountedInSixtyFourBits) {
  const OwnValues given;
  const auto& layer = given.copying.layer();
  const Index block = (128 + 128) * 64 * 4 + 64, before = positions - 3;
  try {
    ContiguousCache contiguous(layer, {.tokens = positions});
    EXPECT_EQ(contiguous.bytes(), 4 * 16384 * block);
    EXPECT_GT(contiguous.bytes(), Index{1} << 32);
    const KeyValueSequence blocks = contiguous.blocks(0);
    EXPECT_EQ(reinterpret_cast<std::byte*>(blocks.block<float>(3, 16383)) - blocks.base,
              4 * 16384 * block - block);
    contiguous.commit(0, before);
    given.expect_last_tokens(contiguous);
    EXPECT_EQ(contiguous.size(), positions);
  } catch (const std::bad_alloc&) {
    GTEST_SKIP() << "no address space";
  }
  PagedCache paged(layer, {.pages = 16384});
  paged.reserve(0, before);
  paged.commit(0, before);
  const KeyValueSequence pages = paged.blocks(0);
  EXPECT_EQ(reinterpret_cast<std::byte*>(pages.block<float>(3, 16383)) - pages.base,
            4 * pages.table[16383] * block + 3 * block);
  EXPECT_EQ(*std::max_element(pages.table, pages.table + 16384), 16383);
  given.expect_last_tokens(paged);
}

TEST(OffsetsBug, OfARingThatWasGivenMoreThan32BitsOfTokens) {
  const OwnValues given;
  RingCache ring(given.copying.layer(), {.tokens = 300});
  for (const Index tokens : {Index{1} << 31, Index{1} << 32, Index{1} << 40}) {
    ring.reset();
    ring.commit(0, tokens + 5);
    given.expect_last_tokens(ring);
    EXPECT_EQ(ring.size(), tokens + 8);
    EXPECT_EQ(ring.blocks(0).block<float>(1, (tokens >> 6) + 7) - ring.blocks(0).block<float>(1, 0),
              ((tokens >> 6) + 7) % 6 * ((128 + 128) * 64 + 16));
  }
}

TEST(OffsetsBug, ProductsBeyondAnIndexAreRefused) {
  EXPECT_EQ(detail::checked_product(Index{1} << 31, Index{1} << 31, "offset"), Index{1} << 62);
  EXPECT_THROW(detail::checked_product(Index{1} << 32, Index{1} << 31, "offset"), ShapeError);
  EXPECT_THROW(compose<float>({.model_dim = Index{1} << 32,
                               .query_heads = 1,
                               .kv_heads = 1,
                               .head_dim = Index{1} << 32}),
               ShapeError);
}

}  // namespace
}  // namespace gated_attention::test
