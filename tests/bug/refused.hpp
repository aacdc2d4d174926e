// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gated_attention/core/error.hpp"

namespace gated_attention::test {

/// A call that must be refused, and what its message must hold.
struct Refused {
  const char* name;
  std::function<void()> call;
  std::vector<std::string> parts;
};

inline void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& refused : cases) {
    try {
      refused.call();
      ADD_FAILURE() << refused.name << ": accepted";
    } catch (const ShapeError& error) {
      for (const std::string& part : refused.parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << refused.name << ": '" << error.what() << "' lacks '" << part << "'";
    } catch (const std::exception& error) {
      ADD_FAILURE() << refused.name << ": not a ShapeError: " << error.what();
    }
  }
}

}  // namespace gated_attention::test
