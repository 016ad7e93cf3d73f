// slackline-doctor: says what would keep a run from working on this host, and what cures it.
#include <gflags/gflags.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>

#include "common/flags.h"
#include "transport/doctor/checks.h"
#include "transport/doctor/peers.h"

DEFINE_string(transport, "auto", "of the run: tcp, shm, rdma or auto");
DEFINE_double(memory_gb, 1, "GB that a process of the run registers or shares");
DEFINE_string(ports, "", "fixed ports of the run, FIRST-LAST or one; must be free");
DEFINE_string(hostfile, "", "the run's hostfile: its hosts are checked too, over ssh");
DEFINE_string(ssh, "ssh", "how to reach a host");
DEFINE_string(peers, "", "host:port,...: hosts where slackline-doctor --serve runs");
DEFINE_double(timeout_s, 5, "for each exchange with a host");
DEFINE_bool(serve, false, "answer the doctors of other hosts, for --serve_s");
DEFINE_int32(serve_port, 0, "where to; 0 takes a free port");
DEFINE_double(serve_s, 600, "for how long");
DEFINE_bool(json, false, "print JSON");
DEFINE_string(root, "", "read /proc, /sys and /dev below this directory (a copy of a host's)");

namespace {

using slackline::CheckRange;
using slackline::ExitOnFlagError;
using slackline::FlagStatus;
using slackline::kNsPerSecond;
using slackline::TimeNs;
using slackline::transport::DoctorOptions;
using slackline::transport::PeerOptions;
using slackline::transport::Report;

std::pair<uint16_t, uint16_t> PortsFromFlag() {
  if (FLAGS_ports.empty()) return {0, 0};
  std::istringstream text(FLAGS_ports);
  int first = 0, last = 0;
  char dash = '-';
  text >> first;
  if (text.eof()) {
    last = first;
  } else {
    text >> dash >> last;
  }
  const bool good =
      text && text.eof() && dash == '-' && first >= 1 && first <= last && last < 65536;
  if (!good) ExitOnFlagError(FlagStatus("ports", FLAGS_ports, "FIRST-LAST, from 1 to 65535"));
  return {static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

DoctorOptions OptionsFromFlags() {
  constexpr std::array<std::string_view, 4> kTransports = {"tcp", "shm", "rdma", "auto"};
  ExitOnFlagError(slackline::CheckOneOf("transport", FLAGS_transport, kTransports));
  ExitOnFlagError(CheckRange("memory_gb", FLAGS_memory_gb, 0, 1e6));
  ExitOnFlagError(CheckRange("timeout_s", FLAGS_timeout_s, 0.1, 600));
  ExitOnFlagError(CheckRange("serve_s", FLAGS_serve_s, 0.1, 24 * 3600));
  ExitOnFlagError(CheckRange("serve_port", FLAGS_serve_port, 0, 65535));
  DoctorOptions options;
  options.transport = FLAGS_transport;
  options.memory_bytes = static_cast<uint64_t>(FLAGS_memory_gb * 1e9);
  options.ports = PortsFromFlag();
  return options;
}

// Exits with code 2 if the hostfile cannot be read.
void CheckPeers(Report& report) {
  PeerOptions options;
  options.ssh = FLAGS_ssh;
  options.transport = FLAGS_transport;
  options.timeout_ns = static_cast<TimeNs>(FLAGS_timeout_s * kNsPerSecond);
  std::error_code ignored;
  options.program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!FLAGS_hostfile.empty()) {
    const auto hosts = slackline::transport::ReadHostfile(FLAGS_hostfile);
    if (!hosts) ExitOnFlagError(hosts.error());
    for (const std::string& host : *hosts) CheckPeerOverSsh(host, options, report);
  }
  std::istringstream peers(FLAGS_peers);
  for (std::string peer; std::getline(peers, peer, ',');) CheckPeer(peer, options, report);
}

}  // namespace

int main(int argc, char** argv) {
  slackline::ParseFlags(
      argc, argv,
      {.name = "slackline-doctor",
       .summary = "Checks whether a run would work on this host and between hosts, and names the "
                  "cure for each fault. Exit code 1: a run with this --transport would fail.",
       .examples = "slackline-doctor --transport=rdma --hostfile=hosts.txt\n"
                   "slackline-doctor --serve                  # on one host\n"
                   "slackline-doctor --peers=node7:40001      # on another",
       .groups = {{"Run", {"transport", "memory_gb", "ports"}},
                  {"Other hosts",
                   {"hostfile", "ssh", "peers", "timeout_s", "serve", "serve_port", "serve_s"}},
                  {"Output", {"json", "root"}}}});
  slackline::InitLogging(argv[0]);
  const DoctorOptions options = OptionsFromFlags();
  std::signal(SIGPIPE, SIG_IGN);
  Report report = CheckHost(slackline::transport::Host(FLAGS_root), options);
  if (FLAGS_serve) {
    const slackline::Status status = slackline::transport::ServePeers(
        static_cast<uint16_t>(FLAGS_serve_port), static_cast<TimeNs>(FLAGS_serve_s * kNsPerSecond),
        report,
        [](uint16_t port) { std::cout << slackline::transport::kServes << port << std::endl; });
    if (status.ok()) return 0;
    std::cerr << "slackline-doctor: " << status.message() << "\n";
    return 1;
  }
  CheckPeers(report);
  if (FLAGS_json) {
    nlohmann::json json = report.Json();
    json["transport"] = options.transport;
    std::cout << json.dump(1) << "\n";
  } else {
    std::cout << report.Text();
  }
  return report.ok() ? 0 : 1;
}
