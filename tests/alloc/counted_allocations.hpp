// SPDX-License-Identifier: MIT
#pragma once

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

// Counts the allocations of the program: for the one translation unit of a program.

namespace {
std::atomic<long> allocations{0};
}  // namespace

// The C library's own allocator, counted: whatever allocates, C or C++, comes through here. (A sanitizer brings its own,
// and counts below are then of operator new alone.)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define COUNTS_MALLOC 0
#else
#define COUNTS_MALLOC 1
#endif
#else
#define COUNTS_MALLOC 1
#endif

#if COUNTS_MALLOC
extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT: glibc's names
void* __libc_calloc(std::size_t count, std::size_t size);        // NOLINT
void* __libc_realloc(void* memory, std::size_t size);            // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT

void* malloc(std::size_t size) noexcept {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) noexcept {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) noexcept {
  ++allocations;
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) noexcept {
  ++allocations;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  ++allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) noexcept {
  ++allocations;
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#else
// Not inlined: g++ would take the two halves of one allocation for a mismatch.
#define APART __attribute__((noinline))
APART void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
APART void* operator new(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  const std::size_t step = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(step, (size + step) / step * step)) return memory;
  throw std::bad_alloc();
}
APART void operator delete(void* memory) noexcept {
  std::free(memory);
}
APART void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
APART void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
APART void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

namespace gated_attention::test {
namespace {

/// Allocations of a call.
template <class Function>
long allocations_of(const Function& function) {
  const long before = allocations;
  function();
  return allocations - before;
}

}  // namespace
}  // namespace gated_attention::test
