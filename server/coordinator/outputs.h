// What the coordinator's state machine wants done. Its owner carries the outputs out in order; the
// state machine itself touches nothing.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "proto/control.pb.h"
#include "server/coordinator/checkpoints.h"
#include "server/coordinator/membership.h"

namespace slackline::server::coordinator {

struct Send {
  ConnectionId connection = kNoConnection;
  control::Envelope envelope;
};
struct Close {
  ConnectionId connection = kNoConnection;
};
struct Log {
  enum class Level : uint8_t { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};
// A line (without its end) for metrics.jsonl; flushed within a second.
struct AppendMetrics {
  std::string line;
};
// A whole file of the run directory, replaced atomically.
struct WriteRunFile {
  std::string name;
  std::string content;
};
// Make the directory; answer with OnCheckpointPrepared.
struct PrepareCheckpoint {
  uint64_t id = 0;
  std::string directory;
};
// Write the manifest into `plan.directory`, make it durable and rename it to `plan.target`; answer
// with OnCheckpointCommitted.
struct CommitCheckpoint {
  CheckpointPlan plan;
};
// Remove what an abandoned attempt left.
struct DiscardCheckpoint {
  std::string directory;
};
// The coordinator is through: leave with this code.
struct Exit {
  int code = 0;
  std::string reason;
};

using Output = std::variant<Send, Close, Log, AppendMetrics, WriteRunFile, PrepareCheckpoint,
                            CommitCheckpoint, DiscardCheckpoint, Exit>;
using Outputs = std::vector<Output>;

}  // namespace slackline::server::coordinator
