#include "common/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/hash.h"
#include "tests/testing/temp_directory.h"

namespace slackline {
namespace {

using slackline::testing::TempDirectory;
using ::testing::HasSubstr;

constexpr size_t kPlenty = size_t{1} << 24;

std::string MustRead(const std::string& path) {
  const auto text = ReadFile(path, kPlenty);
  EXPECT_TRUE(text) << (text ? Status() : text.error());
  return text.value_or("");
}

TEST(ReadFile, RespectsItsBound) {
  const TempDirectory directory;
  const std::string path = directory.Path("five");
  ASSERT_TRUE(WriteFileAtomically(path, "12345").ok());
  EXPECT_EQ(ReadFile(path, 5).value_or("error"), "12345");
  const auto refused = ReadFile(path, 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr(path));
}

TEST(ReadFile, EndlessFileIsCutByTheBoundNotByItsStatedSize) {
  const auto refused = ReadFile("/dev/zero", 100'000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
}

TEST(ReadFile, FileOfUnstatedSizeIsReadWhole) {
  const auto text = ReadFile("/proc/self/status", kPlenty);
  ASSERT_TRUE(text) << text.error();
  EXPECT_THAT(*text, HasSubstr("Pid:"));
}

TEST(ReadFile, MissingFileIsNotFoundByName) {
  const auto missing = ReadFile("/no/such/file", 1);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("/no/such/file"));
}

TEST(WriteFileAtomically, ReplacesAndLeavesNoTemporary) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  ASSERT_TRUE(WriteFileAtomically(path, "old and longer").ok());
  ASSERT_TRUE(WriteFileAtomically(path, std::string("n\0w", 3)).ok());
  EXPECT_EQ(MustRead(path), std::string("n\0w", 3));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(WriteFileAtomically, FailureKeepsTheOldFileAndCleansUp) {
  const TempDirectory directory;
  // The target is a directory with something in it, so that the last step, the rename, fails.
  const std::string path = directory.Path("taken");
  ASSERT_TRUE(CreateDirectories(path + "/inside").ok());
  EXPECT_FALSE(WriteFileAtomically(path, "text").ok());
  EXPECT_TRUE(std::filesystem::exists(path + "/inside"));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(WriteFileAtomically(directory.Path("no/such/f"), "x").code(), StatusCode::kNotFound);
}

TEST(WriteFileAtomically, ReadersAndAKillSeeWholeVersionsOnly) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  constexpr size_t kBytes = 300'000;
  constexpr int kReads = 200;
  ASSERT_TRUE(WriteFileAtomically(path, std::string(kBytes, 'a')).ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (char letter = 'a';; letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) {
      if (!WriteFileAtomically(path, std::string(kBytes, letter)).ok()) _exit(1);
    }
  }
  const auto expect_whole = [&] {
    const std::string text = MustRead(path);
    ASSERT_EQ(text.size(), kBytes);
    ASSERT_EQ(text.find_first_not_of(text[0]), std::string::npos);
  };
  for (int i = 0; i < kReads; ++i) expect_whole();
  int wait_status = 0;
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(wait_status)) << "the writer failed before it was killed";
  expect_whole();
}

TEST(WriteAll, FullDeviceIsResourceExhaustedAndSaysHowMuchIsFree) {
  const Fd full(open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full.valid());
  const Status status = WriteAll(full, std::as_bytes(std::span("x")), "/dev/full");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/dev/full"));
  EXPECT_THAT(status.message(), HasSubstr("MiB free"));
}

TEST(RenameDurably, MovesADirectoryOverNothing) {
  const TempDirectory directory;
  ASSERT_TRUE(CreateDirectories(directory.Path("a/b")).ok());
  ASSERT_TRUE(RenameDurably(directory.Path("a"), directory.Path("c")).ok());
  EXPECT_TRUE(std::filesystem::exists(directory.Path("c/b")));
  const Status missing = RenameDurably(directory.Path("a"), directory.Path("d"));
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(directory.Path("a")));
}

TEST(CreateDirectories, AcceptsWhatExistsAndRefusesAFileInTheWay) {
  const TempDirectory directory;
  EXPECT_TRUE(CreateDirectories(directory.Path("x/y/z")).ok());
  EXPECT_TRUE(CreateDirectories(directory.Path("x/y/z")).ok());
  ASSERT_TRUE(WriteFileAtomically(directory.Path("file"), "").ok());
  const Status status = CreateDirectories(directory.Path("file/sub"));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(directory.Path("file/sub")));
}

TEST(HashFile, EqualsTheHashOfItsBytes) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  const std::string text(3'000'001, 'q');  // Several pieces, the last one not full.
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  const auto digest = HashFile(path);
  ASSERT_TRUE(digest) << digest.error();
  EXPECT_EQ(*digest, (FileDigest{text.size(), Hash64(std::as_bytes(std::span(text)))}));
}

TEST(MappedFile, ShowsTheBytesAndSurvivesAReplacement) {
  const TempDirectory directory;
  const std::string path = directory.Path("f");
  ASSERT_TRUE(WriteFileAtomically(path, "mapped").ok());
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file) << file.error();
  ASSERT_TRUE(WriteFileAtomically(path, "other").ok());
  const MappedFile moved = std::move(*file);
  ASSERT_EQ(moved.bytes().size(), 6u);
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'm');
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, EmptyIsFineADirectoryIsNot) {
  const TempDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.Path("empty"), "").ok());
  const auto empty = MappedFile::Open(directory.Path("empty"));
  ASSERT_TRUE(empty) << empty.error();
  EXPECT_TRUE(empty->bytes().empty());
  const auto refused = MappedFile::Open(directory.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
}

TEST(Fd, ClosesWhenReplacedAndWhenItGoes) {
  int first;
  {
    Fd fd(open("/dev/null", O_RDONLY));
    first = fd.get();
    fd = Fd(open("/dev/zero", O_RDONLY));
    EXPECT_EQ(fcntl(first, F_GETFD), -1);
    first = fd.get();
  }
  EXPECT_EQ(fcntl(first, F_GETFD), -1);
}

}  // namespace
}  // namespace slackline
