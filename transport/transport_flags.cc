#include "transport/transport_flags.h"

#include <gflags/gflags.h>

#include <array>
#include <optional>
#include <string_view>

DEFINE_string(transport, "auto",
              "how bytes travel: auto (the fastest way that both ends have) or one of its ways");
DEFINE_double(link_gbps, 0,
              "throttle this end to a link of so many Gb/s, each way, to try what a slow network "
              "does; over tcp, which auto then is; 0: do not");
DEFINE_string(rdma_devices, "",
              "RDMA devices, mlx5_0,mlx5_1; channels are spread over them, both ends list them in "
              "the same order; empty: the one that routes to the peer, the nearest first");
DEFINE_int32(rdma_port, 0, "port of the RDMA device; 0: its first active one");
DEFINE_int32(rdma_gid_index, -1,
             "GID of the RDMA port; -1: the RoCE v2 one with the address that routes to the peer");
DEFINE_int32(rdma_mtu, 0, "largest RDMA packet: 256, 512, 1024, 2048 or 4096; 0: the port's");
DEFINE_int32(rdma_traffic_class, 0, "of RDMA packets (DSCP and ECN bits), 0 to 255");
DEFINE_int32(rdma_service_level, 0, "of RDMA packets, 0 to 15");
DEFINE_int32(rdma_timeout, 18,
             "an RDMA packet without acknowledgement for 4.096 us * 2^this is lost, 1 to 31");
DEFINE_int32(rdma_retry_count, 7, "losses in a row that break an RDMA connection, 0 to 7");
DEFINE_int32(rdma_rnr_retry, 7, "tries when the peer has no receive buffer, 0 to 7 (for ever)");
DEFINE_string(
    rdma_poll, "adaptive",
    "how to wait for RDMA completions: busy, event (sleep) or adaptive (busy, then sleep)");

namespace slackline::transport {
namespace {

struct PollName {
  std::string_view name;
  PollMode mode;
};
constexpr std::array<PollName, 3> kPollNames = {
    {{"busy", PollMode::kBusy}, {"event", PollMode::kSleep}, {"adaptive", PollMode::kAdaptive}}};

std::vector<std::string> SplitNames(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    names.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

RdmaOptions RdmaFromFlags() {
  const auto check = [](std::string_view flag, int32_t value, int32_t low, int32_t high) {
    ExitOnFlagError(CheckRange(flag, value, low, high));
  };
  check("rdma_port", FLAGS_rdma_port, 0, 255);
  check("rdma_gid_index", FLAGS_rdma_gid_index, -1, 255);
  check("rdma_traffic_class", FLAGS_rdma_traffic_class, 0, 255);
  check("rdma_service_level", FLAGS_rdma_service_level, 0, 15);
  check("rdma_timeout", FLAGS_rdma_timeout, 1, 31);
  check("rdma_retry_count", FLAGS_rdma_retry_count, 0, 7);
  check("rdma_rnr_retry", FLAGS_rdma_rnr_retry, 0, 7);
  constexpr std::array<std::string_view, 6> kMtus = {"0", "256", "512", "1024", "2048", "4096"};
  ExitOnFlagError(CheckOneOf("rdma_mtu", std::to_string(FLAGS_rdma_mtu), kMtus));
  RdmaOptions options;
  options.devices = SplitNames(FLAGS_rdma_devices);
  if (options.devices.size() > kMaxRdmaRails) {
    ExitOnFlagError(FlagStatus("rdma_devices", FLAGS_rdma_devices,
                               "at most " + std::to_string(kMaxRdmaRails) + " names"));
  }
  options.port = FLAGS_rdma_port;
  options.gid_index = FLAGS_rdma_gid_index;
  options.mtu_bytes = static_cast<uint32_t>(FLAGS_rdma_mtu);
  options.traffic_class = static_cast<uint8_t>(FLAGS_rdma_traffic_class);
  options.service_level = static_cast<uint8_t>(FLAGS_rdma_service_level);
  options.timeout = static_cast<uint8_t>(FLAGS_rdma_timeout);
  options.retry_count = static_cast<uint8_t>(FLAGS_rdma_retry_count);
  options.rnr_retry = static_cast<uint8_t>(FLAGS_rdma_rnr_retry);
  for (const PollName& each : kPollNames) {
    if (each.name != FLAGS_rdma_poll) continue;
    options.poll = each.mode;
    return options;
  }
  ExitOnFlagError(FlagStatus("rdma_poll", FLAGS_rdma_poll, "busy, event or adaptive"));
  return options;
}

}  // namespace

TransportChoice TransportFromFlags() {
  if (!CheckTransportName(FLAGS_transport).ok()) {
    ExitOnFlagError(FlagStatus("transport", FLAGS_transport, "one of " + TransportNames()));
  }
  TransportChoice choice;
  choice.name = FLAGS_transport;
  if (FLAGS_link_gbps > 0) {
    if (choice.name == "auto") choice.name = "tcp";
    if (choice.name != "tcp") {
      ExitOnFlagError(FlagStatus("transport", FLAGS_transport, "tcp with --link_gbps"));
    }
  }
  ExitOnFlagError(CheckRange("link_gbps", FLAGS_link_gbps, 0, 1e6));
  choice.options.link_gbps = FLAGS_link_gbps;
  choice.options.rdma = RdmaFromFlags();
  return choice;
}

FlagGroup TransportFlagGroup() {
  return {"Transport",
          {"transport", "link_gbps", "rdma_devices", "rdma_port", "rdma_gid_index", "rdma_mtu",
           "rdma_traffic_class", "rdma_service_level", "rdma_timeout", "rdma_retry_count",
           "rdma_rnr_retry", "rdma_poll"}};
}

}  // namespace slackline::transport
