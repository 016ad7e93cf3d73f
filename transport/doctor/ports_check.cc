#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/file.h"
#include "proto/wire_header.h"
#include "transport/doctor/checks.h"

namespace slackline::transport {
namespace {

// Below it a large fleet on one host, or one that is restarted often, runs out of ports.
constexpr long long kFewPorts = 1000;

// 0, or the error number with which the port was refused.
int TryPort(uint16_t port) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;  // As servers do: a port in TIME_WAIT is free.
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const bool bound =
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return bound && listen(listener.get(), 1) == 0 ? 0 : errno;
}

void CheckFixedPorts(const DoctorOptions& options, Report& report) {
  const auto [first, last] = options.ports;
  size_t refused = 0;
  for (int port = first; port <= last; ++port) {
    const int error = TryPort(static_cast<uint16_t>(port));
    if (error == 0) continue;
    // One is enough to say what is wrong.
    if (++refused > 1) continue;
    report.Fail("ports", "port " + std::to_string(port) + ": " + std::strerror(error),
                error == EADDRINUSE ? "ss -ltnp 'sport = :" + std::to_string(port) +
                                          "' names who has it; or choose another --port"
                                    : "ports below 1024 are for root; choose another --port");
  }
  if (refused == 0) {
    report.Ok("ports", std::to_string(first) + " to " + std::to_string(last) + " are free");
  } else if (refused > 1) {
    report.Note("ports", std::to_string(refused) + " of them cannot be used");
  }
}

}  // namespace

void CheckPorts(const Host& host, const DoctorOptions& options, Report& report) {
  if (options.ports.first != 0) CheckFixedPorts(options, report);
  const std::string range = host.Line("/proc/sys/net/ipv4/ip_local_port_range");
  const size_t gap = range.find_first_of(" \t");
  const long long first = NumberOr(range, -1);
  const long long last = gap == std::string::npos ? -1 : NumberOr(range.substr(gap), -1);
  if (first < 0 || last < first) {
    report.Note("port range", "cannot be read");
    return;
  }
  const std::string found = "servers take TCP ports from " + std::to_string(first) + " to " +
                            std::to_string(last) + " unless --port is given" +
                            (options.may_use_rdma() ? "; RoCE v2 uses UDP port 4791" : "");
  if (last - first < kFewPorts) {
    report.Warn("port range", found, "sysctl net.ipv4.ip_local_port_range='32768 60999'");
  } else {
    report.Ok("port range", found);
  }
}

void CheckVersions(const Host& host, Report& report) {
  report.Ok("versions", "Linux " + host.Line("/proc/sys/kernel/osrelease") + ", wire protocol " +
                            std::to_string(proto::kWireVersion));
}

Report CheckHost(const Host& host, const DoctorOptions& options) {
  Report report;
  CheckVersions(host, report);
  CheckVerbs(host, options, report);
  CheckMemory(host, options, report);
  CheckGpus(host, options, report);
  CheckPorts(host, options, report);
  return report;
}

}  // namespace slackline::transport
