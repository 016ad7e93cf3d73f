// Between the coordinator's view of a checkpoint and the manifest in its directory.
// Threading: functions without shared state; they read and write files.
#pragma once

#include <string>

#include "common/status.h"
#include "server/checkpoint/manifest.h"
#include "server/coordinator/coordinator_state.h"

namespace slackline::server::coordinator {

// What the manifest of a complete plan says. Chunks refer to the plan's files: a shard without
// chunks has none. The time is the caller's.
Result<Manifest> BuildManifest(const CheckpointPlan& plan, const CoordinatorState& state,
                               int64_t unix_time_s);

// Writes the manifest into the plan's directory and gives that its final name.
Status CommitPlan(const CheckpointPlan& plan, const CoordinatorState& state, int64_t unix_time_s);

// Reads the checkpoint in `directory`. DataLoss: its manifest is damaged, or a file is missing or
// has another size (their checksums are the shards' to verify, who read them anyway).
Result<RestorePoint> LoadRestorePoint(const std::string& directory);

}  // namespace slackline::server::coordinator
