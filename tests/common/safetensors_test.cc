#include "common/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/byte_order.h"
#include "common/random.h"
#include "tests/testing/temp_directory.h"

namespace slackline {
namespace {

using slackline::testing::TempDirectory;
using ::testing::HasSubstr;

ConstBytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string MakeFile(std::string_view header, std::string_view data) {
  std::string length(8, '\0');
  StoreLe<uint64_t>(reinterpret_cast<std::byte*>(length.data()), header.size());
  return length.append(header).append(data);
}

// The header of one F32 tensor of two elements and a U8 tensor of three.
constexpr std::string_view kGoodHeader = R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
                                         R"("__metadata__":{"k":"v"},)"
                                         R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(ParseSafetensors, ReadsAnotherWritersFile) {
  const std::string file = MakeFile(kGoodHeader, std::string(11, 'x'));
  const auto index = ParseSafetensors(AsBytes(file));
  ASSERT_TRUE(index) << index.error();
  EXPECT_EQ(index->data_offset, 8 + kGoodHeader.size());
  ASSERT_EQ(index->tensors.size(), 2u);
  EXPECT_EQ(index->tensors[0].name, "a");
  EXPECT_EQ(index->tensors[0].count(), 2u);
  EXPECT_EQ(index->tensors[1].name, "b");
  EXPECT_EQ(index->tensors[1].dtype, TensorDtype::kU8);
  EXPECT_EQ(index->metadata.at("k"), "v");
}

TEST(ParseSafetensors, EveryTruncationIsRefused) {
  const std::string file = MakeFile(kGoodHeader, std::string(11, 'x'));
  for (size_t size = 0; size < file.size(); ++size) {
    const auto index = ParseSafetensors(AsBytes(file).first(size));
    ASSERT_FALSE(index) << size;
    ASSERT_EQ(index.error().code(), StatusCode::kDataLoss) << size;
  }
}

TEST(ParseSafetensors, AnyByteMayChangeWithoutHarm) {
  const std::string good = MakeFile(kGoodHeader, std::string(11, 'x'));
  Rng rng(11);
  for (size_t at = 0; at < good.size(); ++at) {
    for (int tries = 0; tries < 8; ++tries) {
      std::string file = good;
      file[at] = static_cast<char>(rng.Next());
      const auto index = ParseSafetensors(AsBytes(file));
      if (!index) continue;
      for (const TensorEntry& tensor : index->tensors) {
        ASSERT_LE(tensor.begin, tensor.end);
        ASSERT_LE(index->data_offset + tensor.end, file.size());
      }
    }
  }
}

struct BadCase {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* reason;  // Part of the message.
};

std::string OneTensor(const std::string& body) { return R"({"t":)" + body + "}"; }

class MalformedTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(MalformedTest, IsDataLossWithTheReason) {
  const BadCase& bad = GetParam();
  const auto index =
      ParseSafetensors(AsBytes(MakeFile(bad.header, std::string(bad.data_bytes, 0))));
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().code(), StatusCode::kDataLoss);
  EXPECT_THAT(index.error().message(), HasSubstr(bad.reason));
}

INSTANTIATE_TEST_SUITE_P(
    Headers, MalformedTest,
    ::testing::Values(
        BadCase{"NotJson", "nonsense", 0, "not a JSON object"},
        BadCase{"Empty", "", 0, "not a JSON object"}, BadCase{"List", "[]", 0, "not a JSON object"},
        BadCase{"Unfinished", R"({"t":)", 0, "not a JSON object"},
        BadCase{"TrailingText", "{} x", 0, "not a JSON object"},
        BadCase{"NotUtf8", "{\"\xff\":1}", 0, "not a JSON object"},
        BadCase{"TooDeep", std::string(50'000, '['), 0, "too deep"},
        BadCase{"TensorIsNumber", OneTensor("1"), 0, "expected an object"},
        BadCase{"ExtraKey", OneTensor(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0})"),
                1, "expected an object"},
        BadCase{"NoDtype", OneTensor(R"({"d":"U8","shape":[1],"data_offsets":[0,1]})"), 1,
                "dtype is missing"},
        BadCase{"DtypeIsNumber", OneTensor(R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})"), 1,
                "dtype is missing"},
        BadCase{"UnknownDtype", OneTensor(R"({"dtype":"F8","shape":[1],"data_offsets":[0,1]})"), 1,
                "unknown dtype 'F8'"},
        BadCase{"NoShape", OneTensor(R"({"dtype":"U8","s":[1],"data_offsets":[0,1]})"), 1,
                "shape is missing"},
        BadCase{"NegativeShape", OneTensor(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"),
                1, "no whole number"},
        BadCase{"FractionalShape",
                OneTensor(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"), 1,
                "no whole number"},
        BadCase{"ShapeBeyond64Bits",
                OneTensor(R"({"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]})"),
                1, "no whole number"},
        BadCase{
            "ShapeOverflows",
            OneTensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0,
            "too many bytes"},
        BadCase{"OffsetsAreOne", OneTensor(R"({"dtype":"U8","shape":[1],"data_offsets":[1]})"), 1,
                "not a pair"},
        BadCase{"OffsetsAreThree",
                OneTensor(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})"), 1,
                "data_offsets is missing"},
        BadCase{"OffsetsBackwards", OneTensor(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"),
                1, "not inside"},
        BadCase{"OffsetsBeyondTheFile",
                OneTensor(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})"), 1, "not inside"},
        BadCase{"ShapeDoesNotFit", OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
                4, "shape needs 8 bytes"},
        BadCase{"HoleAtTheStart", OneTensor(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})"),
                2, "hole"},
        BadCase{"DataNobodyOwns", OneTensor(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})"),
                2, "tensors end at byte 1"},
        BadCase{"Overlap",
                R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                3, "overlap"},
        BadCase{"SameRangeTwice",
                R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                2, "overlap"},
        BadCase{"SameNameTwice",
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1, "'a' twice"},
        BadCase{"SameFieldTwice",
                OneTensor(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})"), 1,
                "'dtype' twice"},
        BadCase{"MetadataIsList", R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
        BadCase{"MetadataIsNumber", R"({"__metadata__":{"k":1}})", 0, "'k' is not a string"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ParseSafetensors, HeaderLengthIsHeldAgainstTheFileAndTheLimit) {
  for (const uint64_t length : {uint64_t{3}, kMaxSafetensorsHeaderBytes,
                                kMaxSafetensorsHeaderBytes + 1, UINT64_MAX - 7, UINT64_MAX}) {
    std::string file(10, '{');
    StoreLe(reinterpret_cast<std::byte*>(file.data()), length);
    const auto index = ParseSafetensors(AsBytes(file));
    ASSERT_FALSE(index) << length;
    EXPECT_THAT(index.error().message(), HasSubstr("header is said to have"));
  }
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TempDirectory directory;
  const std::string path = directory.Path("f.safetensors");
  const std::vector<TensorDeclaration> tensors = {{"z.weight", TensorDtype::kF32, {2, 3}},
                                                  {"empty", TensorDtype::kF16, {0, 7}},
                                                  {"a \"quoted\"", TensorDtype::kI64, {}}};
  auto writer = SafetensorsWriter::Create(path, tensors, {{"step", "7"}});
  ASSERT_TRUE(writer) << writer.error();
  const std::vector<float> weights = {1, -2, 3.5f, 0, 1e-30f, 6};
  const ConstBytes bytes = std::as_bytes(std::span(weights));
  ASSERT_TRUE(writer->Append(bytes.first(5)).ok());  // Pieces need not end at elements.
  ASSERT_TRUE(writer->Append(bytes.subspan(5)).ok());
  const int64_t scalar = -9;
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span(&scalar, 1))).ok());
  const auto digest = writer->Finish();
  ASSERT_TRUE(digest) << digest.error();
  EXPECT_EQ(*digest, HashFile(path).value_or(FileDigest{}));

  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader) << reader.error();
  EXPECT_EQ(reader->metadata().at("step"), "7");
  ASSERT_EQ(reader->tensors().size(), 3u);
  EXPECT_EQ(reader->tensors()[0].name, "z.weight");
  std::vector<float> read(6);
  ASSERT_TRUE(reader->CopyFloats("z.weight", read).ok());
  EXPECT_EQ(read, weights);
  const TensorEntry* last = reader->Find("a \"quoted\"");
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->shape.size(), 0u);
  EXPECT_EQ(std::bit_cast<int64_t>(LoadLe<uint64_t>(reader->Data(*last).data())), scalar);
  EXPECT_EQ(reader->Find("none"), nullptr);
}

TEST(Safetensors, DataStartsAligned) {
  const TempDirectory directory;
  for (const std::string name :
       {"t", "tt", "ttt", "tttt", "ttttt", "tttttt", "ttttttt", "8ttttttt"}) {
    auto writer =
        SafetensorsWriter::Create(directory.Path(name), {{name, TensorDtype::kU8, {1}}}, {});
    ASSERT_TRUE(writer) << writer.error();
    ASSERT_TRUE(writer->Append(AsBytes("x")).ok());
    ASSERT_TRUE(writer->Finish()) << name;
    const auto file = ReadFile(directory.Path(name), 10'000);
    ASSERT_TRUE(file);
    EXPECT_EQ(ParseSafetensors(AsBytes(*file))->data_offset % 8, 0u);
  }
}

TEST(Safetensors, CopyFloatsChecksNameTypeAndSize) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  ASSERT_TRUE(WriteFileAtomically(path, MakeFile(kGoodHeader, std::string(11, 'x'))).ok());
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader) << reader.error();
  std::vector<float> two(2);
  std::vector<float> three(3);
  EXPECT_TRUE(reader->CopyFloats("a", two).ok());
  EXPECT_EQ(reader->CopyFloats("none", two).code(), StatusCode::kNotFound);
  EXPECT_EQ(reader->CopyFloats("a", three).code(), StatusCode::kInvalidArgument);
  const Status wrong_type = reader->CopyFloats("b", two);
  EXPECT_EQ(wrong_type.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong_type.message(), HasSubstr("U8 of 3 elements"));
}

TEST(SafetensorsReader, NamesTheFileInEveryError) {
  const TempDirectory directory;
  const std::string path = directory.Path("damaged");
  ASSERT_TRUE(WriteFileAtomically(path, "short").ok());
  const auto damaged = SafetensorsReader::Open(path);
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message(), HasSubstr(path));
  const auto missing = SafetensorsReader::Open(directory.Path("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
}

TEST(SafetensorsWriter, RefusesBadDeclarations) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  const auto create = [&](const std::vector<TensorDeclaration>& tensors,
                          const SafetensorsMetadata& metadata) {
    const auto writer = SafetensorsWriter::Create(path, tensors, metadata);
    return writer ? OkStatus() : writer.error();
  };
  using D = TensorDtype;
  const auto invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(create({{"a", D::kU8, {1}}, {"a", D::kU8, {1}}}, {}).code(), invalid);
  EXPECT_EQ(create({{"__metadata__", D::kU8, {1}}}, {}).code(), invalid);
  EXPECT_EQ(create({{"\xff", D::kU8, {1}}}, {}).code(), invalid);
  EXPECT_EQ(create({}, {{"k", "\xff"}}).code(), invalid);
  EXPECT_EQ(create({{"a", D::kF32, {uint64_t{1} << 62}}}, {}).code(), invalid);
  EXPECT_EQ(create({{"a", D::kU8, {UINT64_MAX}}, {"b", D::kU8, {1}}}, {}).code(), invalid);
}

TEST(SafetensorsWriter, TooManyAndTooFewBytesAreRefused) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  auto writer = SafetensorsWriter::Create(path, {{"a", TensorDtype::kU8, {4}}}, {});
  ASSERT_TRUE(writer) << writer.error();
  EXPECT_EQ(writer->Append(AsBytes("12345")).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer->Append(AsBytes("123")).ok());
  const auto early = writer->Finish();
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), StatusCode::kFailedPrecondition);
  // As after a crash at this moment.
  EXPECT_FALSE(SafetensorsReader::Open(path));
}

}  // namespace
}  // namespace slackline
