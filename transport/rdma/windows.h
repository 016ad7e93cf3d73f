// The memory that one channel lets its peer touch: a pair of type 2 memory windows a request, one
// over its payload (to READ) and one over its landing (to WRITE), bound when the request leaves and
// invalidated when its reply is here. Windows belong to their channel's queue pair: nobody else can
// use their keys, and nobody at all once it is destroyed.
//
// Where the device has no windows the grants carry the keys of whole regions.
//
// Threading: owner thread. Allocation: a pair is made when more requests are open than ever before.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "transport/rdma/frame.h"
#include "transport/rdma/rail.h"
#include "transport/rdma/work_list.h"

namespace slackline::transport {

class Windows {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit Windows(const Rail& rail);

  // A pair for a request that grants `payload` (of `payload_region`) and `landing` (of
  // `landing_region`); an empty one is not granted. ResourceExhausted: the device has no more.
  Result<uint32_t> Take(ConstBytes payload, ibv_mr* payload_region, MutableBytes landing,
                        ibv_mr* landing_region);
  // Binds the pair, two requests at most, and fills in the frame's grants.
  static constexpr size_t kBindRequests = 2;
  void Bind(uint32_t pair, WorkList& list, Frame* frame);
  // The request is answered. The pair is free again once Invalidate has had its turn.
  void Retire(uint32_t pair) { retired_.push_back(pair); }
  bool any_retired() const { return !retired_.empty(); }
  // Ends retired pairs, as many as the list has room for.
  void Invalidate(WorkList& list, size_t max_requests);
  // The list was posted: bound windows have their new keys.
  void OnPosted();

  // True: part of that region is granted, or was and may still be bound.
  bool Holds(const ibv_mr* region) const;

 private:
  struct Grant {
    VerbsPtr<ibv_mw> window;
    ibv_mr* region = nullptr;  // Null: not granted.
    uint64_t address = 0;
    uint32_t bytes = 0;
    uint32_t key = 0;  // 0: not bound.
  };
  struct Pair {
    Grant payload, landing;
  };
  Status Prepare(Grant* grant, ConstBytes memory, ibv_mr* region);
  void BindOne(Grant& grant, unsigned access, WorkList& list, Frame::Grant* out);
  void InvalidateOne(Grant& grant, WorkList& list);

  const Rail& rail_;
  std::vector<Pair> pairs_;
  std::vector<uint32_t> free_, retired_;
  std::vector<Grant*> bound_;  // By the list that is being made.
};

}  // namespace slackline::transport
