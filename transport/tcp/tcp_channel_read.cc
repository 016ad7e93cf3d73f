// Reading: from the socket into a header or straight into a landing.
#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {
namespace {

// Reads of one channel in one pass: bounds small messages as pass_bytes bounds large ones.
constexpr int kMaxReadsPerPass = 32;
// Reads that find nothing before the channel waits for the reactor: a registration and a wake-up
// cost more than a vain read.
constexpr uint32_t kReadTriesBeforeWaiting = 1;

// True: the bytes so far can be the beginning of a header.
bool MayBeMagic(std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, 4> kMagic = {
      std::byte{proto::kWireMagic & 0xff}, std::byte{(proto::kWireMagic >> 8) & 0xff},
      std::byte{(proto::kWireMagic >> 16) & 0xff}, std::byte{proto::kWireMagic >> 24}};
  return std::memcmp(bytes.data(), kMagic.data(), std::min(bytes.size(), kMagic.size())) == 0;
}

}  // namespace

void TcpChannel::ServiceReads() {
  // Writing goes on while the handler's Later() holds; it is asked again after ResumeReceiving.
  if (reading_ == Reading::kPaused) return;
  // After ResumeReceiving the header is here and the handler has yet to say where its payload goes.
  if (header_filled_ == proto::kWireHeaderBytes) AskForLanding();

  size_t budget_bytes = endpoint_.options_.pass_bytes;
  for (int turn = 0; turn < kMaxReadsPerPass && budget_bytes > 0; ++turn) {
    if (phase_ != Phase::kOpen || reading_ == Reading::kPaused) return;
    const size_t allowed_bytes = endpoint_.receive_pacer_.Available(endpoint_.now_ns_);
    if (allowed_bytes == 0) {
      read_paced = true;
      endpoint_.NotePaced(endpoint_.receive_pacer_);
      return;
    }
    budget_bytes = std::min(budget_bytes, allowed_bytes);
    std::array<iovec, 2> vectors;
    size_t wanted_bytes = 0;
    const size_t count = ReadVectors(vectors, budget_bytes, &wanted_bytes);
    const IoResult result =
        ScatterRead(socket_.native_handle(), {vectors.data(), count}, endpoint_.io_stats_);
    if (result.error == EAGAIN) {
      if (++read_misses_ >= kReadTriesBeforeWaiting) WaitReadable();
      return;
    }
    if (result.error != 0) {
      Fail(Unavailable("the connection to " + peer_ + " broke: " + std::strerror(result.error)));
      return;
    }
    if (result.bytes == 0) {
      const bool inside = reading_ != Reading::kHeader || header_filled_ > 0;
      Fail(Unavailable(peer_ + (inside ? " left in the middle of a message" : " left")));
      return;
    }
    read_misses_ = 0;
    ++endpoint_.events_;
    budget_bytes -= std::min(budget_bytes, result.bytes);
    endpoint_.receive_pacer_.Take(result.bytes);
    ConsumeRead(result.bytes);
    // The socket is empty most likely; the next pass finds out.
    if (result.bytes < wanted_bytes) return;
  }
}

size_t TcpChannel::ReadVectors(std::span<iovec> vectors, size_t budget_bytes,
                               size_t* wanted_bytes) {
  size_t count = 0;
  *wanted_bytes = 0;
  if (reading_ != Reading::kHeader) {
    const size_t rest = header_.payload_bytes - payload_filled_;
    MutableBytes target;
    if (reading_ == Reading::kPayload) {
      target = landing_.subspan(payload_filled_, std::min(rest, budget_bytes));
    } else {
      target = MutableBytes(endpoint_.drain_).first(std::min(rest, endpoint_.drain_.size()));
    }
    vectors[count++] = {target.data(), target.size()};
    *wanted_bytes += target.size();
    // The next header may only follow the last byte of the payload.
    if (target.size() < rest) return count;
  }
  const size_t header_rest = header_bytes_.size() - header_filled_;
  vectors[count++] = {header_bytes_.data() + header_filled_, header_rest};
  *wanted_bytes += header_rest;
  return count;
}

void TcpChannel::ConsumeRead(size_t bytes) {
  // Noted where a message begins or goes on; the sweep that looks at it runs seldom.
  read_progress_ns_ = endpoint_.now_ns_;
  bytes_read_ += bytes;
  if (reading_ != Reading::kHeader) {
    const size_t take = std::min(bytes, header_.payload_bytes - payload_filled_);
    payload_filled_ += take;
    bytes -= take;
    (reading_ == Reading::kPayload ? endpoint_.stats_.payload_bytes_received
                                   : endpoint_.stats_.payload_bytes_drained) += take;
    if (payload_filled_ < header_.payload_bytes) {
      endpoint_.NoteDeadline(DeadlineNs());
      return;
    }
    FinishPayload();
    if (phase_ != Phase::kOpen) return;
  }
  header_filled_ += bytes;
  if (header_filled_ > 0) ConsumeHeader();
}

void TcpChannel::ConsumeHeader() {
  const std::span<const std::byte> filled = std::span(header_bytes_).first(header_filled_);
  if (!MayBeMagic(filled)) {
    FailProtocol(DataLoss(peer_ + " sent bytes that are not a Slackline message"));
    return;
  }
  if (header_filled_ < header_bytes_.size()) {
    endpoint_.NoteDeadline(DeadlineNs());
    return;
  }
  Result<proto::WireHeader> parsed = proto::ParseWireHeader(header_bytes_);
  if (!parsed) {
    FailProtocol(std::move(parsed).error());
    return;
  }
  header_ = *parsed;
  payload_filled_ = 0;
  if (role_ == Role::kAcceptor) {
    OnRequestHeader();
  } else {
    OnReplyHeader();
  }
}

void TcpChannel::OnRequestHeader() {
  if (!proto::IsRequest(header_.kind)) {
    FailProtocol(InvalidArgument(peer_ + " sent a message of the wrong direction: " +
                                 std::string(proto::MessageKindName(header_.kind))));
    return;
  }
  if (!requests_) CreateTables();
  if (requests_->Insert(header_.request_id) == nullptr) {
    FailProtocol(InvalidArgument(
        peer_ +
        (requests_->full()
             ? " has more than " + std::to_string(kMaxOpenRequests) + " requests open"
             : " sent request id " + std::to_string(header_.request_id) + " while it is open")));
    return;
  }
  if (header_.payload_bytes > 0) {
    AskForLanding();
    return;
  }
  landing_ = {};
  FinishPayload();
}

void TcpChannel::AskForLanding() {
  const Landing answer = endpoint_.handler_->OnRequestArriving(*this, header_);
  if (phase_ != Phase::kOpen) return;
  switch (answer.verdict) {
    case Landing::Verdict::kInto:
      CHECK_EQ(answer.memory.size(), header_.payload_bytes)
          << "the handler's landing must fit the payload exactly";
      landing_ = answer.memory;
      reading_ = Reading::kPayload;
      break;
    case Landing::Verdict::kDrain:
      landing_ = {};
      reading_ = Reading::kDrain;
      break;
    case Landing::Verdict::kLater:
      reading_ = Reading::kPaused;
      return;  // The header stays in its buffer: it marks that the question is open.
  }
  header_filled_ = 0;
  endpoint_.NoteDeadline(DeadlineNs());
}

void TcpChannel::OnReplyHeader() {
  RequestTable::Entry* entry = requests_->Find(header_.request_id);
  const bool reply = header_.kind == proto::MessageKind::kReply;
  const bool taken = header_.kind == proto::MessageKind::kTaken && header_.payload_bytes == 0;
  if (entry == nullptr || !(reply || taken)) {
    FailProtocol(InvalidArgument(
        peer_ + " sent a message that answers no open request: " + proto::Describe(header_)));
    return;
  }
  if (taken) {
    header_filled_ = 0;
    ++endpoint_.events_;
    endpoint_.handler_->OnTaken(*this, header_.request_id);
    return;
  }
  if (header_.payload_bytes > entry->landing.size()) {
    FailProtocol(DataLoss(peer_ + " answered request " + std::to_string(header_.request_id) +
                          " with " + std::to_string(header_.payload_bytes) +
                          " bytes, its landing holds " + std::to_string(entry->landing.size())));
    return;
  }
  landing_ = entry->landing.first(header_.payload_bytes);
  if (header_.payload_bytes > 0) {
    reading_ = Reading::kPayload;
    header_filled_ = 0;
    endpoint_.NoteDeadline(DeadlineNs());
    return;
  }
  FinishPayload();
}

void TcpChannel::FinishPayload() {
  const MutableBytes payload = landing_;
  landing_ = {};
  reading_ = Reading::kHeader;
  header_filled_ = 0;
  ++endpoint_.events_;
  if (role_ == Role::kAcceptor) {
    ++endpoint_.stats_.requests_received;
    endpoint_.handler_->OnRequest(*this, header_, payload);
    return;
  }
  // Closed before the call: the handler may use the id and the landing again.
  requests_->Erase(header_.request_id);
  ++endpoint_.stats_.replies_received;
  endpoint_.handler_->OnReply(*this, header_, payload);
}

void TcpChannel::WaitReadable() {
  read_waiting_ = true;
  read_misses_ = 0;
  ++pending_waits;
  ++endpoint_.io_stats_.read_waits;
  socket_.async_wait(TcpSocket::wait_read,
                     InSlot(read_slot_, [this](const boost::system::error_code&) {
                       --pending_waits;
                       read_waiting_ = false;
                       // An error shows again, with its reason, in the read that follows.
                       endpoint_.Activate(*this);
                     }));
}

}  // namespace slackline::transport
