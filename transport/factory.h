// Makes an endpoint from its transport's name, so that servers and workers choose one by a flag.
// Threading: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "common/status.h"
#include "transport/transport.h"

namespace slackline::transport {

struct EndpointOptions {
  // Bound on the bytes that Endpoint::Allocate hands out at one time.
  uint64_t max_region_bytes = uint64_t{256} << 30;
};

// `name` is the value of --transport, today "tcp". (The simulator is not made here: its endpoints
// share a network that their test owns.) InvalidArgument names the transports there are.
Result<std::unique_ptr<Endpoint>> CreateEndpoint(std::string_view name,
                                                 const EndpointOptions& options = {});

// "tcp": for messages about flags.
std::string_view TransportNames();

}  // namespace slackline::transport
