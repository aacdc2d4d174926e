// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

#include "gated_attention/core/index.hpp"

namespace gated_attention::test {

/// Numbers between two pages that may not be touched, directly behind the first or directly before the second.
template <class Scalar>
class GuardedNumbers {
 public:
  enum class Near { first_page, last_page };

  GuardedNumbers(const std::vector<Scalar>& numbers, Near near) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)),
                      bytes = numbers.size() * sizeof(Scalar);
    const std::size_t inside = (bytes + page - 1) / page * page;
    size_ = inside + 2 * page;
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory_, page, PROT_NONE);
    mprotect(memory_ + page + inside, page, PROT_NONE);
    data_ =
        reinterpret_cast<Scalar*>(memory_ + page + (near == Near::first_page ? 0 : inside - bytes));
    std::copy(numbers.begin(), numbers.end(), data_);
  }
  ~GuardedNumbers() { munmap(memory_, size_); }
  GuardedNumbers(const GuardedNumbers&) = delete;
  GuardedNumbers& operator=(const GuardedNumbers&) = delete;

  Scalar* data() const { return data_; }

 private:
  std::byte* memory_;
  std::size_t size_;
  Scalar* data_;
};

}  // namespace gated_attention::test
