// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"

namespace gated_attention {
namespace detail {

/// Text out of a file, fit for one line of an error message: control characters shown as '?', at
/// most 120 bytes.
inline std::string printable(std::string_view text) {
  constexpr std::size_t longest = 120;
  std::string line(text.substr(0, longest));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  if (text.size() > longest) line += "...";
  return line;
}

inline std::string in_quotes(std::string_view text) {
  return "'" + printable(text) + "'";
}

/// The value as JSON text, shortened: what an error shows of a value it did not expect.
inline std::string shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Builds a JSON document from the events of the parser and stops at the first mistake, with
/// `problem` set. Stricter than the grammar: a key stands once in its object (the grammar would let
/// the last one win in silence) and values are nested at most 64 deep. Nothing here throws.
class JsonBuilder {
 public:
  explicit JsonBuilder(nlohmann::json& root) : root_(root) {}

  std::string problem;

  bool null() { return place(nullptr) != nullptr; }
  bool boolean(bool value) { return place(value) != nullptr; }
  bool number_integer(std::int64_t value) { return place(value) != nullptr; }
  bool number_unsigned(std::uint64_t value) { return place(value) != nullptr; }
  bool number_float(double value, const std::string&) { return place(value) != nullptr; }
  bool string(std::string& value) { return place(std::move(value)) != nullptr; }
  bool binary(nlohmann::json::binary_t&) { return false; }

  bool start_object(std::size_t) { return open(nlohmann::json::object()); }
  bool start_array(std::size_t) { return open(nlohmann::json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    auto* const object = open_.back()->get_ptr<nlohmann::json::object_t*>();
    const auto [entry, is_new] = object->try_emplace(name);
    if (!is_new) problem = "the key " + in_quotes(name) + " stands twice in one object";
    member_ = &entry->second;
    return is_new;
  }

  template <class Exception>
  bool parse_error(std::size_t position, const std::string& token, const Exception&) {
    problem = message("is not JSON: mistake at byte ", position, ", near ", in_quotes(token));
    return false;
  }

 private:
  /// Where the value was put: the root, the member whose key came last, or the end of the open
  /// array.
  nlohmann::json* place(nlohmann::json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (auto* const array = open_.back()->get_ptr<nlohmann::json::array_t*>()) {
      array->push_back(std::move(value));
      return &array->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool open(nlohmann::json container) {
    constexpr std::size_t deepest = 64;
    if (open_.size() == deepest) {
      problem = message("values are nested more than ", deepest, " deep");
      return false;
    }
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  nlohmann::json& root_;
  nlohmann::json* member_ = nullptr;
  std::vector<nlohmann::json*> open_;
};

/// The text as JSON, or a FileError that starts with `place` (the file's name).
inline nlohmann::json parse_json(std::string_view text, std::string_view place) {
  // The parser takes a zero byte for the end of the text: what follows it would pass unseen.
  if (const std::size_t zero = text.find('\0'); zero != text.npos)
    raise<FileError>(place, ": is not JSON: byte ", zero, " is zero");
  nlohmann::json document;
  JsonBuilder builder(document);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder))
    raise<FileError>(place, ": ", builder.problem);
  return document;
}

}  // namespace detail

/// A JSON object that somebody else owns, read by key. What is missing or of another kind is a
/// FileError that names the place, the key, what stands there and what is expected. A null counts
/// as absent, as it does to the published code.
class JsonObject {
 public:
  /// The largest extent a configuration may state: products of two of them, doubled, fit an Index.
  static constexpr Index largest_extent = Index{1} << 30;

  /// `place` starts every message: the file's name, then the keys that lead to the object.
  JsonObject(const nlohmann::json& value, std::string place)
      : value_(&value), place_(std::move(place)) {
    if (!value.is_object())
      detail::raise<FileError>(place_, ": is ", detail::shown(value), ", an object is expected");
  }

  const nlohmann::json& json() const { return *value_; }
  const std::string& place() const { return place_; }

  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// A positive integer up to largest_extent.
  Index extent(std::string_view key) const {
    constexpr const char* expected = "a positive integer up to 1073741824 is expected";
    const nlohmann::json& value = at(key, expected);
    const auto* const number = value.get_ptr<const std::uint64_t*>();
    if (number == nullptr || *number == 0 || *number > static_cast<std::uint64_t>(largest_extent))
      refuse(key, value, expected);
    return static_cast<Index>(*number);
  }

  Index extent_or(std::string_view key, Index absent) const {
    return has(key) ? extent(key) : absent;
  }

  /// A number, whole or not.
  double number(std::string_view key) const {
    const nlohmann::json& value = at(key, "a number is expected");
    if (!value.is_number()) refuse(key, value, "a number is expected");
    return value.get<double>();
  }

  double number_or(std::string_view key, double absent) const {
    return has(key) ? number(key) : absent;
  }

  /// A number greater than zero.
  double positive(std::string_view key) const {
    const double value = number(key);
    if (!(value > 0)) refuse(key, at(key, ""), "a number greater than 0 is expected");
    return value;
  }

  double positive_or(std::string_view key, double absent) const {
    return has(key) ? positive(key) : absent;
  }

  bool flag(std::string_view key) const {
    const nlohmann::json& value = at(key, "true or false is expected");
    if (!value.is_boolean()) refuse(key, value, "true or false is expected");
    return value.get<bool>();
  }

  bool flag_or(std::string_view key, bool absent) const { return has(key) ? flag(key) : absent; }

  std::string text(std::string_view key) const {
    const nlohmann::json& value = at(key, "a string is expected");
    const auto* const string = value.get_ptr<const std::string*>();
    if (string == nullptr) refuse(key, value, "a string is expected");
    return *string;
  }

  std::string text_or(std::string_view key, std::string_view absent) const {
    return has(key) ? text(key) : std::string(absent);
  }

  std::vector<std::string> texts(std::string_view key) const {
    constexpr const char* expected = "an array of strings is expected";
    const nlohmann::json& value = at(key, expected);
    if (!value.is_array()) refuse(key, value, expected);
    std::vector<std::string> strings;
    for (const nlohmann::json& element : value) {
      const auto* const string = element.get_ptr<const std::string*>();
      if (string == nullptr) refuse(key, value, expected);
      strings.push_back(*string);
    }
    return strings;
  }

  JsonObject object(std::string_view key) const {
    const nlohmann::json& value = at(key, "an object is expected");
    if (!value.is_object()) refuse(key, value, "an object is expected");
    return JsonObject(value, place_ + ": " + std::string(key));
  }

 private:
  const nlohmann::json* find(std::string_view key) const {
    const auto& members = *value_->get_ptr<const nlohmann::json::object_t*>();
    const auto entry = members.find(std::string(key));
    return entry == members.end() || entry->second.is_null() ? nullptr : &entry->second;
  }

  const nlohmann::json& at(std::string_view key, const char* expected) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr)
      detail::raise<FileError>(place_, ": the key '", key, "' is missing; ", expected);
    return *value;
  }

  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& value,
                           const char* expected) const {
    detail::raise<FileError>(place_, ": '", key, "' is ", detail::shown(value), "; ", expected);
  }

  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace gated_attention
