#include "common/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <sstream>

namespace slackline {
namespace {

using ::testing::HasSubstr;

Result<int> Half(int value) {
  if (value % 2 != 0) return Err(InvalidArgument(std::to_string(value) + " is odd"));
  return value / 2;
}

Result<int> Quarter(int value) {
  SLACKLINE_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

Status CheckDivisibleBy4(int value) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const int half, Half(value));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS([[maybe_unused]] const int quarter, Half(half));
  return OkStatus();
}

TEST(Status, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(Quarter(12).value_or(-1), 3);
  const auto error = Quarter(6);
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error(), InvalidArgument("3 is odd"));
  EXPECT_TRUE(CheckDivisibleBy4(8).ok());
  EXPECT_EQ(CheckDivisibleBy4(6), InvalidArgument("3 is odd"));
}

TEST(Status, MoveOnlyValuesTravel) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto use = [&]() -> Result<int> {
    SLACKLINE_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, make());
    return *value;
  };
  EXPECT_EQ(use().value_or(0), 5);
}

TEST(Status, PrintsItsCodeAndMessage) {
  std::ostringstream out;
  out << DataLoss("torn") << " " << OkStatus();
  EXPECT_EQ(out.str(), "DATA_LOSS: torn OK");
}

TEST(Status, EveryCodeHasItsOwnName) {
  EXPECT_EQ(StatusCodeName(StatusCode::kInternal), "INTERNAL");
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    EXPECT_NE(StatusCodeName(static_cast<StatusCode>(code)), "UNKNOWN") << code;
  }
}

TEST(ErrnoStatus, MapsTheErrorsThatCallersActOn) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EADDRINUSE, "x").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(ECONNRESET, "x").code(), StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EIO, "x").code(), StatusCode::kInternal);
  EXPECT_THAT(ErrnoStatus(ENOENT, "opening f").message(),
              HasSubstr("opening f: No such file or directory (errno 2)"));
}

}  // namespace
}  // namespace slackline
