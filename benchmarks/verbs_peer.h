// One RC queue pair without anything of the protocol: what the device itself carries by WRITE, READ
// and SEND when it is driven as transport/rdma drives it (lists of work requests with one doorbell,
// one completion a list), to compare with perftest and with the protocol's own figures.
//
// Threading: an end belongs to the thread that runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "transport/rdma/device.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/verbs.h"
#include "transport/transport.h"

namespace slackline::bench {

enum class VerbsOp : uint8_t { kWrite, kRead, kSend };

// All that the other end must know, as one line of text.
struct VerbsCard {
  uint32_t queue_pair = 0;
  ibv_gid gid{};
  uint16_t lid = 0;
  uint32_t mtu_bytes = 0;
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t bytes = 0;

  std::string ToLine() const;
  // InvalidArgument: not such a line.
  static Result<VerbsCard> Parse(const std::string& line);
};

class VerbsEnd {
 public:
  // `local_host` is this host's address on the way to the other end; `bytes` of memory are given to
  // it. Errors: those of OpenPorts, and of verbs.
  static Result<std::unique_ptr<VerbsEnd>> Create(const transport::RdmaOptions& options,
                                                  std::string_view local_host, size_t bytes);
  VerbsCard card() const;
  Status Join(const VerbsCard& peer);

  struct Load {
    VerbsOp op = VerbsOp::kWrite;
    size_t payload_bytes = 0;  // At most what both ends were made with.
    size_t window = 1;         // Work requests posted and not completed, at most kMaxWindow.
  };
  struct Sample {
    uint64_t requests = 0;
    double seconds = 0;
    std::vector<double> latencies_us;  // One a list: post to completion. With window 1 one each.
  };
  // Keeps the window full for about `duration_ns`.
  Result<Sample> Run(const Load& load, TimeNs duration_ns);
  // Takes what SENDs bring until `stop`.
  Status Receive(const std::atomic<bool>& stop);

  static constexpr size_t kMaxWindow = 256;

 private:
  VerbsEnd() = default;
  Status Post(const Load& load, size_t count);
  Status PostReceives(size_t count);
  // Requests whose completion was there now.
  Result<size_t> Completed();

  transport::RdmaOptions options_;
  transport::RdmaPort port_;
  int gid_index_ = 0;
  transport::VerbsPtr<ibv_pd> domain_;
  uint64_t memory_bytes_ = 0;  // Counted by the region; outlives it.
  std::unique_ptr<transport::Region> memory_;
  transport::VerbsPtr<ibv_mr> registration_;
  transport::VerbsPtr<ibv_cq> completions_;
  transport::VerbsPtr<ibv_qp> pair_;
  VerbsCard peer_;
};

}  // namespace slackline::bench
