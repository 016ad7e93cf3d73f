// The flags that say how bytes travel, the same for every program: --transport,
// --link_gbps and --rdma_*.
// Threading: call from main before other threads start.
#pragma once

#include <string>

#include "common/flags.h"
#include "transport/factory.h"

namespace slackline::transport {

struct TransportChoice {
  std::string name;
  EndpointOptions options;
};

// Exits with code 2 if a flag is wrong.
TransportChoice TransportFromFlags();

// For a program's help.
FlagGroup TransportFlagGroup();

}  // namespace slackline::transport
