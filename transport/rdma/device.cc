#include "transport/rdma/device.h"

#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

namespace slackline::transport {
namespace {

constexpr size_t kMaxGids = 256;

using DeviceList = std::unique_ptr<ibv_device*, decltype(&ibv_free_device_list)>;

// An IPv4 address is written as a mapped one in a GID.
std::optional<ibv_gid> GidOfAddress(std::string_view host) {
  const std::string text(host);
  ibv_gid gid{};
  if (inet_pton(AF_INET6, text.c_str(), gid.raw) == 1) return gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  if (inet_pton(AF_INET, text.c_str(), gid.raw + 12) == 1) return gid;
  return std::nullopt;
}

bool IsIpv4(const ibv_gid& gid) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped.data(), kMapped.size()) == 0;
}

bool IsLinkLocal(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

// 0: best.
int Rank(const RdmaGid& gid) {
  if (IsIpv4(gid.gid)) return 0;
  return IsLinkLocal(gid.gid) ? 2 : 1;
}

std::string GidList(std::span<const ibv_gid_entry> entries) {
  std::string list;
  for (const ibv_gid_entry& entry : entries) {
    list += (list.empty() ? "" : ", ") + std::to_string(entry.gid_index) + " (" +
            GidText(entry.gid) +
            (entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? ", RoCE v2)"
             : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? ", RoCE v1)"
                                                      : ")");
  }
  return list.empty() ? "none" : list;
}

std::string_view PortStateName(ibv_port_state state) {
  const char* text = ibv_port_state_str(state);
  return text == nullptr ? "unknown" : text;
}

int NumaNodeOf(const ibv_device* device) {
  std::ifstream file(std::string(device->ibdev_path) + "/device/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

int NumaNodeOfThisThread() {
  unsigned cpu = 0, node = 0;
  return getcpu(&cpu, &node) == 0 ? static_cast<int>(node) : -1;
}

Status NoSuchDevice(const std::string& name, std::span<ibv_device* const> devices) {
  std::string list;
  for (const ibv_device* device : devices) {
    list += (list.empty() ? "" : ", ") +
            std::string(ibv_get_device_name(const_cast<ibv_device*>(device)));
  }
  return InvalidArgument("RDMA device '" + name + "' does not exist: this host has " + list);
}

// Sets port and state: the wanted port or the first active one.
Status ChoosePort(const RdmaOptions& options, RdmaPort* out) {
  const int count = out->limits.phys_port_cnt;
  if (options.port > count) {
    return InvalidArgument("RDMA device " + out->device + " has ports 1 to " +
                           std::to_string(count) + ", port " + std::to_string(options.port) +
                           " was asked for");
  }
  std::string states;
  for (int port = 1; port <= count; ++port) {
    if (options.port != 0 && options.port != port) continue;
    if (const int error =
            ibv_query_port(out->context.get(), static_cast<uint8_t>(port), &out->state);
        error != 0) {
      return ErrnoStatus(error, "ibv_query_port of " + out->device);
    }
    out->port = static_cast<uint8_t>(port);
    if (out->state.state == IBV_PORT_ACTIVE) return OkStatus();
    states +=
        " port " + std::to_string(port) + " is " + std::string(PortStateName(out->state.state));
  }
  return Unavailable("RDMA device " + out->device + ":" + states +
                     ", expected PORT_ACTIVE: bring its network interface up (ip link set ... up) "
                     "or check the cable");
}

Status ChooseGids(const RdmaOptions& options, RdmaPort* out) {
  std::array<ibv_gid_entry, kMaxGids> table;
  const ssize_t found =
      ibv_query_gid_table(out->context.get(), table.data(), table.size(), /*flags=*/0);
  if (found < 0) {
    return ErrnoStatus(static_cast<int>(-found), "ibv_query_gid_table of " + out->device);
  }
  std::vector<ibv_gid_entry> entries;
  for (ssize_t i = 0; i < found; ++i) {
    const ibv_gid_entry& entry = table[static_cast<size_t>(i)];
    if (entry.port_num == out->port) entries.push_back(entry);
  }
  for (const ibv_gid_entry& entry : entries) {
    const bool wanted = options.gid_index == static_cast<int>(entry.gid_index);
    const bool usable = !out->ethernet() || entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    if (options.gid_index >= 0 ? wanted : usable) {
      out->gids.push_back({.index = static_cast<int>(entry.gid_index),
                           .gid = entry.gid,
                           .roce_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2});
    }
  }
  if (!out->gids.empty()) return OkStatus();
  const std::string where = "RDMA device " + out->device + " port " + std::to_string(out->port);
  if (options.gid_index >= 0) {
    return InvalidArgument(where + " has no GID index " + std::to_string(options.gid_index) +
                           ": it has " + GidList(entries));
  }
  return Unavailable(where + " has no RoCE v2 GID (it has " + GidList(entries) +
                     "): give its network interface an address (ip addr add ...)");
}

Result<RdmaPort> OpenPort(const RdmaOptions& options, ibv_device* device) {
  RdmaPort port;
  port.device = ibv_get_device_name(device);
  port.context.reset(ibv_open_device(device));
  if (!port.context) return Err(ErrnoStatus(errno, "ibv_open_device of " + port.device));
  if (const int error = ibv_query_device(port.context.get(), &port.limits); error != 0) {
    return Err(ErrnoStatus(error, "ibv_query_device of " + port.device));
  }
  port.numa_node = NumaNodeOf(device);
  SLACKLINE_RETURN_ERR_IF_ERROR(ChoosePort(options, &port));
  SLACKLINE_RETURN_ERR_IF_ERROR(ChooseGids(options, &port));
  return port;
}

Result<std::vector<RdmaPort>> OpenNamed(const RdmaOptions& options,
                                        std::span<ibv_device* const> devices) {
  std::vector<RdmaPort> ports;
  for (const std::string& name : options.devices) {
    const auto device = std::find_if(devices.begin(), devices.end(), [&](ibv_device* candidate) {
      return name == ibv_get_device_name(candidate);
    });
    if (device == devices.end()) return Err(NoSuchDevice(name, devices));
    SLACKLINE_ASSIGN_OR_RETURN(RdmaPort port, OpenPort(options, *device));
    ports.push_back(std::move(port));
  }
  return ports;
}

// Skips devices that cannot be used; if none can, says why for the first.
Result<std::vector<RdmaPort>> OpenUsable(const RdmaOptions& options,
                                         std::span<ibv_device* const> devices) {
  std::vector<RdmaPort> ports;
  Status refusal;
  for (ibv_device* device : devices) {
    if (ports.size() == kMaxRdmaRails) break;
    Result<RdmaPort> port = OpenPort(options, device);
    if (port) {
      ports.push_back(std::move(*port));
    } else if (refusal.ok()) {
      refusal = std::move(port).error();
    }
  }
  if (ports.empty()) return Err(refusal);
  const int here = NumaNodeOfThisThread();
  std::stable_partition(ports.begin(), ports.end(), [here](const RdmaPort& port) {
    return port.numa_node < 0 || port.numa_node == here;
  });
  return ports;
}

}  // namespace

bool RdmaPort::HasAddress(std::string_view local_host) const {
  const std::optional<ibv_gid> wanted = GidOfAddress(local_host);
  return wanted && std::any_of(gids.begin(), gids.end(), [&](const RdmaGid& candidate) {
           return std::memcmp(candidate.gid.raw, wanted->raw, sizeof(wanted->raw)) == 0;
         });
}

const RdmaGid& RdmaPort::GidFor(std::string_view local_host) const {
  if (const std::optional<ibv_gid> wanted = GidOfAddress(local_host)) {
    for (const RdmaGid& candidate : gids) {
      if (std::memcmp(candidate.gid.raw, wanted->raw, sizeof(wanted->raw)) == 0) return candidate;
    }
  }
  return *std::min_element(gids.begin(), gids.end(),
                           [](const RdmaGid& a, const RdmaGid& b) { return Rank(a) < Rank(b); });
}

Result<std::vector<RdmaPort>> OpenPorts(const RdmaOptions& options) {
  int count = 0;
  const DeviceList list(ibv_get_device_list(&count), &ibv_free_device_list);
  if (!list || count == 0) {
    return Err(Unavailable(
        "this host has no RDMA device: load its driver (rdma link shows what is there), or use "
        "another transport"));
  }
  const std::span<ibv_device* const> devices(list.get(), static_cast<size_t>(count));
  return options.devices.empty() ? OpenUsable(options, devices) : OpenNamed(options, devices);
}

}  // namespace slackline::transport
