// SPDX-License-Identifier: MIT
// Without exceptions an error reaches the failure handler with its message; then the program would
// abort.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "gated_attention/core/index.hpp"

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error "this test is compiled with -fno-exceptions -fno-rtti"
#endif

int main() {
  gated_attention::set_failure_handler([](const char* message) {
    std::fprintf(stderr, "%s\n", message);
    const bool complete =
        std::strstr(message, "extent: 9223372036854775807 x 2 is more") != nullptr;
    std::_Exit(complete ? 0 : 1);
  });
  const gated_attention::Index huge = std::numeric_limits<gated_attention::Index>::max();
  static_cast<void>(gated_attention::detail::checked_product(huge, 2, "extent"));
  std::fprintf(stderr, "the failed call returned\n");
  return 1;
}
