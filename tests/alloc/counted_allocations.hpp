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

// The C library's own allocator, counted: whatever allocates, C or C++, comes through here. A sanitizer brings its own,
// which calls a hook.
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
extern "C" int __sanitizer_install_malloc_and_free_hooks(  // NOLINT: the sanitizers' name
    void (*allocated)(const volatile void*, std::size_t), void (*freed)(const volatile void*));

namespace {
const int hooks = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { ++allocations; }, [](const volatile void*) {});
}  // namespace
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
