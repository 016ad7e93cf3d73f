// The fleet of `slackline-bench pushpull`: one server process with a thread a shard, and a process
// a worker, all on the loopback, without a coordinator: the map and the view are handed to them.
//
// A worker drives the client's core on one thread: every chunk's next push leaves as soon as its
// weights are here, as when communication overlaps backward and the next forward.
// Threading: call before the program has threads, since the fleet is forked.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace slackline::bench {

struct FleetConfig {
  uint32_t workers = 1;
  uint32_t shards = 1;
  uint32_t chunk_bytes = 1 << 20;  // Of FP32.
  uint64_t model_bytes = 64 << 20;
  std::string codec = "fp32";  // Both directions.
  std::string optimizer = "sgd";
  int32_t staleness = 0;  // As in JobSpec.
  std::string transport = "tcp";
  double warmup_seconds = 0.3;
  double seconds = 2;
  uint64_t credit_bytes = 64 << 20;
};

struct FleetResult {
  double gbytes_per_s_per_direction = 0;  // Payload, all workers together.
  double push_pulls_per_s = 0;
  double server_cpu = 0;  // Processors in use by the server, and by all workers together.
  double worker_cpu = 0;
  double cpu_seconds_per_gbyte = 0;  // Both sides, a GB pushed and pulled.
  uint64_t payload_bytes_copied = 0;
  uint64_t resends = 0;
};

Result<FleetResult> RunFleet(const FleetConfig& config);

}  // namespace slackline::bench
