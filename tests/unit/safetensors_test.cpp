// SPDX-License-Identifier: MIT
#include "gated_attention/io/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gated_attention/io/tensor_files.hpp"
#include "unit/io_support.hpp"

namespace gated_attention {
namespace {

using test::Bytes;
using test::expect_parts;
using test::message_of;
using test::safetensors_bytes;
using test::ScratchDirectory;

std::string error_of(const Bytes& bytes) {
  return message_of<FileError>([&] { Safetensors::view(bytes, "some.file"); });
}

/// Two tensors of different types, in an order that is not that of their offsets.
Bytes small_file() {
  return safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
      R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
      30);
}

TEST(Safetensors, ReadsWhatTheHeaderSays) {
  const Bytes bytes = small_file();
  Safetensors opened = Safetensors::view(bytes, "some.file");
  const TensorView a = opened.tensor("a");
  const Safetensors moved = std::move(opened);  // views survive
  EXPECT_EQ(moved.names(), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(moved.metadata().at("format"), "pt");
  EXPECT_TRUE(moved.contains("b"));
  EXPECT_FALSE(moved.contains("__metadata__"));
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.file, "some.file");
  EXPECT_EQ(a.type, ElementType::F32);
  EXPECT_EQ(std::vector<Index>(a.shape.begin(), a.shape.end()), (std::vector<Index>{2, 3}));
  EXPECT_EQ(a.bytes.data(), bytes.data() + bytes.size() - 30);
  EXPECT_EQ(a.bytes.size(), 24U);
  EXPECT_EQ(moved.tensor("b").bytes.data(), bytes.data() + bytes.size() - 6);
  EXPECT_EQ(moved.tensor("b").elements(), 3);
}

TEST(Safetensors, AMissingTensorIsNamed) {
  const Bytes bytes = small_file();
  const Safetensors file = Safetensors::view(bytes, "some.file");
  expect_parts(message_of<FileError>([&] { file.tensor("c"); }), {"some.file", "'c'"});
}

TEST(Safetensors, EmptyFilesTensorsAndScalarsAreValid) {
  const Bytes none = safetensors_bytes("{}", 0);
  EXPECT_TRUE(Safetensors::view(none, "none").names().empty());

  const Bytes bytes =
      safetensors_bytes(R"({"empty":{"dtype":"F32","shape":[0,4],"data_offsets":[4,4]},)"
                        R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                        R"("start":{"dtype":"F64","shape":[7,0],"data_offsets":[0,0]}}   )",
                        4);
  const Safetensors file = Safetensors::view(bytes, "some.file");
  EXPECT_EQ(file.tensor("empty").elements(), 0);
  EXPECT_EQ(file.tensor("start").elements(), 0);
  EXPECT_EQ(file.tensor("scalar").elements(), 1);
  EXPECT_TRUE(read_values<float>(file.tensor("empty"), {0, 4}).empty());
  EXPECT_EQ(read_values<double>(file.tensor("scalar"), {}).size(), 1U);
}

TEST(Safetensors, EveryKnownTypeOpensWithItsSize) {
  const std::pair<const char*, int> types[] = {
      {"F64", 8},  {"F32", 4},     {"F16", 2},     {"BF16", 2},    {"I64", 8}, {"I32", 4},
      {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
      {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8}};
  for (const auto& [name, size] : types) {
    const std::string header = std::string(R"({"a":{"dtype":")") + name +
                               R"(","shape":[3],"data_offsets":[0,)" + std::to_string(3 * size) +
                               "]}}";
    const Bytes bytes = safetensors_bytes(header, static_cast<std::size_t>(3 * size));
    const Safetensors file = Safetensors::view(bytes, "some.file");
    EXPECT_EQ(name_of(file.tensor("a").type), name);
    EXPECT_EQ(size_of(file.tensor("a").type), size);
  }
}

struct Malformed {
  const char* what;
  std::string header;
  std::size_t data_size;
  std::vector<std::string> message;
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::vector<Malformed> malformed_headers() {
  const std::string f32 = R"("F32")";
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  std::string nested = R"({"t":)";
  for (int i = 0; i < 100000; ++i) nested += '[';
  return {
      {"empty header", "", 0, {"empty", "'{'"}},
      {"leading space", " {}", 0, {"'{'", "' '"}},
      {"not JSON", "{nonsense", 0, {"not JSON", "byte 3"}},
      {"cut JSON", R"({"t":{"dtype":"F32")", 0, {"not JSON"}},
      {"text after the JSON", "{} x", 0, {"not JSON"}},
      {"zero byte", std::string("{}\0 {", 5), 0, {"not JSON", "byte 2 is zero"}},
      {"bad UTF-8", "{\"\xff\":1}", 0, {"not JSON"}},
      {"nested too deep", nested, 0, {"more than 64 deep"}},
      {"an array", "[]", 0, {"'{'", "'['"}},
      {"tensor is no object", R"({"t":3})", 0, {"'t'", "is 3", "object"}},
      {"dtype missing",
       R"({"t":{"shape":[1],"data_offsets":[0,4]}})",
       4,
       {"'t'", "dtype is missing"}},
      {"shape missing",
       R"({"t":{"dtype":"F32","data_offsets":[0,4]}})",
       4,
       {"'t'", "shape is missing"}},
      {"offsets missing",
       R"({"t":{"dtype":"F32","shape":[1]}})",
       4,
       {"'t'", "data_offsets is missing"}},
      {"dtype unknown",
       one(R"("F33")", "[1]", "[0,4]"),
       4,
       {"some.file", "'t'", "'F33'", "not known"}},
      {"dtype with a newline", one(R"("F\n3")", "[1]", "[0,4]"), 4, {"'F?3'"}},
      {"dtype no string", one("32", "[1]", "[0,4]"), 4, {"'t'", "dtype is 32"}},
      {"shape no array", one(f32, "1", "[0,4]"), 4, {"'t'", "shape is 1"}},
      {"negative extent", one(f32, "[-1]", "[0,4]"), 4, {"'t'", "-1"}},
      {"fractional extent", one(f32, "[1.5]", "[0,6]"), 6, {"'t'", "1.5"}},
      {"extent as text", one(f32, R"(["1"])", "[0,4]"), 4, {"'t'", R"("1")"}},
      {"extent over 63 bits",
       one(f32, "[9223372036854775808]", "[0,4]"),
       4,
       {"9223372036854775808"}},
      {"extent over 64 bits",
       one(f32, "[99999999999999999999]", "[0,4]"),
       4,
       {"'t'", "an extent of shape"}},
      {"size over 63 bits",
       one(f32, "[4611686018427387904]", "[0,4]"),
       4,
       {"'t'", "4611686018427387904"}},
      {"product that wraps to 0",
       one(f32, "[4294967296,4294967296]", "[0,0]"),
       0,
       {"'t'", "4294967296"}},
      {"product that wraps, with a zero",
       one(f32, "[4611686018427387904,4,0]", "[0,0]"),
       0,
       {"'t'"}},
      {"offsets no array", one(f32, "[1]", "4"), 4, {"'t'", "data_offsets"}},
      {"one offset", one(f32, "[1]", "[0]"), 4, {"'t'", "data_offsets"}},
      {"three offsets", one(f32, "[1]", "[0,4,8]"), 4, {"'t'", "data_offsets"}},
      {"negative offset", one(f32, "[1]", "[-4,0]"), 4, {"'t'", "data_offsets"}},
      {"fractional offset", one(f32, "[1]", "[0,4.0]"), 4, {"'t'", "data_offsets"}},
      {"offsets reversed", one(f32, "[1]", "[4,0]"), 4, {"'t'", "reversed", "begin 4", "end 0"}},
      {"end beyond the data", one(f32, "[2]", "[0,8]"), 7, {"some.file", "'t'", "byte 8", "has 7"}},
      {"end near 2^64",
       one(f32, "[2]", "[18446744073709551608,18446744073709551615]"),
       8,
       {"'t'", "18446744073709551615", "has 8"}},
      {"span too long", one(f32, "[1]", "[0,8]"), 8, {"'t'", "span 8", "take 4"}},
      {"span too short", one(f32, "[3]", "[0,8]"), 8, {"'t'", "span 8", "take 12"}},
      {"hole at the start", one(f32, "[1]", "[4,8]"), 8, {"'t'", "byte 4", "hole after byte 0"}},
      {"hole between",
       "{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}})",
       7,
       {"'b'", "byte 5", "hole after byte 4"}},
      {"overlap",
       "{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
       7,
       {"'b'", "byte 3", "ends at 4"}},
      {"the same bytes twice",
       "{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4,
       {"'b'", "byte 0", "ends at 4"}},
      {"empty tensor inside another",
       "{" + a + R"(,"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
       4,
       {"'b'", "byte 2", "ends at 4"}},
      {"trailing bytes", one(f32, "[1]", "[0,4]"), 5, {"has 5 bytes", "end at 4"}},
      {"data without tensors", "{}", 3, {"has 3 bytes", "end at 0"}},
      {"tensor twice", "{" + a + "," + a + "}", 4, {"'a'", "twice"}},
      {"key twice in a tensor",
       R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4,
       {"'dtype'", "twice"}},
      {"metadata no object", R"({"__metadata__":[]})", 0, {"__metadata__", "an array"}},
      {"metadata not a string", R"({"__metadata__":{"n":1}})", 0, {"__metadata__", "'n'", "is 1"}},
  };
}

TEST(Safetensors, EveryLieIsOneClearError) {
  for (const Malformed& malformed : malformed_headers()) {
    SCOPED_TRACE(malformed.what);
    const std::string message = error_of(safetensors_bytes(malformed.header, malformed.data_size));
    expect_parts(message, malformed.message);
    expect_parts(message, {"some.file: "});
    EXPECT_LT(message.size(), 400U);
  }
}

TEST(Safetensors, AHeaderLengthThatLiesNamesBothNumbers) {
  for (const std::uint64_t length : {std::uint64_t{23}, std::uint64_t{100'000'000}}) {
    Bytes bytes;
    test::append_little(bytes, length, 8);
    test::append_text(bytes, "{}                    ");  // 22 bytes
    expect_parts(error_of(bytes), {std::to_string(length), "has 22"});
  }
  for (const std::uint64_t length :
       {std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Bytes bytes;
    test::append_little(bytes, length, 8);
    test::append_text(bytes, "{}");
    expect_parts(error_of(bytes), {std::to_string(length), "at most 100000000"});
  }
}

TEST(Safetensors, IsRefusedTruncatedAtEveryLength) {
  const Bytes whole = small_file();
  EXPECT_NO_THROW(Safetensors::view(whole, "whole"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // A vector of exactly this size, so that a sanitizer sees a read past it.
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THROW(Safetensors::view(part, "part"), FileError) << length;
  }
}

TEST(Safetensors, FlippedBytesNeverLeadOutsideTheFile) {
  const Bytes whole = small_file();
  std::mt19937 random(20240613);
  int opened = 0;
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes = whole;
    const auto flips = 1 + random() % 3;
    for (auto i = flips; i > 0; --i)
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    try {
      const Safetensors file = Safetensors::view(bytes, "flipped");
      ++opened;
      std::size_t covered = 0;
      for (const std::string_view name : file.names()) {
        const TensorView tensor = file.tensor(name);
        ASSERT_GE(tensor.bytes.data(), bytes.data());
        ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), bytes.data() + bytes.size());
        covered += tensor.bytes.size();
        if (tensor.shape.size() == 1 && is_floating(tensor.type))
          read_values<double>(tensor, {tensor.shape[0]});
      }
      ASSERT_LE(covered, bytes.size());
    } catch (const FileError&) {
    }
  }
  EXPECT_GT(opened, 100);  // both kinds occur
  EXPECT_LT(opened, 1900);
}

/// One tensor "t" of `count` elements from the bits, at an odd address.
Bytes tensor_of_bits(const std::string& dtype, const std::vector<std::uint64_t>& bits, int size) {
  const auto end = static_cast<int>(bits.size()) * size;
  std::string header = one('"' + dtype + '"', "[" + std::to_string(bits.size()) + "]",
                           "[0," + std::to_string(end) + "]");
  if (header.size() % 2 == 0) header += ' ';
  Bytes bytes = safetensors_bytes(header, 0);
  for (const std::uint64_t element : bits) test::append_little(bytes, element, size);
  return bytes;
}

template <class Scalar>
std::vector<Scalar> widened(const std::string& dtype, const std::vector<std::uint64_t>& bits,
                            int size) {
  const Bytes bytes = tensor_of_bits(dtype, bits, size);
  return read_values<Scalar>(Safetensors::view(bytes, "bits").tensor("t"),
                             {static_cast<Index>(bits.size())});
}

/// The value of sign | exponent | mantissa bits by the definition of IEEE formats.
double value_of_bits(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const double mantissa = bits & ((1U << mantissa_bits) - 1);
  const double one_unit = std::ldexp(1.0, -mantissa_bits);
  double magnitude = exponent == 0 ? std::ldexp(mantissa * one_unit, 1 - bias)
                                   : std::ldexp(1 + mantissa * one_unit, exponent - bias);
  if (exponent == (1 << exponent_bits) - 1)
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  return (bits >> (exponent_bits + mantissa_bits)) != 0 ? -magnitude : magnitude;
}

template <class Scalar>
void expect_all_16_bit_values_widen_exactly(const std::string& dtype, int exponent_bits,
                                            int mantissa_bits) {
  std::vector<std::uint64_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = i;
  const std::vector<Scalar> values = widened<Scalar>(dtype, bits, 2);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const double expected =
        value_of_bits(static_cast<std::uint32_t>(i), exponent_bits, mantissa_bits);
    const auto value = static_cast<double>(values[i]);
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected) << dtype << " " << i;
    ASSERT_EQ(std::signbit(value), i >= 0x8000U) << dtype << " " << i;
  }
}

TEST(Safetensors, EveryHalfWidensExactly) {
  expect_all_16_bit_values_widen_exactly<float>("F16", 5, 10);
  expect_all_16_bit_values_widen_exactly<double>("F16", 5, 10);
}

TEST(Safetensors, EveryBfloat16WidensExactly) {
  expect_all_16_bit_values_widen_exactly<float>("BF16", 8, 7);
  expect_all_16_bit_values_widen_exactly<double>("BF16", 8, 7);
}

TEST(Safetensors, WidensTheKnownHalves) {
  const std::vector<double> halves =
      widened<double>("F16", {0x3c00, 0xc000, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x3555, 0x7c00}, 2);
  EXPECT_EQ(halves, (std::vector<double>{1, -2, 65504, 6.103515625e-05, 6.097555160522461e-05,
                                         5.960464477539063e-08, 0.333251953125, INFINITY}));
}

TEST(Safetensors, FloatsAndDoublesReadAsTheyAre) {
  const float third = 1.0F / 3;
  const std::vector<std::uint64_t> bits = {std::bit_cast<std::uint32_t>(third), 1, 0x7f800000,
                                           0xff7fffff};
  EXPECT_EQ(widened<float>("F32", bits, 4),
            (std::vector<float>{third, std::numeric_limits<float>::denorm_min(), INFINITY,
                                std::numeric_limits<float>::lowest()}));
  EXPECT_EQ(widened<double>("F32", bits, 4)[0], static_cast<double>(third));
  EXPECT_EQ(widened<double>("F64", {std::bit_cast<std::uint64_t>(1.0 / 3), 1}, 8),
            (std::vector<double>{1.0 / 3, std::numeric_limits<double>::denorm_min()}));
}

TEST(Safetensors, DoublesRoundToTheNearestFloat) {
  const double numbers[] = {1 + 0x1p-24, 1 + 0x1.8p-23, 1 + 0x1.000002p-24, -0x1p-150, 0.1, 1e39};
  std::vector<std::uint64_t> bits;
  for (const double number : numbers) bits.push_back(std::bit_cast<std::uint64_t>(number));
  EXPECT_EQ(widened<float>("F64", bits, 8),
            (std::vector<float>{1, 1 + 0x1p-22F, 1 + 0x1p-23F, -0.0F, 0.1F, INFINITY}));
}

TEST(Safetensors, IntegersReadAsIntegersOnly) {
  const Bytes wide = tensor_of_bits("I64", {5, ~std::uint64_t{0}}, 8);
  const Safetensors file = Safetensors::view(wide, "bits");
  EXPECT_EQ(read_integers(file.tensor("t"), {2}), (std::vector<std::int64_t>{5, -1}));
  expect_parts(message_of<FileError>([&] { read_values<float>(file.tensor("t"), {2}); }),
               {"'t'", "I64", "BF16"});
  const Bytes narrow = tensor_of_bits("I32", {7, 0xfffffffe}, 4);
  EXPECT_EQ(read_integers(Safetensors::view(narrow, "bits").tensor("t"), {2}),
            (std::vector<std::int64_t>{7, -2}));
  const Bytes floats = tensor_of_bits("F32", {0}, 4);
  expect_parts(message_of<FileError>(
                   [&] { read_integers(Safetensors::view(floats, "bits").tensor("t"), {1}); }),
               {"'t'", "F32", "I64"});
}

TEST(Safetensors, AWrongShapeNamesTensorAndBothShapes) {
  const Bytes bytes = small_file();
  const Safetensors file = Safetensors::view(bytes, "some.file");
  const TensorView a = file.tensor("a");
  std::vector<float> memory(12);
  const std::vector<std::string> parts = {"some.file", "'a'", "[2, 3]"};
  const auto expect = [&](const auto& call, const std::string& expected) {
    const std::string message = message_of<FileError>(call);
    expect_parts(message, parts);
    expect_parts(message, {expected});
  };
  expect([&] { read_values<float>(a, {3, 2}); }, "[3, 2]");
  expect([&] { read_values<float>(a, {6}); }, "[6]");
  expect([&] { read_vector(a, std::span<float>(memory)); }, "[12]");
  expect([&] { read_matrix(a, MatrixView<float>(memory.data(), 2, 4)); }, "[2, 4]");
  expect([&] { read_matrix(a, MatrixView<float>(memory.data(), 1, 3)); }, "[1, 3]");
  expect([&] { expect_shape(a, {2, 4}, "of the layer"); }, "(of the layer)");
  expect_parts(
      message_of<ShapeError>([&] { read_rows(a, 1, MatrixView<float>(memory.data(), 2, 3)); }),
      {"2 rows from row 1", "'a'", "has 2"});
}

TEST(Safetensors, RowsLandInStridedMemory) {
  const Bytes bytes = small_file();
  const Safetensors file = Safetensors::view(bytes, "some.file");
  const std::vector<float> dense = read_values<float>(file.tensor("a"), {2, 3});
  std::vector<float> memory(10, -1);
  read_matrix(file.tensor("a"), MatrixView<float>(memory.data(), 2, 3, 5));
  EXPECT_EQ(memory, (std::vector<float>{dense[0], dense[1], dense[2], -1, -1, dense[3], dense[4],
                                        dense[5], -1, -1}));
  std::vector<float> row(3);
  read_rows(file.tensor("a"), 1, MatrixView<float>(row.data(), 1, 3));
  EXPECT_EQ(row, (std::vector<float>{dense[3], dense[4], dense[5]}));
}

TEST(Safetensors, OpensAPath) {
  const ScratchDirectory directory;
  directory.write("small.safetensors", small_file());
  const Safetensors file = Safetensors::open(directory.path() / "small.safetensors");
  const Bytes bytes = small_file();
  EXPECT_EQ(read_values<float>(file.tensor("a"), {2, 3}),
            read_values<float>(Safetensors::view(bytes, "memory").tensor("a"), {2, 3}));
}

TEST(Safetensors, APathThatIsNoFileIsNamed) {
  const ScratchDirectory directory;
  directory.write("empty", std::string_view());
  const auto message = [&](const char* name) {
    return message_of<FileError>([&] { Safetensors::open(directory.path() / name); });
  };
  expect_parts(message("missing"), {(directory.path() / "missing").string(), "No such file"});
  expect_parts(message("."), {"not a regular file"});
  expect_parts(message("empty"), {"empty", "has 0 bytes", "takes 8"});
}

// ----------------------------------------------------------------------------------------------
// one file or shards

std::string index_of(const std::string& map) {
  return R"({"metadata":{},"weight_map":)" + map + "}";
}

/// What opening the directory says after its index was written.
std::string index_error(const ScratchDirectory& directory, const std::string& index) {
  directory.write("model.safetensors.index.json", index);
  return message_of<FileError>([&] { TensorFiles files(directory.path()); });
}

TEST(TensorFiles, OneFileNeedsNoIndex) {
  const ScratchDirectory directory;
  directory.write("model.safetensors", small_file());
  const TensorFiles files(directory.path());
  EXPECT_EQ(files.names(), (std::vector<std::string_view>{"a", "b"}));
  expect_parts(message_of<FileError>([&] { files.tensor("c"); }),
               {directory.path().string(), "'c'"});
}

TEST(TensorFiles, ShardsAreOneSet) {
  const ScratchDirectory directory;
  directory.write("one.safetensors", test::zeros_file({{"x", {1}}, {"y", {2}}}));
  directory.write("two.safetensors", test::zeros_file({{"z", {3}}, {"unlisted", {4}}}));
  directory.write(
      "model.safetensors.index.json",
      index_of(R"({"x":"one.safetensors","y":"one.safetensors","z":"two.safetensors"})"));
  TensorFiles opened(directory.path());
  const TensorFiles files = std::move(opened);
  EXPECT_EQ(files.names(), (std::vector<std::string_view>{"unlisted", "x", "y", "z"}));
  EXPECT_EQ(files.tensor("z").elements(), 3);
  EXPECT_EQ(files.tensor("z").file, (directory.path() / "two.safetensors").string());
  EXPECT_EQ(files.files().size(), 2U);
}

TEST(TensorFiles, AnEmptyDirectoryIsRefused) {
  const ScratchDirectory directory;
  expect_parts(message_of<FileError>([&] { TensorFiles files(directory.path()); }),
               {directory.path().string(), "model.safetensors.index.json"});
}

TEST(TensorFiles, AnIndexThatLiesIsRefusedByName) {
  const ScratchDirectory directory;
  directory.write("one.safetensors", test::zeros_file({{"x", {1}}}));
  directory.write("two.safetensors", test::zeros_file({{"x", {1}}, {"y", {1}}}));
  directory.write("broken.safetensors", "1234");
  std::filesystem::create_directory(directory.path() / "folder");
  const auto error = [&](const std::string& map) { return index_error(directory, index_of(map)); };

  expect_parts(error(R"({"x":"gone.safetensors"})"), {"index.json", "'gone.safetensors'", "'x'"});
  expect_parts(error(R"({"w":"one.safetensors"})"), {"index.json", "'w'", "'one.safetensors'"});
  expect_parts(error(R"({"x":"one.safetensors","y":"two.safetensors"})"),
               {"two.safetensors", "'x'", "lies in", "one.safetensors"});
  expect_parts(error(R"({"x":"broken.safetensors"})"), {"broken.safetensors", "has 4 bytes"});
  expect_parts(error(R"({"x":"folder"})"), {"folder", "regular file"});
  expect_parts(error(R"({"x":7})"), {"'x'", "is 7", "file name"});
  expect_parts(error(R"({"x":"one.safetensors","x":"two.safetensors"})"), {"'x'", "twice"});
  expect_parts(error("[]"), {"'weight_map' is an array"});
  expect_parts(index_error(directory, "{}"), {"weight_map", "missing"});
  expect_parts(index_error(directory, "[]"), {"index.json", "an object is expected"});
  expect_parts(index_error(directory, "{"), {"index.json", "not JSON"});
  expect_parts(index_error(directory, ""), {"index.json", "not JSON"});
}

TEST(TensorFiles, AnIndexThatPointsOutOfTheDirectoryIsRefused) {
  const ScratchDirectory directory;
  directory.write("model.safetensors.outside", test::zeros_file({{"x", {1}}}));
  std::filesystem::create_directory(directory.path() / "inside");
  const std::string absolute = (directory.path() / "model.safetensors.outside").string();
  for (const std::string& shard :
       {std::string("../model.safetensors.outside"), absolute, std::string(".."), std::string("."),
        std::string(), std::string("a/../../x"), std::string("..\\\\x"), std::string("c:x"),
        std::string("one\\u0000.safetensors")}) {
    SCOPED_TRACE(shard);
    std::ofstream(directory.path() / "inside/model.safetensors.index.json")
        << index_of(R"({"x":")" + shard + "\"}");
    expect_parts(message_of<FileError>([&] { TensorFiles files(directory.path() / "inside"); }),
                 {"index.json", "not the name of a file in the directory"});
  }
}

}  // namespace
}  // namespace gated_attention
