// Which devices, ports and GIDs there are, and which are taken: what users of RDMA ask about most.
// Errors name the device, what was expected of it, what was found, and the cure.
// Threading: pure functions over the system's devices; values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/verbs.h"

namespace slackline::transport {

struct RdmaGid {
  int index = 0;
  ibv_gid gid{};
  bool roce_v2 = false;  // False: RoCE v1 or InfiniBand.
};

// An opened device and the port of it that is used.
struct RdmaPort {
  VerbsPtr<ibv_context> context;
  std::string device;
  uint8_t port = 0;
  ibv_port_attr state{};
  ibv_device_attr limits{};
  int numa_node = -1;         // -1: not known.
  std::vector<RdmaGid> gids;  // Those that channels may use, never empty.

  bool ethernet() const { return state.link_layer == IBV_LINK_LAYER_ETHERNET; }
  // The GID for a peer that `local_host`, an address of this host, routes to. If no GID has that
  // address (a peer on this host, say): one with an IPv4 address, else one that is routable.
  const RdmaGid& GidFor(std::string_view local_host) const;
  // True: that address is one of its GIDs.
  bool HasAddress(std::string_view local_host) const;
};

// The devices of the options; at least one, at most kMaxRdmaRails. Without names all that are
// usable, nearest first. Unavailable: there is no device, or a named one is down. InvalidArgument:
// a named device, port or GID does not exist.
Result<std::vector<RdmaPort>> OpenPorts(const RdmaOptions& options);

}  // namespace slackline::transport
