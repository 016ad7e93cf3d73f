// libibverbs objects as unique_ptrs. An object is destroyed in the reverse order of its making by
// the order of members; a destroy that fails is a bug of ours and is logged, not survived silently.
// Threading: as libibverbs: objects may be used from any thread, here from their owner's.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

namespace slackline::transport {

struct VerbsDeleter {
  void operator()(ibv_context* context) const;
  void operator()(ibv_pd* domain) const;
  void operator()(ibv_comp_channel* channel) const;
  void operator()(ibv_cq* queue) const;
  void operator()(ibv_srq* queue) const;
  void operator()(ibv_qp* pair) const;
  void operator()(ibv_mr* region) const;
  void operator()(ibv_mw* window) const;
};

template <typename T>
using VerbsPtr = std::unique_ptr<T, VerbsDeleter>;

// "fe80::5054:ff:fe12:3456" or "::ffff:10.0.0.2".
std::string GidText(const ibv_gid& gid);

// 256 to 4096 for IBV_MTU_256 to IBV_MTU_4096; 0 for anything else. And back.
uint32_t MtuBytes(ibv_mtu mtu);
ibv_mtu MtuOfBytes(uint32_t bytes);

}  // namespace slackline::transport
