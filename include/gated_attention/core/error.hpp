// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "gated_attention/core/config.hpp"

namespace gated_attention {

/// What every error of the library is. The message names the function, the extent and both numbers.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Extents that do not fit together, or a number outside its range.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read, or that is not what it says it is.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Called with the message before the program ends, where exceptions are disabled.
using FailureHandler = void (*)(const char* message);

namespace detail {

inline void print_failure(const char* message) { std::fprintf(stderr, "%s\n", message); }

inline std::atomic<FailureHandler>& failure_handler() {
  static std::atomic<FailureHandler> handler{print_failure};
  return handler;
}

inline void append(std::string& text, std::string_view part) { text += part; }

template <class Number>
  requires std::is_arithmetic_v<Number>
void append(std::string& text, Number number) {
  text += std::to_string(number);
}

/// The parts one after the other, numbers in decimal.
template <class... Parts>
std::string message(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

/// Throws Exception with the parts as its message; without exceptions tells the handler and aborts.
template <class Exception, class... Parts>
[[noreturn]] void raise(const Parts&... parts) {
  const std::string text = message(parts...);
#if defined(__cpp_exceptions)
  throw Exception(text);
#else
  failure_handler().load()(text.c_str());
  std::abort();
#endif
}

}  // namespace detail

/// Sets what is told of an error where exceptions are disabled (default: one line on stderr; the program then
/// aborts). Returns the handler that was set before. Thread-safe.
inline FailureHandler set_failure_handler(FailureHandler handler) {
  return detail::failure_handler().exchange(handler);
}

}  // namespace gated_attention
