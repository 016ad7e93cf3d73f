// What a check of a host found, and how it is told: a line each for people, JSON for programs.
// Threading: values.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace slackline::transport {

enum class Verdict : uint8_t {
  kOk,
  kNote,     // Worth knowing; nothing to do.
  kWarning,  // A run works, but worse than it could.
  kFailure,  // A run with the chosen transport would fail.
};

std::string_view VerdictName(Verdict verdict);  // "ok", "note", "warning", "failure"

struct Finding {
  std::string check;  // "verbs", "memlock", "peer node7", ...
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string cure;  // What to do; empty for kOk and kNote.
};

class Report {
 public:
  void Ok(std::string_view check, std::string found);
  void Note(std::string_view check, std::string found);
  void Warn(std::string_view check, std::string found, std::string cure);
  void Fail(std::string_view check, std::string found, std::string cure);
  // A failure if the run depends on it, else a note without cure.
  void FailIf(bool needed, std::string_view check, std::string found, std::string cure);

  const std::vector<Finding>& findings() const { return findings_; }
  // False: at least one kFailure.
  bool ok() const;

  // A line each, cures below, and a closing line.
  std::string Text() const;
  nlohmann::json Json() const;

 private:
  std::vector<Finding> findings_;
};

}  // namespace slackline::transport
