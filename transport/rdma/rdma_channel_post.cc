// Posting: everything that a channel has to send leaves in one list with one doorbell; and what the
// completions of sends mean.
#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "transport/rdma/rdma_channel.h"
#include "transport/rdma/rdma_endpoint.h"

namespace slackline::transport {
namespace {

// Requests without a completion of their own that may gather: a quarter of the messages that fit
// staging memory, so that its places come back while others are under way.
constexpr uint32_t kSignalEvery = kMaxPostedMessages / 4;
// Kept free for the message that returns credits.
constexpr uint32_t kReserve = 1;

constexpr bool IsBefore(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace

uint32_t RdmaChannel::QueueRoom(const WorkList& list) const {
  const uint32_t used = posted_end_ - completed_end_ + static_cast<uint32_t>(list.size());
  const auto room = static_cast<uint32_t>(list.room());
  return used >= kSendQueueDepth ? 0 : std::min(kSendQueueDepth - used, room);
}

bool RdmaChannel::CreditIsDue() const { return consumed_ >= kReceiveCredits / 2; }

bool RdmaChannel::MayPostMessage() const {
  return credits_ > 0 && messages_ + kReserve < kMaxPostedMessages;
}

void RdmaChannel::Flush() {
  WorkList& list = endpoint_.work_list_;
  list.Clear();
  // Credits are returned for buffers that are posted.
  rail_->PostRecycled();
  if (ready_to_send_ && QueueRoom(list) > 0) {
    ready_to_send_ = false;
    AddSend({.type = Frame::Type::kReady,
             .payload_kind = {},
             .credits = 0,
             .payload = {},
             .landing = {}},
            nullptr, list);
  }
  if (phase_ == Phase::kOpen) {
    if (QueueRoom(list) > kReserve) windows_->Invalidate(list, QueueRoom(list) - kReserve);
    AddReads(list);
    while (!outgoing_->empty() && MayPostMessage() && AddMessage(list)) {
    }
    if (CreditIsDue() && messages_ < kMaxPostedMessages && QueueRoom(list) > 0) {
      AddSend({.type = Frame::Type::kCredit,
               .payload_kind = {},
               .credits = 0,
               .payload = {},
               .landing = {}},
              nullptr, list);
    }
  }
  Post(list);
}

void RdmaChannel::AddReads(WorkList& list) {
  for (; next_read_ != asked_; ++next_read_) {
    Arrival& arrival = arrivals_.at(next_read_);
    if (arrival.state != Arrival::State::kReading) continue;
    const uint32_t total = arrival.header.payload_bytes;
    while (arrival.read_posted < total) {
      if (reads_ == max_reads_ || QueueRoom(list) <= kReserve) return;  // A completion goes on.
      if (!endpoint_.TakeRead(*this)) return;
      ++reads_;
      const uint32_t bytes = std::min(kSegmentBytes, total - arrival.read_posted);
      ibv_send_wr& read = list.Add(IBV_WR_RDMA_READ);
      read.wr.rdma.remote_addr = arrival.frame.payload.address + arrival.read_posted;
      read.wr.rdma.rkey = arrival.frame.payload.key;
      read.send_flags = IBV_SEND_SIGNALED;
      const MutableBytes to = arrival.landing.subspan(arrival.read_posted, bytes);
      WorkList::AddPiece(read, to.data(), bytes, arrival.landing_key);
      arrival.read_posted += bytes;
      NotePosted({.kind = Posted::Kind::kRead,
                  .end = 0,
                  .bytes = bytes,
                  .request_id = 0,
                  .arrival = next_read_},
                 list);
    }
  }
}

// False: it does not fit now.
bool RdmaChannel::AddMessage(WorkList& list) {
  const Outgoing& message = outgoing_->front();
  const bool written = message.kind == Frame::Payload::kWritten;
  const size_t writes =
      written ? (message.payload.size() + segment_bytes_ - 1) / segment_bytes_ : 0;
  if (QueueRoom(list) < writes + Windows::kBindRequests + 1 + kReserve) return false;
  Frame frame{.type = Frame::Type::kMessage,
              .payload_kind = message.kind,
              .credits = 0,
              .payload = {},
              .landing = {}};
  if (message.window != Windows::kNone) windows_->Bind(message.window, list, &frame);
  if (written) AddWrites(message, list);
  AddSend(frame, &message, list);
  --credits_;
  endpoint_.stats_.payload_bytes_sent += role_ == Role::kConnector ? message.payload.size() : 0;
  outgoing_->Pop();
  return true;
}

// The SEND that follows on the same queue pair is received after these bytes are in place.
void RdmaChannel::AddWrites(const Outgoing& message, WorkList& list) {
  for (size_t done = 0; done < message.payload.size(); done += segment_bytes_) {
    const ConstBytes part = message.payload.subspan(
        done, std::min<size_t>(segment_bytes_, message.payload.size() - done));
    ibv_send_wr& write = list.Add(IBV_WR_RDMA_WRITE);
    write.wr.rdma.remote_addr = message.target.address + done;
    write.wr.rdma.rkey = message.target.key;
    WorkList::AddPiece(write, part.data(), part.size(), message.payload_key);
  }
}

// A frame alone, or with a message behind it.
void RdmaChannel::AddSend(const Frame& frame, const Outgoing* message, WorkList& list) {
  const MutableBytes stage = rail_->SendSlot(unit_, staged_++ % kMaxPostedMessages);
  Frame complete = frame;
  complete.credits = static_cast<uint16_t>(consumed_);
  consumed_ = 0;
  EncodeFrame(complete, stage.first<kFrameBytes>());
  ibv_send_wr& send = list.Add(IBV_WR_SEND);
  size_t bytes = kFrameBytes;
  if (message != nullptr) {
    proto::EncodeWireHeader(message->header, stage.subspan<kFrameBytes, proto::kWireHeaderBytes>());
    bytes = kPrefixBytes;
  }
  WorkList::AddPiece(send, stage.data(), bytes, rail_->SendKey(unit_));
  if (message != nullptr && message->kind == Frame::Payload::kEager) {
    WorkList::AddPiece(send, message->payload.data(), message->payload.size(),
                       message->payload_key);
    bytes += message->payload.size();
  }
  if (bytes <= inline_bytes_) send.send_flags |= IBV_SEND_INLINE;
  ++messages_;
  const bool reply = message != nullptr && message->header.kind == proto::MessageKind::kReply;
  NotePosted({.kind = reply ? Posted::Kind::kReply : Posted::Kind::kMessage,
              .end = 0,
              .bytes = reply ? message->header.payload_bytes : 0,
              .request_id = reply ? message->header.request_id : 0,
              .arrival = 0},
             list);
}

void RdmaChannel::NotePosted(Posted posted, const WorkList& list) {
  posted.end = posted_end_ + static_cast<uint32_t>(list.size());
  posted_.Push(posted);
}

void RdmaChannel::Post(WorkList& list) {
  if (list.size() == 0) return;
  const auto count = static_cast<uint32_t>(list.size());
  // The last one of a list with replies tells that their memory is free; READs are signalled each.
  const bool due = posted_end_ + count - signalled_end_ >= kSignalEvery;
  if (role_ == Role::kAcceptor || due) list.back().send_flags |= IBV_SEND_SIGNALED;
  uint32_t end = posted_end_;
  for (ibv_send_wr* request = list.head(); request != nullptr; request = request->next) {
    request->wr_id = uint64_t{id_} << 32 | ++end;
    if ((request->send_flags & IBV_SEND_SIGNALED) != 0) signalled_end_ = end;
  }
  posted_end_ = end;
  ++endpoint_.events_;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair_.get(), list.head(), &bad);
  windows_->OnPosted();
  if (error != 0) {
    Fail(Unavailable("the queue pair to " + peer_ + " takes no work: " + std::strerror(error)));
    return;
  }
  endpoint_.Activate(*this);
}

void RdmaChannel::OnPosted(uint32_t end) {
  completed_end_ = end;
  while (!posted_.empty() && !IsBefore(end, posted_.front().end)) {
    const Posted done = posted_.front();
    posted_.Pop();
    if (done.kind == Posted::Kind::kRead) {
      --reads_;
      endpoint_.OnReadsDone(1);
      Arrival& arrival = arrivals_.at(done.arrival);
      arrival.read_done += done.bytes;
      if (arrival.read_done < arrival.header.payload_bytes) continue;
      arrival.state = Arrival::State::kReady;
      endpoint_.stats_.payload_bytes_received += arrival.read_done;
      DeliverReady();
      if (phase_ != Phase::kOpen) return;
      continue;
    }
    --messages_;
    if (done.kind != Posted::Kind::kReply) continue;
    // Only now is the request closed: a peer that sends on without reading its replies meets the
    // bound on open requests.
    RequestTable::Entry* entry = requests_->Find(done.request_id);
    CHECK(entry != nullptr) << "a reply is of an open request";
    free_landings_.push_back(entry->tag);
    requests_->Erase(done.request_id);
    ++endpoint_.stats_.replies_sent;
    endpoint_.stats_.payload_bytes_sent += done.bytes;
    ++endpoint_.events_;
    endpoint_.handler_->OnReplySent(*this, done.request_id);
    if (phase_ != Phase::kOpen) return;
  }
  endpoint_.Activate(*this);
}

void RdmaChannel::OnCompletionError(const ibv_wc& completion) {
  const std::string what = ibv_wc_status_str(completion.status);
  if (completion.status == IBV_WC_REM_ACCESS_ERR) {
    FailProtocol(InvalidArgument(peer_ + " granted memory that it does not let us touch: " + what));
    return;
  }
  const bool silent = completion.status == IBV_WC_RETRY_EXC_ERR;
  Fail(Unavailable("the RDMA connection to " + peer_ + " broke: " + what +
                   (silent ? ", the peer does not acknowledge: this end is " + Describe(mine_) +
                                 ", the peer " + Describe(theirs_)
                           : std::string())));
}

}  // namespace slackline::transport
