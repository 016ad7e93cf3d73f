// Makes an endpoint from its transport's name, so that servers and workers choose one by a flag.
// A new transport is one line in the table of factory.cc.
// Threading: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "transport/poll_mode.h"
#include "transport/rdma/rdma_options.h"
#include "transport/transport.h"

namespace slackline::transport {

struct EndpointOptions {
  // Bound on the bytes that Endpoint::Allocate hands out at one time.
  uint64_t max_region_bytes = uint64_t{256} << 30;
  // How a waiting Poll() waits. TCP by itself always sleeps.
  PollMode poll_mode = PollMode::kAdaptive;
  // For "rdma", also as one of auto's ways.
  RdmaOptions rdma = {};
  // Throttles the endpoint to a link of this speed, in each direction; 0: not. TCP only.
  double link_gbps = 0;
};

// `name` is the value of --transport. "auto" picks for each peer: shared memory on one host, RDMA
// where both ends have a device, else TCP. (The simulator is not made here: its endpoints share a
// network that their test owns.) InvalidArgument names the transports there are; other errors: this
// machine does not have it.
Result<std::unique_ptr<Endpoint>> CreateEndpoint(std::string_view name,
                                                 const EndpointOptions& options = {});

// OK, or InvalidArgument: not a transport's name.
Status CheckTransportName(std::string_view name);
// "auto, shm, tcp": for messages about flags.
std::string TransportNames();

}  // namespace slackline::transport
