// The run directory's files: metrics.jsonl, status.json, summary.json, sample.txt.
//
// A run without a directory writes nothing. A file that cannot be written is reported once and does
// not end the training.
// Threading: owner thread: the coordinator's.
#pragma once

#include <string>

#include "common/file.h"
#include "common/status.h"
#include "common/time_source.h"

namespace slackline::server::coordinator {

class RunFiles {
 public:
  // Makes the directory. `append`: metrics.jsonl goes on (a resumed run), else it starts empty.
  // An empty name: nothing is written.
  static Result<RunFiles> Open(const std::string& directory, bool append);

  void AppendMetrics(const std::string& line, TimeNs now);
  // Replaces the file in one step. Files other than status.json, which is written every second and
  // worth nothing after a crash, are made durable.
  void Write(const std::string& name, const std::string& content);
  // Writes out lines that have waited for a second.
  void FlushDue(TimeNs now);
  void Flush();

 private:
  explicit RunFiles(std::string directory) : directory_(std::move(directory)) {}
  void Report(const Status& status);

  std::string directory_;
  Fd metrics_;
  std::string pending_;
  TimeNs oldest_pending_ns_ = kNever;
  bool reported_ = false;
};

}  // namespace slackline::server::coordinator
