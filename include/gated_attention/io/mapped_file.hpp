// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"

#if defined(__unix__) || defined(__APPLE__)
#define GATED_ATTENTION_HAS_MMAP 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#define GATED_ATTENTION_HAS_MMAP 0
#include <cstdio>
#include <vector>
#endif

namespace gated_attention {

/// The bytes of one regular file, read-only: mapped into memory where the system can (POSIX), read
/// into memory elsewhere. Movable, not copyable; the bytes stay where they are when the object
/// moves.
///
/// A mapped file must not be changed or shortened by others while it is open: a page that has gone
/// ends the program with SIGBUS, as with every mapping. Safe to share between threads.
class MappedFile {
 public:
  MappedFile() = default;

  /// Opens `path`, or raises a FileError that names it and the reason.
  explicit MappedFile(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    MappedFile taken(std::move(other));
    swap(taken);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void swap(MappedFile& other) noexcept {
    std::swap(bytes_, other.bytes_);
#if !GATED_ATTENTION_HAS_MMAP
    std::swap(memory_, other.memory_);
#endif
  }

  std::span<const std::byte> bytes_;
#if !GATED_ATTENTION_HAS_MMAP
  std::vector<std::byte> memory_;
#endif
};

namespace detail {

[[noreturn]] inline void raise_cannot_open(const std::filesystem::path& path, int reason) {
  raise<FileError>(path.string(), ": cannot be opened: ", std::generic_category().message(reason));
}

}  // namespace detail

#if GATED_ATTENTION_HAS_MMAP

namespace detail {

/// Closes a file descriptor at the end of its scope, whichever way that is left.
struct Descriptor {
  int number;
  explicit Descriptor(int descriptor) : number(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace detail

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for one; it has no effect on a regular
  // file.
  const detail::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) detail::raise_cannot_open(path, errno);
  struct stat status = {};
  if (::fstat(file.number, &status) != 0) detail::raise_cannot_open(path, errno);
  if (!S_ISREG(status.st_mode))
    detail::raise<FileError>(path.string(), ": cannot be opened: it is not a regular file");
  if (status.st_size > std::numeric_limits<Index>::max())
    detail::raise<FileError>(
        path.string(), ": has ", status.st_size,
        " bytes, more than can be mapped: ", std::numeric_limits<Index>::max());
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // an empty mapping is an error to mmap
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (memory == MAP_FAILED) detail::raise_cannot_open(path, errno);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

inline MappedFile::~MappedFile() {
  // munmap takes a pointer to non-const although it does not write.
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

#else

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    detail::raise<FileError>(path.string(), ": cannot be opened: ",
                             error ? error.message() : std::string("it is not a regular file"));
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) detail::raise<FileError>(path.string(), ": cannot be opened: ", error.message());
  std::FILE* const file = std::fopen(path.string().c_str(), "rb");
  if (file == nullptr) detail::raise_cannot_open(path, errno);
  memory_.resize(static_cast<std::size_t>(size));
  const std::size_t count = std::fread(memory_.data(), 1, memory_.size(), file);
  std::fclose(file);
  if (count != memory_.size())
    detail::raise<FileError>(path.string(), ": ", count, " bytes could be read of ",
                             memory_.size());
  bytes_ = memory_;
}

inline MappedFile::~MappedFile() = default;

#endif

}  // namespace gated_attention
