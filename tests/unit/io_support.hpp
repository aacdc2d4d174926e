// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"

namespace gated_attention::test {

using Bytes = std::vector<std::byte>;

inline void append_text(Bytes& bytes, std::string_view text) {
  const auto* const first = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), first, first + text.size());
}

inline void append_little(Bytes& bytes, std::uint64_t number, int count) {
  for (int i = 0; i < count; ++i)
    bytes.push_back(static_cast<std::byte>((number >> (8 * i)) & 0xffU));
}

/// A safetensors file: the header's length, the header, then `data_size` bytes of data (0, 1, 2,
/// ...).
inline Bytes safetensors_bytes(std::string_view header, std::size_t data_size) {
  Bytes bytes;
  append_little(bytes, header.size(), 8);
  append_text(bytes, header);
  for (std::size_t i = 0; i < data_size; ++i) bytes.push_back(static_cast<std::byte>(i & 0xffU));
  return bytes;
}

/// A file of F32 tensors, all zero.
inline Bytes zeros_file(const std::map<std::string, std::vector<Index>>& tensors) {
  std::string header = "{";
  Index offset = 0;
  for (const auto& [name, shape] : tensors) {
    Index size = 4;
    std::string extents;
    for (const Index extent : shape) {
      size *= extent;
      extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":"F32","shape":[)" +
              extents + R"(],"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(offset + size) + "]}";
    offset += size;
  }
  Bytes bytes = safetensors_bytes(header + "}", 0);
  bytes.resize(bytes.size() + static_cast<std::size_t>(offset));
  return bytes;
}

/// A directory of the running test's own, removed with the object.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name =
        std::string("gated_attention_") + info->test_suite_name() + "_" + info->name();
    std::string text = (std::filesystem::temp_directory_path() / (name + "_XXXXXX")).string();
    path_ = ::mkdtemp(text.data());
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, std::span<const std::byte> bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void write(const std::string& name, std::string_view text) const {
    write(name, std::as_bytes(std::span<const char>(text)));
  }

 private:
  std::filesystem::path path_;
};

/// The message of the Exception that `call` raises: one line; a test failure if there is none.
template <class Exception, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    return text;
  }
  ADD_FAILURE() << "no error was raised";
  return {};
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), text.npos) << text << "\nlacks: " << part;
}

}  // namespace gated_attention::test
