#include "worker/trainer/trained_model.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>
#include <span>

#include "common/file.h"
#include "common/hash.h"
#include "common/safetensors.h"
#include "tests/worker/data/data_test_util.h"

namespace slackline::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig Mlp() {
  ModelConfig config;
  config.kind = ModelConfig::Kind::kMlp;
  config.mlp = {.features = 3, .classes = 2, .hidden = {}};
  return config;  // A 2 x 3 matrix and 2 biases.
}

std::string Quoted(std::string text) {
  for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return "\"" + text + "\"";
}

// Writes tensors of floats.
void WriteTensors(const std::string& path,
                  const std::vector<std::pair<std::string, std::vector<float>>>& tensors,
                  const SafetensorsMetadata& metadata) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& [name, values] : tensors) {
    declarations.push_back({name, TensorDtype::kF32, {values.size()}});
  }
  auto writer = SafetensorsWriter::Create(path, declarations, metadata);
  ASSERT_TRUE(writer.has_value()) << writer.error();
  for (const auto& [name, values] : tensors) {
    ASSERT_TRUE(writer->Append(std::as_bytes(std::span(values))).ok());
  }
  ASSERT_TRUE(writer->Finish().has_value());
}

class TrainedModelTest : public ::testing::Test {
 protected:
  // A checkpoint of two shards: chunk 0 (5 elements) in the second, chunk 1 (3) in the first.
  void WriteCheckpoint(const std::string& directory, float first, const std::string& config,
                       const std::string& chunk_one = R"("flat_offset":5,"count":3)") {
    ASSERT_TRUE(CreateDirectories(directory).ok());
    WriteTensors(directory + "/a.safetensors", {{"chunk.1.weights", {6, 7, 8}}}, {});
    WriteTensors(directory + "/b.safetensors", {{"chunk.0.weights", {first, 2, 3, 4, 5}}}, {});
    std::string files;
    for (const char* name : {"a.safetensors", "b.safetensors"}) {
      const FileDigest digest = HashFile(directory + "/" + name).value();
      files += (files.empty() ? "" : ",") + std::string(R"({"name":")") + name + R"(","bytes":)" +
               std::to_string(digest.bytes) + R"(,"xxh3":")" + HashToHex(digest.xxh3) + R"("})";
    }
    WriteTestFile(directory + "/manifest.json",
                  R"({"version":1,"job":{"model_config_json":)" + Quoted(config) +
                      R"(},"tensors":[{"name":"layers.0.weight","shape":[2,3]},)"
                      R"({"name":"layers.0.bias","shape":[2]}],"files":[)" +
                      files + R"(],"chunks":[{"index":0,"flat_offset":0,"count":5,"file":1},)" +
                      R"({"index":1,"file":0,)" + chunk_one + "}]}");
  }

  std::string Error(const std::string& path, StatusCode code) {
    const auto model = ReadTrainedModel(path);
    EXPECT_FALSE(model.has_value());
    if (model) return {};
    EXPECT_EQ(model.error().code(), code) << model.error();
    return model.error().message();
  }

  TempDirectory root_;
};

TEST_F(TrainedModelTest, ReadsTheLatestCheckpointOfADirectory) {
  WriteCheckpoint(root_.path() + "/step-00000009", 9, ModelConfigJson(Mlp()));
  WriteCheckpoint(root_.path() + "/step-00000010", 1, ModelConfigJson(Mlp()));
  // One that was not finished has no manifest.
  ASSERT_TRUE(CreateDirectories(root_.path() + "/step-00000011").ok());
  const auto latest = ReadTrainedModel(root_.path());
  ASSERT_TRUE(latest.has_value()) << latest.error();
  EXPECT_EQ(latest->config, Mlp());
  EXPECT_EQ(latest->weights, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_THAT(latest->source, HasSubstr("step-00000010"));
  const auto named = ReadTrainedModel(root_.path() + "/step-00000009");
  ASSERT_TRUE(named.has_value()) << named.error();
  EXPECT_EQ(named->weights[0], 9);
}

TEST_F(TrainedModelTest, ReadsAMergedFile) {
  const std::string path = root_.path() + "/model.safetensors";
  WriteTensors(path, {{"layers.0.bias", {7, 8}}, {"layers.0.weight", {1, 2, 3, 4, 5, 6}}},
               {{"model_config", ModelConfigJson(Mlp())}});
  const auto model = ReadTrainedModel(path);
  ASSERT_TRUE(model.has_value()) << model.error();
  EXPECT_EQ(model->weights, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(TrainedModelTest, DamageIsNamed) {
  const std::string directory = root_.path() + "/step-00000001";
  WriteCheckpoint(directory, 1, ModelConfigJson(Mlp()));
  std::string bytes = ReadFile(directory + "/b.safetensors", 1 << 20).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteTestFile(directory + "/b.safetensors", bytes);
  EXPECT_THAT(Error(directory, StatusCode::kDataLoss),
              AllOf(HasSubstr("b.safetensors"), HasSubstr("expected"), HasSubstr("found")));
  std::filesystem::remove(directory + "/b.safetensors");
  EXPECT_THAT(Error(directory, StatusCode::kNotFound), HasSubstr("b.safetensors"));
}

TEST_F(TrainedModelTest, ChunksMustTileTheModel) {
  const std::string directory = root_.path() + "/step-00000001";
  for (const char* chunk :
       {R"("flat_offset":4,"count":3)", R"("flat_offset":5,"count":4)",
        R"("flat_offset":5,"count":2)", R"("flat_offset":5,"count":18446744073709551615)"}) {
    WriteCheckpoint(directory, 1, ModelConfigJson(Mlp()), chunk);
    EXPECT_FALSE(ReadTrainedModel(directory).has_value()) << chunk;
  }
}

TEST_F(TrainedModelTest, AnotherModelAndWhatIsNoCheckpoint) {
  ModelConfig other = Mlp();
  other.mlp.features = 4;
  WriteCheckpoint(root_.path() + "/step-00000001", 1, ModelConfigJson(other));
  EXPECT_THAT(Error(root_.path(), StatusCode::kInvalidArgument), HasSubstr("another model"));
  WriteCheckpoint(root_.path() + "/step-00000001", 1, R"({"model":"own"})");
  EXPECT_THAT(Error(root_.path(), StatusCode::kInvalidArgument), HasSubstr("gpt or mlp"));
  WriteTestFile(root_.path() + "/step-00000001/manifest.json", R"({"job":7})");
  EXPECT_THAT(Error(root_.path(), StatusCode::kDataLoss), HasSubstr("manifest.json"));
  WriteTestFile(root_.path() + "/step-00000001/manifest.json", "{");
  EXPECT_THAT(Error(root_.path(), StatusCode::kDataLoss), HasSubstr("manifest.json"));
  EXPECT_THAT(Error(root_.path() + "/none", StatusCode::kNotFound), HasSubstr("none"));
  std::filesystem::remove_all(root_.path() + "/step-00000001");
  EXPECT_THAT(Error(root_.path(), StatusCode::kNotFound), HasSubstr("step-*"));
  WriteTensors(root_.path() + "/x.safetensors", {{"t", {1}}}, {});
  EXPECT_THAT(Error(root_.path() + "/x.safetensors", StatusCode::kInvalidArgument),
              HasSubstr("slackline-merge"));
  WriteTestFile(root_.path() + "/y.safetensors", "no");
  EXPECT_THAT(Error(root_.path() + "/y.safetensors", StatusCode::kDataLoss),
              HasSubstr("y.safetensors"));
}

}  // namespace
}  // namespace slackline::worker
