// SPDX-License-Identifier: MIT
// The program every consumer builds. main returns explicitly: two_units.cpp links it twice under
// other names.
#include <cstdio>

#include "gated_attention/core/memory.hpp"
#include "gated_attention/core/parallel.hpp"
#include "gated_attention/core/version.hpp"
#include "gated_attention/math/packet.hpp"

int main() {
  const gated_attention::detail::AlignedBytes memory(64);
  gated_attention::Index sum = 0;
  gated_attention::kernel::parallel_for(
      1, 4, [&](gated_attention::Index item, gated_attention::Index) { sum += item; });
  std::printf("gated_attention %d.%d, %s, %d lanes\n", GATED_ATTENTION_VERSION_MAJOR,
              GATED_ATTENTION_VERSION_MINOR, gated_attention::instruction_set,
              static_cast<int>(gated_attention::lanes<float>));
  return memory.size() == 64 && sum == 6 ? 0 : 1;
}
