#include "transport/rdma/windows.h"

#include <algorithm>
#include <cerrno>

#include "transport/transport.h"

namespace slackline::transport {

Windows::Windows(const Rail& rail) : rail_(rail) {
  // Pairs do not move: `bound_` points at them.
  pairs_.reserve(kMaxOpenRequests);
  free_.reserve(kMaxOpenRequests);
  retired_.reserve(kMaxOpenRequests);
  bound_.reserve(WorkList::kCapacity);
}

Result<uint32_t> Windows::Take(ConstBytes payload, ibv_mr* payload_region, MutableBytes landing,
                               ibv_mr* landing_region) {
  if (free_.empty()) {
    if (pairs_.size() == kMaxOpenRequests) {
      return Err(ResourceExhausted("the windows of all open requests are in use"));
    }
    pairs_.emplace_back();
    free_.push_back(static_cast<uint32_t>(pairs_.size() - 1));
  }
  const uint32_t index = free_.back();
  Pair& pair = pairs_[index];
  SLACKLINE_RETURN_ERR_IF_ERROR(Prepare(&pair.payload, payload, payload_region));
  if (Status status = Prepare(&pair.landing, landing, landing_region); !status.ok()) {
    pair.payload.region = pair.landing.region = nullptr;
    return Err(status);
  }
  free_.pop_back();
  return index;
}

Status Windows::Prepare(Grant* grant, ConstBytes memory, ibv_mr* region) {
  grant->region = memory.empty() ? nullptr : region;
  grant->address = reinterpret_cast<uint64_t>(memory.data());
  grant->bytes = static_cast<uint32_t>(memory.size());
  if (grant->region == nullptr || grant->window || !rail_.has_windows()) return OkStatus();
  grant->window.reset(ibv_alloc_mw(rail_.domain(), IBV_MW_TYPE_2));
  if (grant->window) return OkStatus();
  return ResourceExhausted("RDMA device " + rail_.port().device + " has no more memory windows (" +
                           ErrnoStatus(errno, "ibv_alloc_mw").message() +
                           "): keep fewer requests open");
}

void Windows::Bind(uint32_t index, WorkList& list, Frame* frame) {
  Pair& pair = pairs_[index];
  BindOne(pair.payload, IBV_ACCESS_REMOTE_READ, list, &frame->payload);
  BindOne(pair.landing, IBV_ACCESS_REMOTE_WRITE, list, &frame->landing);
}

void Windows::BindOne(Grant& grant, unsigned access, WorkList& list, Frame::Grant* out) {
  if (grant.region == nullptr) return;
  if (grant.window) {
    // A key of its own every time: an old one does not fit the window's next use.
    grant.key = ibv_inc_rkey(grant.window->rkey);
    ibv_send_wr& bind = list.Add(IBV_WR_BIND_MW);
    bind.bind_mw.mw = grant.window.get();
    bind.bind_mw.rkey = grant.key;
    bind.bind_mw.bind_info = {.mr = grant.region,
                              .addr = grant.address,
                              .length = grant.bytes,
                              .mw_access_flags = access};
    bound_.push_back(&grant);
  } else {
    grant.key = grant.region->rkey;
  }
  *out = {.address = grant.address, .bytes = grant.bytes, .key = grant.key};
}

void Windows::OnPosted() {
  // Not before: providers read the old key when the request is posted.
  for (Grant* grant : bound_) grant->window->rkey = grant->key;
  bound_.clear();
}

void Windows::Invalidate(WorkList& list, size_t max_requests) {
  while (!retired_.empty() && std::min(max_requests, list.room()) >= kBindRequests) {
    const uint32_t index = retired_.back();
    const size_t before = list.size();
    InvalidateOne(pairs_[index].payload, list);
    InvalidateOne(pairs_[index].landing, list);
    max_requests -= list.size() - before;
    retired_.pop_back();
    // Free at once: what binds it again stands behind this in the send queue.
    free_.push_back(index);
  }
}

void Windows::InvalidateOne(Grant& grant, WorkList& list) {
  if (grant.window && grant.key != 0) {
    list.Add(IBV_WR_LOCAL_INV).invalidate_rkey = grant.key;
  }
  grant.key = 0;
  grant.region = nullptr;
}

bool Windows::Holds(const ibv_mr* region) const {
  return std::any_of(pairs_.begin(), pairs_.end(), [region](const Pair& pair) {
    return pair.payload.region == region || pair.landing.region == region;
  });
}

}  // namespace slackline::transport
