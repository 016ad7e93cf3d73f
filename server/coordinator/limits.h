// The bounds on what the coordinator keeps and accepts. A peer that exceeds one is refused with the
// bound in the message; nothing grows with the length of a run but clocks and counters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/time_source.h"

namespace slackline::server::coordinator {

inline constexpr uint32_t kMaxWorkers = 256;  // Also the consistency machine's bound on a view.
inline constexpr uint32_t kMaxServers = 256;
inline constexpr uint32_t kMaxShardsPerServer = 64;
inline constexpr uint32_t kMaxIncarnation = 1u << 20;  // Lives of one rank.

inline constexpr size_t kMaxNameBytes = 256;     // Tensor and barrier names, hosts, instances.
inline constexpr size_t kMaxAddressBytes = 256;  // A shard's address.
inline constexpr size_t kMaxReasonBytes = 4096;  // Reasons, errors, "waiting for".
inline constexpr size_t kMaxModelConfigBytes = 1 << 20;
inline constexpr size_t kMaxSampleBytes = 1 << 20;  // Generated text of a FinalReport.

inline constexpr int64_t kMaxSteps = 1'000'000'000'000;
inline constexpr int32_t kMaxStaleness = 1 << 20;
inline constexpr size_t kMaxTensors = 1 << 16;
inline constexpr int kMaxTensorRank = 8;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 38;  // 1 TiB of FP32.
inline constexpr uint32_t kMinChunkBytes = 1 << 10;
inline constexpr uint32_t kMaxChunkBytes = 128u << 20;  // Half of what a data message may carry.
inline constexpr size_t kMaxChunks = 1 << 18;           // Keeps the shard map's message in bounds.

inline constexpr size_t kMaxOpenBarriers = 256;
inline constexpr uint32_t kMaxRangesPerRequest = 256;
inline constexpr size_t kMaxRangesPerWorker = 1024;  // Leased and not done.
inline constexpr int kMaxStepsPerHeartbeat = 4096;
inline constexpr int kMaxStalenessCounts = 1024;  // In one StepReport.
inline constexpr size_t kMaxRetiredInstances = 1024;
inline constexpr size_t kMaxRefusalsLogged = 20;  // A second; the rest is counted.

// A coordinator that did not run for longer than this (stopped, a slow disk) cannot blame others
// for silence: it has not read what they sent. Their leases grow by the gap.
inline constexpr TimeNs kOwnStall = 500 * kNsPerMs;
inline constexpr TimeNs kWaitReportInterval = 5 * kNsPerSecond;
// After Shutdown was sent: how long the others get to go before the coordinator leaves.
inline constexpr TimeNs kShutdownGrace = 5 * kNsPerSecond;

}  // namespace slackline::server::coordinator
