// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
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

/// Appends the fewest digits that read back as the number: 0.5, 1e-06, inf.
template <class Real>
void append_number(std::string& message, Real number) {
  char digits[32];
  message.append(digits, std::to_chars(digits, digits + sizeof(digits), number, std::chars_format::general).ptr);
}

/// One part of a message: a text, or a number in decimal.
class MessagePart {
 public:
  MessagePart(const char* text) : text_(text) {}              // NOLINT: a part is written as what it says
  MessagePart(std::string_view text) : text_(text) {}         // NOLINT
  MessagePart(const std::string& text) : text_(text) {}       // NOLINT
  template <class Number>
    requires std::is_arithmetic_v<Number>
  MessagePart(Number number)  // NOLINT
      : kind_(std::is_same_v<Number, float>      ? Kind::single
              : std::is_floating_point_v<Number> ? Kind::real
              : std::is_unsigned_v<Number>       ? Kind::natural
                                                 : Kind::integer) {
    if constexpr (std::is_floating_point_v<Number>)
      real_ = static_cast<double>(number);
    else if constexpr (std::is_unsigned_v<Number>)
      natural_ = number;
    else
      integer_ = number;
  }

  void append_to(std::string& message) const {
    switch (kind_) {
      case Kind::text:
        message += text_;
        break;
      case Kind::natural:
        message += std::to_string(natural_);
        break;
      case Kind::integer:
        message += std::to_string(integer_);
        break;
      case Kind::single:
        append_number(message, static_cast<float>(real_));
        break;
      case Kind::real:
        append_number(message, real_);
        break;
    }
  }

 private:
  enum class Kind { text, natural, integer, single, real };

  Kind kind_ = Kind::text;
  std::string_view text_;
  unsigned long long natural_ = 0;
  long long integer_ = 0;
  double real_ = 0;
};

/// The parts one after the other. Out of line, so that the many places that raise an error cost little to compile.
GATED_ATTENTION_COLD inline std::string join_parts(std::initializer_list<MessagePart> parts) {
  std::string text;
  for (const MessagePart& part : parts) part.append_to(text);
  return text;
}

template <class... Parts>
std::string message(const Parts&... parts) {
  return join_parts({MessagePart(parts)...});
}

template <class Exception>
[[noreturn]] GATED_ATTENTION_COLD inline void raise_parts(std::initializer_list<MessagePart> parts) {
  const std::string text = join_parts(parts);
#if defined(__cpp_exceptions)
  throw Exception(text);
#else
  failure_handler().load()(text.c_str());
  std::abort();
#endif
}

/// Throws Exception with the parts as its message; without exceptions tells the handler and aborts.
template <class Exception, class... Parts>
[[noreturn]] void raise(const Parts&... parts) {
  raise_parts<Exception>({MessagePart(parts)...});
}

}  // namespace detail

/// Sets what is told of an error where exceptions are disabled (default: one line on stderr; the program then
/// aborts). Returns the handler that was set before. Thread-safe.
inline FailureHandler set_failure_handler(FailureHandler handler) {
  return detail::failure_handler().exchange(handler);
}

}  // namespace gated_attention
