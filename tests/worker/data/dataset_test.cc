#include "worker/data/dataset.h"

#include <gmock/gmock.h>

#include "tests/worker/data/data_test_util.h"
#include "worker/data/batch.h"

namespace slackline::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Dataset> OpenSplit(const std::string& directory, const std::string& split = "train") {
  SLACKLINE_ASSIGN_OR_RETURN(const DataManifest manifest, ReadManifest(directory));
  return Dataset::Open(directory, manifest, split);
}

std::string ErrorOf(const std::string& directory, StatusCode code) {
  const auto result = OpenSplit(directory);
  EXPECT_FALSE(result.has_value());
  if (result) return {};
  EXPECT_EQ(result.error().code(), code) << result.error();
  return result.error().message();
}

TEST(DatasetTest, CopiesAcrossShards) {
  TempDirectory directory;
  WriteTestText(directory.path(), {"abc", "d", "efgh"}, {"xyz"});
  const auto data = OpenSplit(directory.path());
  ASSERT_TRUE(data.has_value()) << data.error();
  EXPECT_EQ(data->size_bytes(), 8u);
  for (size_t begin = 0; begin <= 8; ++begin) {
    for (size_t end = begin; end <= 8; ++end) {
      std::vector<uint8_t> out(end - begin);
      data->Copy(begin, out);
      EXPECT_EQ(std::string(out.begin(), out.end()),
                std::string("abcdefgh").substr(begin, end - begin));
    }
  }
}

TEST(DatasetTest, RefusesADamagedShardByNameAndChecksum) {
  TempDirectory directory;
  WriteTestText(directory.path(), {"123456789", "more"}, {"xyz"});
  WriteTestFile(directory.path() + "/train-0.bin", "123456780");
  // cbf43926 is the check value of CRC-32: that of "123456789".
  EXPECT_THAT(
      ErrorOf(directory.path(), StatusCode::kDataLoss),
      AllOf(HasSubstr("train-0.bin"), HasSubstr("expected CRC-32 cbf43926"), HasSubstr("found ")));
}

TEST(DatasetTest, RefusesATruncatedAndAMissingShardByName) {
  TempDirectory directory;
  WriteTestText(directory.path(), {"123456789", "more"}, {"xyz"});
  WriteTestFile(directory.path() + "/train-1.bin", "mor");
  EXPECT_THAT(ErrorOf(directory.path(), StatusCode::kDataLoss),
              AllOf(HasSubstr("train-1.bin"), HasSubstr("expected 4 bytes, found 3")));
  std::filesystem::remove(directory.path() + "/train-0.bin");
  EXPECT_THAT(ErrorOf(directory.path(), StatusCode::kNotFound), HasSubstr("train-0.bin"));
}

TEST(DatasetTest, NoManifestSaysHowToMakeOne) {
  TempDirectory directory;
  EXPECT_THAT(ErrorOf(directory.path(), StatusCode::kNotFound),
              AllOf(HasSubstr(directory.path()), HasSubstr("scripts/prepare_data")));
}

TEST(ManifestTest, NamesTheFieldThatIsWrong) {
  TempDirectory directory;
  const std::string path = directory.path() + "/manifest.json";
  const std::string head = R"({"format":"slackline-data","version":1,"kind":"text",)";
  const std::string shape = R"("record_bytes":1,"vocabulary":256,)";
  const auto entry = [&](const std::string& text) {
    return head + shape + R"("splits":{"train":[)" + text + "]}}";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not a JSON object"},
      {"[1,2]", "not a JSON object"},
      {R"({"format":"other"})", "'format'"},
      {R"({"format":"slackline-data","version":2})", "'version'"},
      {R"({"format":"slackline-data","version":1,"kind":"sound"})", "'kind'"},
      {head + R"("record_bytes":1,"vocabulary":300,"splits":{}})", "'vocabulary'"},
      {head + shape + R"("splits":[]})", "'splits'"},
      {entry(R"({"bytes":1,"crc32":"00000000"})"), "'file'"},
      {entry(R"({"file":"../x","bytes":1,"crc32":"00000000"})"), "'file'"},
      {entry(R"({"file":"x","bytes":-1,"crc32":"00000000"})"), "'bytes'"},
      {entry(R"({"file":"x","bytes":1,"crc32":"0000000g"})"), "'crc32'"},
      {entry(R"({"file":"x","bytes":1,"crc32":"0"})"), "'crc32'"},
      {entry("7"), "'file'"},
  };
  for (const auto& [text, expected] : cases) {
    WriteTestFile(path, text);
    const auto manifest = ReadManifest(directory.path());
    ASSERT_FALSE(manifest.has_value()) << text;
    EXPECT_EQ(manifest.error().code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(manifest.error().message(), AllOf(HasSubstr(path), HasSubstr(expected))) << text;
  }
}

TEST(ManifestTest, FingerprintFollowsTheContent) {
  TempDirectory a, b, c;
  WriteTestText(a.path(), {"text"}, {"val"});
  WriteTestText(b.path(), {"text"}, {"val"});
  WriteTestText(c.path(), {"tex2"}, {"val"});
  EXPECT_EQ(ReadManifest(a.path())->fingerprint, ReadManifest(b.path())->fingerprint);
  EXPECT_NE(ReadManifest(a.path())->fingerprint, ReadManifest(c.path())->fingerprint);
}

TEST(BatchBuilderTest, TargetsAreTheNextTokensInEveryWindowOfEveryPass) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i));
  TempDirectory directory;
  WriteTestText(directory.path(), {text.substr(0, 37), text.substr(37)}, {"xyz"});
  const auto data = OpenSplit(directory.path());
  const auto builder = BatchBuilder::Create(*data, 8, /*seed=*/5, /*shift=*/true);
  ASSERT_TRUE(builder.has_value());
  EXPECT_EQ(builder->samples(), 11u);
  std::vector<int64_t> shifts;
  for (uint64_t pass = 0; pass < 16; ++pass) {
    Batch batch;
    ASSERT_TRUE(builder->Fill({{{pass, 0}, {pass, builder->samples() - 1}}}, batch).ok());
    ASSERT_EQ(batch.tokens.size(), 16u);
    ASSERT_EQ(batch.targets.size(), 16u);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
    EXPECT_EQ(batch.tokens[8] - batch.tokens[0], 80);
    shifts.push_back(batch.tokens[0]);
  }
  // The passes cut the text in different places.
  EXPECT_NE(*std::min_element(shifts.begin(), shifts.end()),
            *std::max_element(shifts.begin(), shifts.end()));
}

TEST(BatchBuilderTest, ValidationIsNotShifted) {
  TempDirectory directory;
  WriteTestText(directory.path(), {"abcdefghij"}, {"xyz"});
  const auto data = OpenSplit(directory.path());
  const auto builder = BatchBuilder::Create(*data, 3, 5, /*shift=*/false);
  Batch batch;
  ASSERT_TRUE(builder->Fill({{{3, 1}}}, batch).ok());
  EXPECT_THAT(batch.tokens, ElementsAre('d', 'e', 'f'));
  EXPECT_THAT(batch.targets, ElementsAre('e', 'f', 'g'));
}

TEST(BatchBuilderTest, TooLittleDataForOneSample) {
  TempDirectory directory;
  WriteTestText(directory.path(), {"abc"}, {"xyz"});
  const auto data = OpenSplit(directory.path());
  const auto builder = BatchBuilder::Create(*data, 3, 5, true);
  ASSERT_FALSE(builder.has_value());
  EXPECT_THAT(builder.error().message(), HasSubstr("3 bytes for a context of 3"));
}

TEST(BatchBuilderTest, ImagesAreScaledAndLabelsChecked) {
  TempDirectory directory;
  WriteTestImages(directory.path(), std::string("\x01\x00\x08\x03\x04\x02\x04\x01\x01", 9));
  const auto data = OpenSplit(directory.path());
  ASSERT_TRUE(data.has_value()) << data.error();
  const auto builder = BatchBuilder::Create(*data, 0, 1, true);
  EXPECT_EQ(builder->samples(), 3u);
  Batch batch;
  ASSERT_TRUE(builder->Fill({{{0, 0}, {0, 1}}}, batch).ok());
  EXPECT_THAT(batch.pixels, ElementsAre(0.0f, 1.0f, 0.5f, 0.25f));
  EXPECT_THAT(batch.targets, ElementsAre(1, 3));
  const Status status = builder->Fill({{{0, 2}}}, batch);  // Label 4 of 4 classes.
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("label 4 of record 2"));
}

}  // namespace
}  // namespace slackline::worker
