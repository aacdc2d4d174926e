// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gated_attention/core/error.hpp"
#include "gated_attention/core/index.hpp"
#include "gated_attention/core/view.hpp"
#include "gated_attention/io/element_type.hpp"
#include "gated_attention/io/json.hpp"
#include "gated_attention/io/mapped_file.hpp"

namespace gated_attention {

/// One tensor of an open file: row-major elements, little-endian, at any alignment. Valid as long
/// as the file is open, also after the object that opened it has moved.
struct TensorView {
  std::string_view file;             ///< for messages
  std::string_view name;             ///< as the file spells it
  ElementType type{};                ///< of every element
  std::span<const Index> shape;      ///< no extents: one element
  std::span<const std::byte> bytes;  ///< product of shape × size_of(type)

  Index elements() const { return static_cast<Index>(bytes.size()) / size_of(type); }
};

/// One safetensors file, read-only:
///   [8 bytes: header length n, little-endian] [n bytes: JSON] [data]
///   JSON: name → {"dtype", "shape", "data_offsets": [begin, end) in data}, "__metadata__" →
///   {string: string}
///
/// Everything the header says is checked before anything else is read: its length lies within the
/// file and is at most 100 MB, it is JSON and starts with '{', no key stands twice, every dtype is
/// known, the extents' product × the element's size is the span of the offsets, and the tensors, in
/// the order of their offsets, cover the data completely: no overlap, no hole, nothing beyond the
/// end, nothing left over. What does not hold is a FileError that names the file, the tensor and
/// both numbers. Movable; immutable, so safe to share between threads.
class Safetensors {
 public:
  static constexpr Index longest_header = 100'000'000;

  /// Maps the file.
  static Safetensors open(const std::filesystem::path& path) {
    auto contents = std::make_unique<Contents>();
    contents->file = path.string();
    contents->mapped = MappedFile(path);
    contents->parse(contents->mapped.bytes());
    return Safetensors(std::move(contents));
  }

  /// The same over bytes in memory, which must outlive the object; `name` stands for the file's in
  /// messages.
  static Safetensors view(std::span<const std::byte> bytes, std::string name) {
    auto contents = std::make_unique<Contents>();
    contents->file = std::move(name);
    contents->parse(bytes);
    return Safetensors(std::move(contents));
  }

  const std::string& file() const { return contents_->file; }

  /// Every tensor's name, ascending.
  std::vector<std::string_view> names() const {
    std::vector<std::string_view> all;
    for (const auto& [name, record] : contents_->tensors) all.push_back(name);
    return all;
  }

  bool contains(std::string_view name) const { return contents_->tensors.count(name) != 0; }

  /// The tensor, or a FileError that names it and the file.
  TensorView tensor(std::string_view name) const {
    const auto entry = contents_->tensors.find(name);
    if (entry == contents_->tensors.end())
      detail::raise<FileError>(contents_->file, ": has no tensor ", detail::in_quotes(name));
    return contents_->view(*entry);
  }

  /// The strings under "__metadata__"; empty where there are none.
  const std::map<std::string, std::string, std::less<>>& metadata() const {
    return contents_->metadata;
  }

 private:
  struct Record {
    ElementType type{};
    std::vector<Index> shape;
    Index begin = 0, end = 0;  ///< bytes, from the start of the data
  };
  using Records = std::map<std::string, Record, std::less<>>;

  /// Lies behind a pointer, so that views into it survive a move.
  struct Contents {
    std::string file;
    MappedFile mapped;
    std::span<const std::byte> data;
    Records tensors;
    std::map<std::string, std::string, std::less<>> metadata;

    void parse(std::span<const std::byte> bytes);
    std::string_view split_header(std::span<const std::byte> bytes);
    void parse_metadata(const nlohmann::json& entries);
    Record parse_tensor(const std::string& name, const nlohmann::json& entry) const;
    ElementType parse_type(const std::string& name, const nlohmann::json& entry) const;
    std::vector<Index> parse_shape(const std::string& name, const nlohmann::json& entry) const;
    void check_cover() const;

    const nlohmann::json& field(const std::string& name, const nlohmann::json& entry,
                                const char* key) const;
    template <class... Parts>
    [[noreturn]] void lie(std::string_view name, const Parts&... parts) const {
      detail::raise<FileError>(file, ": tensor ", detail::in_quotes(name), ": ", parts...);
    }
    TensorView view(const Records::value_type& entry) const {
      const Record& record = entry.second;
      return {file, entry.first, record.type, record.shape,
              data.subspan(static_cast<std::size_t>(record.begin),
                           static_cast<std::size_t>(record.end - record.begin))};
    }
  };

  explicit Safetensors(std::unique_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::unique_ptr<const Contents> contents_;
};

inline void Safetensors::Contents::parse(std::span<const std::byte> bytes) {
  const std::string_view header = split_header(bytes);
  const nlohmann::json document = detail::parse_json(header, file + ": the header");
  for (const auto& [name, entry] : *document.get_ptr<const nlohmann::json::object_t*>()) {
    if (name == "__metadata__")
      parse_metadata(entry);
    else
      tensors.emplace(name, parse_tensor(name, entry));
  }
  check_cover();
}

/// Sets `data` and returns the header's text, both within `bytes`.
inline std::string_view Safetensors::Contents::split_header(std::span<const std::byte> bytes) {
  constexpr std::size_t prefix = 8;
  if (bytes.size() < prefix)
    detail::raise<FileError>(file, ": has ", bytes.size(), " bytes, the header length alone takes ",
                             prefix);
  const auto length = detail::load_little<std::uint64_t>(bytes.data());
  if (length > static_cast<std::uint64_t>(longest_header))
    detail::raise<FileError>(file, ": the header length is ", length, " bytes, at most ",
                             longest_header, " are allowed");
  if (length > bytes.size() - prefix)
    detail::raise<FileError>(file, ": the header length is ", length, " bytes, the file has ",
                             bytes.size() - prefix, " after it");
  const auto size = static_cast<std::size_t>(length);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + prefix, size);
  if (!header.starts_with('{'))
    detail::raise<FileError>(file, ": the header must start with '{', it is ",
                             size == 0 ? "empty" : detail::in_quotes(header.substr(0, 1)));
  data = bytes.subspan(prefix + size);
  return header;
}

inline void Safetensors::Contents::parse_metadata(const nlohmann::json& entries) {
  const auto* const members = entries.get_ptr<const nlohmann::json::object_t*>();
  if (members == nullptr)
    detail::raise<FileError>(file, ": __metadata__ is ", detail::shown(entries),
                             ", an object is expected");
  for (const auto& [key, value] : *members) {
    const auto* const text = value.get_ptr<const std::string*>();
    if (text == nullptr)
      detail::raise<FileError>(file, ": __metadata__: ", detail::in_quotes(key), " is ",
                               detail::shown(value), ", a string is expected");
    metadata.emplace(key, *text);
  }
}

inline const nlohmann::json& Safetensors::Contents::field(const std::string& name,
                                                          const nlohmann::json& entry,
                                                          const char* key) const {
  const auto* const members = entry.get_ptr<const nlohmann::json::object_t*>();
  if (members == nullptr) lie(name, "is ", detail::shown(entry), ", an object is expected");
  const auto found = members->find(key);
  if (found == members->end()) lie(name, key, " is missing");
  return found->second;
}

inline ElementType Safetensors::Contents::parse_type(const std::string& name,
                                                     const nlohmann::json& entry) const {
  const nlohmann::json& dtype = field(name, entry, "dtype");
  const auto* const text = dtype.get_ptr<const std::string*>();
  if (text == nullptr) lie(name, "dtype is ", detail::shown(dtype), ", a string is expected");
  const auto type = element_type_named(*text);
  if (!type) lie(name, "dtype ", detail::in_quotes(*text), " is not known");
  return *type;
}

inline std::vector<Index> Safetensors::Contents::parse_shape(const std::string& name,
                                                             const nlohmann::json& entry) const {
  const nlohmann::json& extents = field(name, entry, "shape");
  if (!extents.is_array()) lie(name, "shape is ", detail::shown(extents), ", an array is expected");
  std::vector<Index> shape;
  for (const nlohmann::json& value : extents) {
    const auto* const extent = value.get_ptr<const std::uint64_t*>();
    if (extent == nullptr ||
        *extent > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()))
      lie(name, "an extent of shape is ", detail::shown(value), ", an integer from 0 to ",
          std::numeric_limits<Index>::max(), " is expected");
    shape.push_back(static_cast<Index>(*extent));
  }
  return shape;
}

inline Safetensors::Record Safetensors::Contents::parse_tensor(const std::string& name,
                                                               const nlohmann::json& entry) const {
  Record record{parse_type(name, entry), parse_shape(name, entry)};
  // The product of the extents that are not 0 must fit too: so does every product a reader may form
  // of them.
  Index size = size_of(record.type);
  bool empty = false;
  for (const Index extent : record.shape) {
    empty = empty || extent == 0;
    if (extent > std::numeric_limits<Index>::max() / size)
      lie(name, "shape: ", size, " bytes x ", extent, " are more than an index can count");
    size *= std::max<Index>(extent, 1);
  }
  if (empty) size = 0;

  const nlohmann::json& offsets = field(name, entry, "data_offsets");
  const bool is_pair = offsets.is_array() && offsets.size() == 2 &&
                       offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned();
  if (!is_pair) lie(name, "data_offsets must be two integers, 0 or more");
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (begin > end) lie(name, "data_offsets are reversed: begin ", begin, ", end ", end);
  if (end > data.size()) lie(name, "ends at byte ", end, " of the data, which has ", data.size());
  if (end - begin != static_cast<std::uint64_t>(size))
    lie(name, "data_offsets span ", end - begin, " bytes, its shape and dtype take ", size);
  record.begin = static_cast<Index>(begin);
  record.end = static_cast<Index>(end);
  return record;
}

/// In the order of their offsets, each tensor starts where the one before it ends, and the last
/// ends with the data.
inline void Safetensors::Contents::check_cover() const {
  std::vector<const Records::value_type*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  Index covered = 0;
  for (const auto* entry : order) {
    const Index begin = entry->second.begin;
    if (begin < covered)
      lie(entry->first, "starts at byte ", begin, ", the tensor before it ends at ", covered);
    if (begin > covered)
      lie(entry->first, "starts at byte ", begin, ", which leaves a hole after byte ", covered);
    covered = entry->second.end;
  }
  if (static_cast<std::size_t>(covered) != data.size())
    detail::raise<FileError>(file, ": the data has ", data.size(), " bytes, its tensors end at ",
                             covered);
}

namespace detail {

inline std::string shape_text(std::span<const Index> shape) {
  std::string text = "[";
  for (const Index extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

inline void expect_floating(const TensorView& tensor) {
  if (!is_floating(tensor.type))
    raise<FileError>(tensor.file, ": tensor ", in_quotes(tensor.name), " is ", name_of(tensor.type),
                     ", one of F64, F32, F16, BF16 is expected");
}

template <class Scalar>
constexpr void require_scalar() {
  constexpr bool the_scalar_is_float_or_double =
      std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double>;
  static_assert(the_scalar_is_float_or_double,
                "gated_attention: tensors are read as float or double");
}

}  // namespace detail

/// A FileError that names the tensor and both shapes, unless the tensor has exactly this one.
/// `meaning` is added to the message: where the expected numbers come from.
inline void expect_shape(const TensorView& tensor, std::span<const Index> shape,
                         std::string_view meaning = {}) {
  if (!std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end()))
    detail::raise<FileError>(tensor.file, ": tensor ", detail::in_quotes(tensor.name), " is ",
                             detail::shape_text(tensor.shape), ", ", detail::shape_text(shape),
                             " is expected", meaning.empty() ? "" : " (", meaning,
                             meaning.empty() ? "" : ")");
}

inline void expect_shape(const TensorView& tensor, std::initializer_list<Index> shape,
                         std::string_view meaning = {}) {
  expect_shape(tensor, std::span<const Index>(shape.begin(), shape.size()), meaning);
}

/// All elements in order, as float or double, of a tensor that must have this shape. Every stored
/// type widens exactly; F64 → float rounds to nearest.
template <class Scalar>
std::vector<Scalar> read_values(const TensorView& tensor, std::initializer_list<Index> shape) {
  detail::require_scalar<Scalar>();
  expect_shape(tensor, shape);
  detail::expect_floating(tensor);
  std::vector<Scalar> values(static_cast<std::size_t>(tensor.elements()));
  detail::widen(tensor.type, tensor.bytes.data(), tensor.elements(), values.data());
  return values;
}

/// out[i, :] = tensor[first_row + i, :]      tensor: [rows ≥ first_row + out.rows(), out.columns()]
template <class Scalar>
void read_rows(const TensorView& tensor, Index first_row, MatrixView<Scalar> out) {
  detail::require_scalar<Scalar>();
  if (tensor.shape.size() != 2) expect_shape(tensor, {first_row + out.rows(), out.columns()});
  expect_shape(tensor, {tensor.shape[0], out.columns()});
  if (first_row < 0 || first_row > tensor.shape[0] || out.rows() > tensor.shape[0] - first_row)
    detail::raise<ShapeError>("read_rows: ", out.rows(), " rows from row ", first_row,
                              " on of tensor ", detail::in_quotes(tensor.name), ", which has ",
                              tensor.shape[0]);
  detail::expect_floating(tensor);
  const Index row_bytes = out.columns() * size_of(tensor.type);
  for (Index i = 0; i < out.rows(); ++i)
    detail::widen(tensor.type, tensor.bytes.data() + (first_row + i) * row_bytes, out.columns(),
                  out.row(i));
}

/// out = tensor      tensor: [out.rows(), out.columns()]
template <class Scalar>
void read_matrix(const TensorView& tensor, MatrixView<Scalar> out) {
  expect_shape(tensor, {out.rows(), out.columns()});
  read_rows(tensor, 0, out);
}

/// out = tensor      tensor: [out.size()]
template <class Scalar>
void read_vector(const TensorView& tensor, std::span<Scalar> out) {
  detail::require_scalar<Scalar>();
  expect_shape(tensor, {static_cast<Index>(out.size())});
  detail::expect_floating(tensor);
  detail::widen(tensor.type, tensor.bytes.data(), static_cast<Index>(out.size()), out.data());
}

/// All elements in order of an I64 or I32 tensor that must have this shape.
inline std::vector<std::int64_t> read_integers(const TensorView& tensor,
                                               std::initializer_list<Index> shape) {
  expect_shape(tensor, shape);
  if (tensor.type != ElementType::I64 && tensor.type != ElementType::I32)
    detail::raise<FileError>(tensor.file, ": tensor ", detail::in_quotes(tensor.name), " is ",
                             name_of(tensor.type), ", I64 or I32 is expected");
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.elements()));
  const std::byte* source = tensor.bytes.data();
  for (std::int64_t& value : values) {
    value = tensor.type == ElementType::I64
                ? static_cast<std::int64_t>(detail::load_little<std::uint64_t>(source))
                : static_cast<std::int32_t>(detail::load_little<std::uint32_t>(source));
    source += size_of(tensor.type);
  }
  return values;
}

}  // namespace gated_attention
