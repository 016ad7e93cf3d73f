// Command lines: gflags underneath, with the behaviour that scripts and people expect from every
// Slackline program: `--help` grouped by topic, an unknown or malformed flag or a value out of
// range is one line on standard error (flag, value, what is allowed) and exit code 2.
//
// Only main.cc files include this. Libraries take a validated Options struct.
// Threading: call from main before other threads start.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace slackline {

inline constexpr int kExitUsage = 2;  // A flag is wrong; nothing was started.

struct FlagGroup {
  std::string_view title;               // "Training", "Transport", ...
  std::vector<std::string_view> flags;  // Names, without dashes, in the order of --help.
};

struct ProgramHelp {
  std::string_view name;      // "slackline-server"
  std::string_view summary;   // One or two sentences.
  std::string_view examples;  // Copy-paste lines, may be empty.
  std::vector<FlagGroup> groups;
};

// Parses all of argv (no positional arguments unless `positional` is given). Handles --help and
// --version (exit 0). Accepts --flag=value, --flag value, --bool, --nobool, one or two dashes.
// On an error prints one line and exits with kExitUsage.
void ParseFlags(int argc, char** argv, const ProgramHelp& help,
                std::vector<std::string>* positional = nullptr);

// "--staleness=-3: expected 0 (BSP), a bound > 0 (SSP) or 'async'": the one form of all messages.
Status FlagStatus(std::string_view flag, std::string_view value, std::string_view expected);
// Prints the status's message as one line on standard error and exits with kExitUsage, if not OK.
void ExitOnFlagError(const Status& status);

// Checks that a numeric flag lies in [low, high]; the flag's name for the message.
Status CheckRange(std::string_view flag, double value, double low, double high);
// Checks that a value is one of `allowed`.
Status CheckOneOf(std::string_view flag, std::string_view value,
                  std::span<const std::string_view> allowed);

// glog set up for a Slackline program: to standard error, one line an event with time, level,
// thread and source; crash stacks only for our own bugs (CHECK).
void InitLogging(const char* program);

}  // namespace slackline
