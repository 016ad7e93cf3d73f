// The other hosts of a run, as seen from here: do they answer, on which route, how far apart are
// the clocks, do they speak the same protocol. The other end is this program with --serve, started
// by hand or over ssh as scripts/fleet starts its processes.
// Threading: blocking; every wait is bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "transport/doctor/report.h"

namespace slackline::transport {

inline constexpr size_t kMaxDoctorPeers = 1024;

struct PeerOptions {
  std::string ssh = "ssh";               // Words before the host's name.
  std::string program;                   // This program's path there.
  std::string transport;                 // Given on to it.
  TimeNs timeout_ns = 5 * kNsPerSecond;  // For each exchange with a peer.
};

// The names of a hostfile ("HOST [SLOTS] [ROLE]" a line, # begins a comment) but for those of this
// host itself. NotFound, InvalidArgument: names the file and the line.
Result<std::vector<std::string>> ReadHostfile(const std::string& path);

// Asks the doctor that serves at "host:port".
void CheckPeer(std::string_view address, const PeerOptions& options, Report& report);
// Starts a doctor on the host over ssh, asks it, and lets it end.
void CheckPeerOverSsh(const std::string& host, const PeerOptions& options, Report& report);

// What a serving doctor says first, before its port, for the one that started it over ssh.
inline constexpr std::string_view kServes = "slackline-doctor serves at port ";

// Answers other doctors for `duration_ns`: the report of this host, and the time. Calls
// `listening` with the port once it does. AlreadyExists: the port is taken.
Status ServePeers(uint16_t port, TimeNs duration_ns, const Report& report,
                  const std::function<void(uint16_t)>& listening);

}  // namespace slackline::transport
