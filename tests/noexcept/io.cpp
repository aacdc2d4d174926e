// SPDX-License-Identifier: MIT
// Without exceptions a valid file opens, and the error of a malformed one reaches the failure
// handler.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "gated_attention/model/qwen3_next_config.hpp"

namespace {

/// Eight bytes of header length, then the header: a file without data.
std::string file_of(const std::string& header) {
  return std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header;
}

gated_attention::Safetensors open(const std::string& file) {
  return gated_attention::Safetensors::view(std::as_bytes(std::span<const char>(file)),
                                            "some.file");
}

}  // namespace

int main() {
  gated_attention::set_failure_handler([](const char* message) {
    std::fprintf(stderr, "%s\n", message);
    std::_Exit(std::strstr(message, "some.file: the header: is not JSON") != nullptr ? 0 : 1);
  });
  const std::string valid = file_of(R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})");
  if (!open(valid).contains("t")) return 1;
  const std::string malformed = file_of(R"({"t":)");
  static_cast<void>(open(malformed));
  std::fprintf(stderr, "the failed call returned\n");
  return 1;
}
