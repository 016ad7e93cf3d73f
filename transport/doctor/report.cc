#include "transport/doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace slackline::transport {

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kFailure:
      return "failure";
  }
  return "unknown";
}

void Report::Ok(std::string_view check, std::string found) {
  findings_.push_back({std::string(check), Verdict::kOk, std::move(found), {}});
}

void Report::Note(std::string_view check, std::string found) {
  findings_.push_back({std::string(check), Verdict::kNote, std::move(found), {}});
}

void Report::Warn(std::string_view check, std::string found, std::string cure) {
  findings_.push_back({std::string(check), Verdict::kWarning, std::move(found), std::move(cure)});
}

void Report::Fail(std::string_view check, std::string found, std::string cure) {
  findings_.push_back({std::string(check), Verdict::kFailure, std::move(found), std::move(cure)});
}

void Report::FailIf(bool needed, std::string_view check, std::string found, std::string cure) {
  if (needed) {
    Fail(check, std::move(found), std::move(cure));
  } else {
    Note(check, std::move(found));
  }
}

bool Report::ok() const {
  return std::none_of(findings_.begin(), findings_.end(),
                      [](const Finding& finding) { return finding.verdict == Verdict::kFailure; });
}

std::string Report::Text() const {
  size_t widest = 0;
  for (const Finding& finding : findings_) widest = std::max(widest, finding.check.size());
  std::string text;
  size_t failures = 0, warnings = 0;
  for (const Finding& finding : findings_) {
    failures += finding.verdict == Verdict::kFailure ? 1 : 0;
    warnings += finding.verdict == Verdict::kWarning ? 1 : 0;
    std::string verdict(VerdictName(finding.verdict));
    verdict.resize(9, ' ');
    text += verdict + finding.check + std::string(widest - finding.check.size() + 2, ' ') +
            finding.found + "\n";
    if (!finding.cure.empty()) text += "         -> " + finding.cure + "\n";
  }
  text += failures > 0 ? "a run would fail: " : "a run can start: ";
  return text + std::to_string(failures) + " failures, " + std::to_string(warnings) + " warnings\n";
}

nlohmann::json Report::Json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings_) {
    list.push_back({{"check", finding.check},
                    {"verdict", VerdictName(finding.verdict)},
                    {"found", finding.found},
                    {"cure", finding.cure}});
  }
  return {{"ok", ok()}, {"findings", std::move(list)}};
}

}  // namespace slackline::transport
