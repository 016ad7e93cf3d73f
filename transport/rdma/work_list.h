// Work requests that leave with one doorbell.
// Threading: owner thread. Allocation: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/rdma/verbs.h"

namespace slackline::transport {

class WorkList {
 public:
  // A message has at most its frame and its payload.
  static constexpr size_t kMaxPieces = 2;
  static constexpr size_t kCapacity = 64;

  size_t size() const { return size_; }
  size_t room() const { return kCapacity - size_; }
  void Clear() { size_ = 0; }

  // The next request, zeroed but for its place in the list. There must be room.
  ibv_send_wr& Add(ibv_wr_opcode opcode) {
    ibv_send_wr& request = requests_[size_];
    request = {};
    request.opcode = opcode;
    request.sg_list = pieces_[size_].data();
    if (size_ > 0) requests_[size_ - 1].next = &request;
    ++size_;
    return request;
  }
  static void AddPiece(ibv_send_wr& request, const void* data, size_t bytes, uint32_t key) {
    request.sg_list[request.num_sge++] = {.addr = reinterpret_cast<uint64_t>(data),
                                          .length = static_cast<uint32_t>(bytes),
                                          .lkey = key};
  }
  ibv_send_wr& back() { return requests_[size_ - 1]; }
  ibv_send_wr* head() { return requests_.data(); }

 private:
  size_t size_ = 0;
  std::array<ibv_send_wr, kCapacity> requests_;
  std::array<std::array<ibv_sge, kMaxPieces>, kCapacity> pieces_;
};

}  // namespace slackline::transport
