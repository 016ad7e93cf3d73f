// One device port of an endpoint with what its channels share: protection domain, completion queue,
// shared receive queue with its buffers, and the staging memory of messages. Made when the first
// channel needs it.
//
// Receive buffers: a channel's peer may have kChannelReceives messages under way, and so many
// buffers are posted for each channel, so that no message ever finds the queue empty. They come in
// units of one channel, registered in blocks of many units.
//
// Threading: owner thread: its endpoint's. Allocation: none but where a channel opens or closes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "transport/rdma/device.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/verbs.h"
#include "transport/transport.h"

namespace slackline::transport {

// Completions of receives are told from those of sends by this bit of the work request's id.
inline constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

class Rail {
 public:
  Rail(RdmaPort port, uint32_t index, const RdmaOptions& options);

  const RdmaPort& port() const { return port_; }
  uint32_t index() const { return index_; }
  // Makes the queues; harmless when they are there.
  Status Start();
  bool started() const { return receives_ != nullptr; }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_cq* completions() const { return completions_.get(); }
  ibv_srq* receives() const { return receives_.get(); }
  // Grants are type 2 memory windows, each one request's; without them a whole region is granted.
  bool has_windows() const { return has_windows_; }

  // ResourceExhausted names the bytes, the memlock limit and the cure.
  // `granted`: peers will be let in, through windows or by its key.
  Result<VerbsPtr<ibv_mr>> Register(MutableBytes memory, bool granted) const;

  // ---- Units: what one channel adds ----
  Result<uint32_t> TakeUnit();
  void ReturnUnit(uint32_t unit) { free_units_.push_back(unit); }
  // Staging memory of one message (kPrefixBytes), and its local key.
  MutableBytes SendSlot(uint32_t unit, uint32_t slot) const;
  uint32_t SendKey(uint32_t unit) const;

  // ---- Receives ----
  ConstBytes Received(uint32_t buffer, uint32_t bytes) const;
  // Posts it again, together with others at the next PostRecycled.
  void Recycle(uint32_t buffer);
  void PostRecycled();

  // ---- Completions ----
  // False: there is none now.
  bool NextCompletion(ibv_wc* completion);
  // Forgets what is left of a queue pair that is in the error state or destroyed, so that neither
  // its buffers are lost nor a successor with its number gets its messages.
  void Forget(uint32_t queue_pair);
  int event_descriptor() const { return events_->fd; }
  // The next completion, and each one that is there already, makes the descriptor readable.
  void Arm();
  // Takes what made it readable.
  void TakeEvents();

 private:
  struct Block {
    std::unique_ptr<Region> memory;
    VerbsPtr<ibv_mr> registration;
  };
  size_t UnitBytes() const;
  MutableBytes Unit(uint32_t unit) const;
  Status AddBlock();

  const RdmaPort port_;
  const uint32_t index_;
  const uint64_t max_region_bytes_;
  const size_t receive_bytes_;  // Of one buffer.
  bool has_windows_ = false;
  uint64_t region_bytes_ = 0;

  VerbsPtr<ibv_pd> domain_;
  VerbsPtr<ibv_comp_channel> events_;
  VerbsPtr<ibv_cq> completions_;
  std::vector<Block> blocks_;
  VerbsPtr<ibv_srq> receives_;

  uint32_t units_ = 0;  // Whose buffers are posted.
  uint32_t max_units_ = 0;
  std::vector<uint32_t> free_units_;
  std::vector<uint32_t> recycled_;  // To be posted.
  std::vector<ibv_wc> batch_;       // Polled, from next_ on not handled yet.
  size_t next_ = 0;
  bool armed_ = false;
};

}  // namespace slackline::transport
