#include "common/flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

namespace slackline {
namespace {

using FlagInfo = google::CommandLineFlagInfo;

// Every program has these, of glog, besides its own.
const FlagGroup& LoggingGroup() {
  static const FlagGroup group{"Logging", {"minloglevel", "v", "vmodule"}};
  return group;
}

// Messages are one line whatever the value holds: control characters show as '?'.
std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return line;
}

// Levenshtein distance, for "did you mean"; flag names are short.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// What a value of the flag's type looks like.
std::string_view ExpectedOfType(std::string_view type) {
  if (type == "bool") return "true or false, on or off";
  if (type == "int32") return "a whole number from -2147483648 to 2147483647";
  if (type == "uint32") return "a whole number from 0 to 4294967295";
  if (type == "int64") return "a whole number of at most 64 bits";
  if (type == "uint64") return "a whole number, at least 0, of at most 64 bits";
  if (type == "double") return "a number";
  return "a text";
}

// gflags prints a double with all its digits; 0.1 reads better than 0.10000000000000001.
std::string ShortDefault(const FlagInfo& info) {
  if (info.type != "double") return info.default_value;
  std::ostringstream text;
  text << std::strtod(info.default_value.c_str(), nullptr);
  return text.str();
}

// One pass over argv. Only flags that the program's help lists exist: gflags itself brings dozens
// (--flagfile, --fromenv, ...) that would be undocumented ways into every program.
class Parser {
 public:
  Parser(const ProgramHelp& help, std::vector<std::string>* positional) : positional_(positional) {
    for (const FlagGroup& group : help.groups) {
      names_.insert(names_.end(), group.flags.begin(), group.flags.end());
    }
    const FlagGroup& logging = LoggingGroup();
    names_.insert(names_.end(), logging.flags.begin(), logging.flags.end());
  }

  Status Parse(std::span<char* const> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string_view argument = arguments[i];
      if (argument == "--") {
        for (++i; i < arguments.size(); ++i) {
          SLACKLINE_RETURN_IF_ERROR(TakePositional(arguments[i]));
        }
        break;
      }
      if (argument.size() < 2 || argument[0] != '-') {
        SLACKLINE_RETURN_IF_ERROR(TakePositional(argument));
        continue;
      }
      const std::string_view body = argument.substr(argument[1] == '-' ? 2 : 1);
      const bool has_next = i + 1 < arguments.size();
      bool used_next = false;
      SLACKLINE_RETURN_IF_ERROR(TakeFlag(body, has_next ? arguments[i + 1] : nullptr, &used_next));
      if (used_next) ++i;
    }
    return OkStatus();
  }

  bool wants_help() const { return wants_help_; }
  bool wants_version() const { return wants_version_; }

 private:
  Status TakePositional(std::string_view argument) {
    if (positional_ == nullptr) {
      return InvalidArgument(OneLine(argument) +
                             ": this program takes flags only (--flag=value); see --help");
    }
    positional_->emplace_back(argument);
    return OkStatus();
  }

  bool Listed(std::string_view name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }

  Status TakeFlag(std::string_view body, const char* next, bool* used_next) {
    const size_t equals = body.find('=');
    const std::string name(body.substr(0, equals));
    if (equals == std::string_view::npos) {
      if (name == "help" || name == "h") {
        wants_help_ = true;
        return OkStatus();
      }
      if (name == "version") {
        wants_version_ = true;
        return OkStatus();
      }
    }
    FlagInfo info;
    if (!Listed(name) || !google::GetCommandLineFlagInfo(name.c_str(), &info)) {
      return TakeNegated(name, equals != std::string_view::npos);
    }
    if (equals != std::string_view::npos) return Set(info, std::string(body.substr(equals + 1)));
    if (info.type == "bool") return Set(info, "true");
    // A following flag is not swallowed as a value; "-1" is one.
    if (next == nullptr || std::string_view(next).starts_with("--")) {
      return InvalidArgument("--" + name + ": needs a value, expected " +
                             std::string(ExpectedOfType(info.type)));
    }
    *used_next = true;
    return Set(info, next);
  }

  // "--noNAME" for a boolean; anything else here is unknown.
  Status TakeNegated(const std::string& name, bool has_value) {
    FlagInfo info;
    if (!has_value && name.starts_with("no")) {
      const std::string positive = name.substr(2);
      if (Listed(positive) && google::GetCommandLineFlagInfo(positive.c_str(), &info) &&
          info.type == "bool") {
        return Set(info, "false");
      }
    }
    return Unknown(name);
  }

  Status Unknown(const std::string& name) const {
    std::string message = "--" + OneLine(name) + ": no such flag";
    // Suggests a name that is a third of its length or less away.
    size_t best = name.size() / 3 + 1;
    std::string_view suggestion;
    for (const std::string_view candidate : names_) {
      const size_t distance = EditDistance(name, candidate);
      if (distance < best) {
        best = distance;
        suggestion = candidate;
      }
    }
    if (!suggestion.empty()) message.append("; did you mean --").append(suggestion).append("?");
    return InvalidArgument(message + " (--help lists all)");
  }

  static Status Set(const FlagInfo& info, const std::string& value) {
    std::string known = value;
    if (info.type == "bool") {  // gflags does not know the words of switches.
      if (value == "on") known = "true";
      if (value == "off") known = "false";
    }
    if (!google::SetCommandLineOption(info.name.c_str(), known.c_str()).empty()) return OkStatus();
    return FlagStatus(info.name, value, ExpectedOfType(info.type));
  }

  std::vector<std::string>* positional_;
  std::vector<std::string_view> names_;
  bool wants_help_ = false;
  bool wants_version_ = false;
};

void PrintGroup(const FlagGroup& group) {
  std::printf("\n%.*s:\n", static_cast<int>(group.title.size()), group.title.data());
  for (const std::string_view name : group.flags) {
    FlagInfo info;
    if (!google::GetCommandLineFlagInfo(std::string(name).c_str(), &info)) continue;
    const std::string type = info.type == "string" ? "text" : info.type;
    const std::string standard = info.default_value.empty() ? "none" : OneLine(ShortDefault(info));
    std::printf("  --%s (%s, default %s)\n      %s\n", info.name.c_str(), type.c_str(),
                standard.c_str(), info.description.c_str());
  }
}

void PrintHelp(const ProgramHelp& help) {
  const std::string name(help.name);
  std::printf("%s: %s\n\nUsage: %s [--flag=value ...]\n", name.c_str(),
              std::string(help.summary).c_str(), name.c_str());
  for (const FlagGroup& group : help.groups) PrintGroup(group);
  PrintGroup(LoggingGroup());
  std::printf("\n  --help, --version\n");
  if (!help.examples.empty()) {
    std::printf("\nExamples:\n%s\n", std::string(help.examples).c_str());
  }
}

std::string Shortest(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

}  // namespace

void ParseFlags(int argc, char** argv, const ProgramHelp& help,
                std::vector<std::string>* positional) {
  Parser parser(help, positional);
  const std::span<char* const> all(argv, static_cast<size_t>(argc));
  const Status status = parser.Parse(all.subspan(all.empty() ? 0 : 1));
  // Asking for help works beside any mistake: that is when it is needed.
  if (parser.wants_help()) {
    PrintHelp(help);
    std::exit(0);
  }
  ExitOnFlagError(status);
  if (parser.wants_version()) {
    std::printf("%s %s\n", std::string(help.name).c_str(), SLACKLINE_VERSION);
    std::exit(0);
  }
}

Status FlagStatus(std::string_view flag, std::string_view value, std::string_view expected) {
  std::string message = "--";
  message.append(flag).append("=").append(OneLine(value));
  message.append(": expected ").append(expected);
  return InvalidArgument(std::move(message));
}

void ExitOnFlagError(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", OneLine(status.message()).c_str());
  std::exit(kExitUsage);
}

Status CheckRange(std::string_view flag, double value, double low, double high) {
  if (value >= low && value <= high) return OkStatus();  // A NaN is in no range.
  return FlagStatus(flag, Shortest(value),
                    "a number from " + Shortest(low) + " to " + Shortest(high));
}

Status CheckOneOf(std::string_view flag, std::string_view value,
                  std::span<const std::string_view> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return OkStatus();
  std::string expected = "one of ";
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (i != 0) expected += ", ";
    expected += allowed[i];
  }
  return FlagStatus(flag, value, expected);
}

}  // namespace slackline
