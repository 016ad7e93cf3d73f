// Flags as a user meets them: through a program's exit code and what it prints.
#include "common/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/subprocess.h"

namespace slackline {
namespace {

using slackline::testing::RunProgram;
using slackline::testing::SubprocessResult;
using ::testing::HasSubstr;
using ::testing::Not;

SubprocessResult RunFlags(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SLACKLINE_FLAGS_PROGRAM);
  return RunProgram(arguments);
}

TEST(Flags, DefaultsAndEverySpelling) {
  EXPECT_EQ(RunFlags({}).out, "300 1048576 0 1 0.001 0 tcp\n");
  const SubprocessResult all =
      RunFlags({"--steps=5", "-chunk_bytes=64", "--offset", "-3", "--seed", "18446744073709551615",
                "--learning_rate=2e-1", "--deterministic", "-transport", "sim"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(all.out, "5 64 -3 18446744073709551615 0.2 1 sim\n");
  EXPECT_EQ(RunFlags({"--deterministic", "--nodeterministic"}).out, RunFlags({}).out);
  EXPECT_EQ(RunFlags({"--deterministic=true"}).out, "300 1048576 0 1 0.001 1 tcp\n");
  EXPECT_EQ(RunFlags({"--steps=5", "--steps=6"}).out, "6 1048576 0 1 0.001 0 tcp\n");
  EXPECT_EQ(RunFlags({"--v=1", "--"}).exit_code, 0);
}

struct BadCommand {
  const char* name;
  std::vector<std::string> arguments;
  std::string message;  // The whole of standard error, or its start when it ends in "...".
};

class BadCommandTest : public ::testing::TestWithParam<BadCommand> {};

TEST_P(BadCommandTest, IsOneLineAndExitCode2) {
  const BadCommand& bad = GetParam();
  const SubprocessResult result = RunFlags(bad.arguments);
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.err, bad.message + "\n");
}

const char kInt32[] = "a whole number from -2147483648 to 2147483647";
const char kUint64[] = "a whole number, at least 0, of at most 64 bits";

INSTANTIATE_TEST_SUITE_P(
    Commands, BadCommandTest,
    ::testing::Values(
        BadCommand{"Unknown", {"--xyzzy=1"}, "--xyzzy: no such flag (--help lists all)"},
        BadCommand{"Misspelt",
                   {"--step=1"},
                   "--step: no such flag; did you mean --steps? (--help lists all)"},
        BadCommand{"Unlisted", {"--hidden=1"}, "--hidden: no such flag (--help lists all)"},
        BadCommand{
            "GflagsOwn", {"--flagfile=/etc/passwd"}, "--flagfile: no such flag (--help lists all)"},
        BadCommand{"NoName", {"--=1"}, "--: no such flag (--help lists all)"},
        BadCommand{"NegatedNumber",
                   {"--nosteps"},
                   "--nosteps: no such flag; did you mean --steps? (--help lists all)"},
        BadCommand{
            "NegatedWithValue",
            {"--nodeterministic=1"},
            "--nodeterministic: no such flag; did you mean --deterministic? (--help lists all)"},
        BadCommand{"NotANumber", {"--steps=many"}, std::string("--steps=many: expected ") + kInt32},
        BadCommand{"Fraction", {"--steps=1.5"}, std::string("--steps=1.5: expected ") + kInt32},
        BadCommand{"EmptyNumber", {"--steps="}, std::string("--steps=: expected ") + kInt32},
        BadCommand{"TooLarge",
                   {"--steps=2147483648"},
                   std::string("--steps=2147483648: expected ") + kInt32},
        BadCommand{"TrailingText", {"--steps=5x"}, std::string("--steps=5x: expected ") + kInt32},
        BadCommand{"Negative", {"--seed=-1"}, std::string("--seed=-1: expected ") + kUint64},
        BadCommand{"Negative32",
                   {"--chunk_bytes", "-1"},
                   "--chunk_bytes=-1: expected a whole number from 0 to 4294967295"},
        BadCommand{
            "NotADouble", {"--learning_rate=fast"}, "--learning_rate=fast: expected a number"},
        BadCommand{"NotABool",
                   {"--deterministic=maybe"},
                   "--deterministic=maybe: expected true or false, on or off"},
        BadCommand{
            "NoValue", {"--steps"}, std::string("--steps: needs a value, expected ") + kInt32},
        BadCommand{"FlagIsNoValue",
                   {"--transport", "--steps=5"},
                   "--transport: needs a value, expected a text"},
        BadCommand{"Range", {"--steps=0"}, "--steps=0: expected a number from 1 to 1000000"},
        BadCommand{
            "NaN", {"--learning_rate=nan"}, "--learning_rate=nan: expected a number from 0 to 10"},
        BadCommand{"Choice", {"--transport=smoke"}, "--transport=smoke: expected one of tcp, sim"},
        BadCommand{"ControlCharacters",
                   {"--transport=a\nb\x1b[31m"},
                   "--transport=a?b?[31m: expected one of tcp, sim"},
        BadCommand{"Positional",
                   {"train"},
                   "train: this program takes flags only (--flag=value); see --help"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Flags, PositionalArgumentsWhereAProgramTakesThem) {
  const SubprocessResult result = RunFlags({"--seed=99", "one", "--steps=5", "--", "--two"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "5 1048576 0 99 0.001 0 tcp [one] [--two]\n");
}

TEST(Flags, SwitchesTakeOnAndOff) {
  EXPECT_EQ(RunFlags({"--deterministic=on"}).out, RunFlags({"--deterministic"}).out);
  EXPECT_EQ(RunFlags({"--deterministic=off"}).out, RunFlags({"--nodeterministic"}).out);
  EXPECT_NE(RunFlags({"--deterministic=on"}).out, RunFlags({"--deterministic=off"}).out);
}

TEST(Flags, HelpIsGroupedAndWinsOverMistakes) {
  const SubprocessResult help = RunFlags({"--steps=5", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_THAT(help.out, HasSubstr("flags-program: Prints its flags."));
  EXPECT_THAT(help.out, HasSubstr("\nTraining:\n  --steps (int32, default 300)\n"
                                  "      Training steps.\n  --learning_rate"));
  EXPECT_THAT(help.out, HasSubstr("\nTransport:\n"));
  EXPECT_THAT(help.out, HasSubstr("\nLogging:\n"));
  EXPECT_THAT(help.out, HasSubstr("Examples:\n  flags-program --steps=5\n"));
  EXPECT_THAT(help.out, Not(HasSubstr("hidden")));
  EXPECT_EQ(RunFlags({"--help", "--steps=many"}).exit_code, 0);
}

TEST(Flags, VersionPrintsOneLine) {
  const SubprocessResult version = RunFlags({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, ::testing::MatchesRegex("flags-program [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(CheckRange, EndsBelongToTheRange) {
  EXPECT_TRUE(CheckRange("f", 1, 1, 2).ok());
  EXPECT_TRUE(CheckRange("f", 2, 1, 2).ok());
  EXPECT_FALSE(CheckRange("f", std::nextafter(2.0, 3.0), 1, 2).ok());
  EXPECT_FALSE(CheckRange("f", std::numeric_limits<double>::quiet_NaN(), 1, 2).ok());
  EXPECT_FALSE(CheckRange("f", HUGE_VAL, 1, 1e300).ok());
}

}  // namespace
}  // namespace slackline
