// Writing: queued messages leave in gather writes of many messages each.
#include <algorithm>
#include <array>
#include <cstring>

#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {
namespace {

// 32 messages with payload in one call; more would not make a call cheaper per byte.
constexpr size_t kMaxVectors = 64;
// Writes of one channel in one pass.
constexpr int kMaxWritesPerPass = 4;

}  // namespace

void TcpChannel::ServiceWrites() {
  size_t budget_bytes = endpoint_.options_.pass_bytes;
  for (int turn = 0; turn < kMaxWritesPerPass && budget_bytes > 0; ++turn) {
    if (phase_ != Phase::kOpen || queue_->empty()) return;
    const size_t allowed_bytes = endpoint_.send_pacer_.Available(endpoint_.now_ns_);
    if (allowed_bytes == 0) {
      write_paced = true;
      endpoint_.NotePaced(endpoint_.send_pacer_);
      return;
    }
    budget_bytes = std::min(budget_bytes, allowed_bytes);
    std::array<iovec, kMaxVectors> vectors;
    size_t wanted_bytes = 0;
    const size_t count = queue_->Gather(vectors, budget_bytes, &wanted_bytes);
    const IoResult result =
        GatherWrite(socket_.native_handle(), {vectors.data(), count}, endpoint_.io_stats_);
    if (result.error == EAGAIN) {
      WaitWritable();
      return;
    }
    if (result.error != 0) {
      Fail(Unavailable("the connection to " + peer_ + " broke: " + std::strerror(result.error)));
      return;
    }
    ++endpoint_.events_;
    budget_bytes -= result.bytes;
    endpoint_.send_pacer_.Take(result.bytes);
    queue_->Advance(result.bytes);
    ReportWritten();
    // A short write means a full socket: there is no point in asking again.
    if (result.bytes < wanted_bytes && phase_ == Phase::kOpen) {
      WaitWritable();
      return;
    }
  }
}

void TcpChannel::ReportWritten() {
  while (phase_ == Phase::kOpen) {
    const SendQueue::Message* message = queue_->FinishedHead();
    if (message == nullptr) return;
    const uint64_t request_id = message->request_id;
    const proto::MessageKind kind = message->kind;
    endpoint_.stats_.payload_bytes_sent += message->payload.size();
    queue_->Pop();
    if (kind != proto::MessageKind::kReply) continue;
    // Only now is the request closed: a peer that sends on without reading its replies meets the
    // bound on open requests.
    requests_->Erase(request_id);
    ++endpoint_.stats_.replies_sent;
    ++endpoint_.events_;
    endpoint_.handler_->OnReplySent(*this, request_id);
  }
}

void TcpChannel::WaitWritable() {
  write_waiting_ = true;
  ++pending_waits;
  ++endpoint_.io_stats_.write_waits;
  socket_.async_wait(TcpSocket::wait_write,
                     InSlot(write_slot_, [this](const boost::system::error_code&) {
                       --pending_waits;
                       write_waiting_ = false;
                       endpoint_.Activate(*this);
                     }));
}

}  // namespace slackline::transport
