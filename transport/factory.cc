#include "transport/factory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "transport/auto/auto_endpoint.h"
#include "transport/host_id.h"
#include "transport/rdma/rdma_endpoint.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {
namespace {

using Made = Result<std::unique_ptr<Endpoint>>;

Made CreateShm(const EndpointOptions& options) {
  ShmOptions shm;
  shm.max_region_bytes = options.max_region_bytes;
  shm.poll_mode = options.poll_mode;
  return ShmEndpoint::Create(shm);
}

Made CreateTcp(const EndpointOptions& options) {
  TcpOptions tcp;
  tcp.max_region_bytes = options.max_region_bytes;
  tcp.link_gbps = options.link_gbps;
  return TcpEndpoint::Create(tcp);
}

Made CreateRdma(const EndpointOptions& options) {
  RdmaOptions rdma = options.rdma;
  rdma.max_region_bytes = options.max_region_bytes;
  return RdmaEndpoint::Create(rdma);
}

struct Transport {
  std::string_view name;
  Made (*create)(const EndpointOptions& options);
  // Why --transport=auto takes it where both ends have it.
  std::string_view auto_reason;
  // The host that its addresses name where it reaches only processes of one kind; null: any host.
  std::string (*host_id)();
};

// In the order in which --transport=auto prefers them; TCP, which is always there, last.
constexpr Transport kTransports[] = {
    {"shm", CreateShm, "same host", HostId},
    {"rdma", CreateRdma, "both ends have an RDMA device", nullptr},
    {"tcp", CreateTcp, "any host", nullptr},
};

Made CreateAuto(const EndpointOptions& options) {
  std::vector<AutoEndpoint::Member> members;
  for (const Transport& transport : kTransports) {
    Made endpoint = transport.create(options);
    AutoEndpoint::Member& member = members.emplace_back();
    member.scheme = transport.name;
    member.reason = endpoint ? std::string(transport.auto_reason) : endpoint.error().message();
    if (endpoint) member.endpoint = std::move(*endpoint);
    if (transport.host_id != nullptr) member.host_id = transport.host_id();
  }
  return AutoEndpoint::Create(std::move(members), options.poll_mode);
}

}  // namespace

Result<std::unique_ptr<Endpoint>> CreateEndpoint(std::string_view name,
                                                 const EndpointOptions& options) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckTransportName(name));
  if (name == "auto") return CreateAuto(options);
  return std::ranges::find(kTransports, name, &Transport::name)->create(options);
}

Status CheckTransportName(std::string_view name) {
  if (name == "auto" ||
      std::ranges::find(kTransports, name, &Transport::name) != std::ranges::end(kTransports)) {
    return OkStatus();
  }
  return InvalidArgument("transport '" + std::string(name) + "' is not known: expected one of " +
                         TransportNames());
}

std::string TransportNames() {
  std::string names = "auto";
  for (const Transport& transport : kTransports) names += ", " + std::string(transport.name);
  return names;
}

}  // namespace slackline::transport
