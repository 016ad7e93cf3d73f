#include "transport/rdma/verbs.h"

#include <arpa/inet.h>
#include <glog/logging.h>

#include <cstring>

namespace slackline::transport {
namespace {

// Verbs return the error number.
void Expect(int error, const char* what) {
  LOG_IF(ERROR, error != 0) << what << ": " << std::strerror(error);
}

}  // namespace

void VerbsDeleter::operator()(ibv_context* context) const {
  Expect(ibv_close_device(context) == 0 ? 0 : errno, "ibv_close_device");
}
void VerbsDeleter::operator()(ibv_pd* domain) const {
  Expect(ibv_dealloc_pd(domain), "ibv_dealloc_pd");
}
void VerbsDeleter::operator()(ibv_comp_channel* channel) const {
  Expect(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
}
void VerbsDeleter::operator()(ibv_cq* queue) const { Expect(ibv_destroy_cq(queue), "destroy_cq"); }
void VerbsDeleter::operator()(ibv_srq* queue) const {
  Expect(ibv_destroy_srq(queue), "ibv_destroy_srq");
}
void VerbsDeleter::operator()(ibv_qp* pair) const { Expect(ibv_destroy_qp(pair), "destroy_qp"); }
void VerbsDeleter::operator()(ibv_mr* region) const {
  Expect(ibv_dereg_mr(region), "ibv_dereg_mr");
}
void VerbsDeleter::operator()(ibv_mw* window) const {
  Expect(ibv_dealloc_mw(window), "ibv_dealloc_mw");
}

std::string GidText(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  return text;
}

uint32_t MtuBytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

ibv_mtu MtuOfBytes(uint32_t bytes) {
  ibv_mtu mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && MtuBytes(mtu) < bytes) mtu = static_cast<ibv_mtu>(mtu + 1);
  return mtu;
}

}  // namespace slackline::transport
