#include "transport/factory.h"

#include <string>

#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {

Result<std::unique_ptr<Endpoint>> CreateEndpoint(std::string_view name,
                                                 const EndpointOptions& options) {
  if (name == "tcp") {
    TcpOptions tcp;
    tcp.max_region_bytes = options.max_region_bytes;
    return TcpEndpoint::Create(tcp);
  }
  return Err(InvalidArgument("transport '" + std::string(name) + "' is not known: expected " +
                             std::string(TransportNames())));
}

std::string_view TransportNames() { return "tcp"; }

}  // namespace slackline::transport
