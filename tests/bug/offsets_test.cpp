// SPDX-License-Identifier: MIT
// Offsets beyond 32 bits: ggml-org/llama.cpp#24912; vllm-project/vllm#1514, #50427; flash-attention#772.
#include <sys/mman.h>

#include <cstdint>

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
