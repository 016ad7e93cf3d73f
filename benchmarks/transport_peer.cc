#include "benchmarks/transport_peer.h"

#include <algorithm>
#include <utility>

#include "transport/factory.h"

namespace slackline::bench {
namespace {

using proto::MessageKind;
using proto::WireHeader;
using transport::Landing;

constexpr TimeNs kConnectTimeoutNs = 10 * kNsPerSecond;
constexpr TimeNs kPollNs = 10 * kNsPerMs;
// Latencies kept of one run: its first ones.
constexpr size_t kMaxLatencies = 1u << 20;

// The part of a region that request number `turn` of this size uses; parts take turns.
MutableBytes Part(const transport::Region& region, uint64_t turn, size_t size_bytes) {
  const size_t stride_bytes = std::max<size_t>((size_bytes + 4095) / 4096 * 4096, 4096);
  const size_t parts = region.bytes().size() / stride_bytes;
  return region.bytes().subspan((turn % parts) * stride_bytes, size_bytes);
}

}  // namespace

// ---- The answering end ----

Result<std::unique_ptr<AnsweringEnd>> AnsweringEnd::Create(const std::string& transport,
                                                           const std::string& listen_at) {
  std::unique_ptr<AnsweringEnd> end(new AnsweringEnd());
  SLACKLINE_ASSIGN_OR_RETURN(end->endpoint_, transport::CreateEndpoint(transport));
  end->endpoint_->set_handler(end.get());
  SLACKLINE_ASSIGN_OR_RETURN(end->in_, end->endpoint_->Allocate(kPeerBufferBytes));
  SLACKLINE_ASSIGN_OR_RETURN(end->out_, end->endpoint_->Allocate(kPeerBufferBytes));
  std::fill(end->out_->bytes().begin(), end->out_->bytes().end(), std::byte{1});
  SLACKLINE_ASSIGN_OR_RETURN(end->address_, end->endpoint_->Listen(listen_at));
  return end;
}

Landing AnsweringEnd::OnRequestArriving(transport::Channel&, const WireHeader& header) {
  if (header.payload_bytes > kPeerMaxBytes) return Landing::Drain();
  return Landing::Into(Part(*in_, static_cast<uint64_t>(header.clock), header.payload_bytes));
}

void AnsweringEnd::OnRequest(transport::Channel& channel, const WireHeader& header,
                             MutableBytes payload) {
  WireHeader reply = header;
  reply.kind = MessageKind::kReply;
  const bool pull = header.kind == MessageKind::kPushPull;
  const MutableBytes answer =
      pull ? Part(*out_, static_cast<uint64_t>(header.clock), payload.size()) : MutableBytes();
  reply.payload_bytes = static_cast<uint32_t>(answer.size());
  // Refused only when the channel is closed, which OnClosed tells.
  (void)channel.Reply(reply, answer);
}

// ---- The asking end ----

Result<std::unique_ptr<AskingEnd>> AskingEnd::Create(const std::string& transport,
                                                     const std::string& address) {
  std::unique_ptr<AskingEnd> end(new AskingEnd());
  SLACKLINE_ASSIGN_OR_RETURN(end->endpoint_, transport::CreateEndpoint(transport));
  end->endpoint_->set_handler(end.get());
  SLACKLINE_ASSIGN_OR_RETURN(end->payloads_, end->endpoint_->Allocate(kPeerBufferBytes));
  SLACKLINE_ASSIGN_OR_RETURN(end->landings_, end->endpoint_->Allocate(kPeerBufferBytes));
  std::fill(end->payloads_->bytes().begin(), end->payloads_->bytes().end(), std::byte{2});
  SLACKLINE_ASSIGN_OR_RETURN(end->channel_, end->endpoint_->Connect(address, kConnectTimeoutNs));
  // Bounded by the connect's timeout.
  while (!end->open_ && end->failure_.ok()) end->endpoint_->Poll(kPollNs);
  if (!end->failure_.ok()) return Err(end->failure_);
  return end;
}

Result<AskingEnd::Sample> AskingEnd::Run(const Load& load, TimeNs duration_ns) {
  Sample sample;
  sample.latencies_us.reserve(kMaxLatencies);
  load_ = load;
  sample_ = &sample;
  draining_ = false;
  asked_ns_.assign(load.window, 0);
  const TimeNs start_ns = time_.NowNs();
  for (uint64_t slot = 0; slot < load.window; ++slot) Ask(slot);
  while (failure_.ok() && time_.NowNs() - start_ns < duration_ns) endpoint_->Poll(kPollNs);
  sample.seconds = static_cast<double>(time_.NowNs() - start_ns) / 1e9;
  sample.requests = sample_->requests;
  draining_ = true;
  const uint64_t counted = sample.requests;
  while (failure_.ok() && in_flight_ > 0) endpoint_->Poll(kPollNs);
  sample.requests = counted;
  sample_ = nullptr;
  if (!failure_.ok()) return Err(failure_);
  return sample;
}

void AskingEnd::Ask(uint64_t slot) {
  WireHeader header;
  header.kind = load_.pull ? MessageKind::kPushPull : MessageKind::kPush;
  header.request_id = slot;
  header.clock = static_cast<Clock>(asked_);
  header.codec = load_.payload_bytes > 0 ? CodecId::kFp32 : CodecId::kNone;
  header.payload_bytes = static_cast<uint32_t>(load_.payload_bytes);
  asked_ns_[slot] = time_.NowNs();
  const MutableBytes payload = Part(*payloads_, asked_, load_.payload_bytes);
  const MutableBytes landing = Part(*landings_, asked_, load_.payload_bytes);
  ++asked_;
  // Refused only when the channel is closed, which OnClosed tells.
  if (channel_->Send(header, payload, landing).ok()) ++in_flight_;
}

void AskingEnd::OnReply(transport::Channel&, const WireHeader& header, MutableBytes) {
  --in_flight_;
  ++sample_->requests;
  if (sample_->latencies_us.size() < kMaxLatencies) {
    const TimeNs took_ns = time_.NowNs() - asked_ns_[header.request_id];
    sample_->latencies_us.push_back(static_cast<double>(took_ns) / 1e3);
  }
  if (!draining_) Ask(header.request_id);
}

}  // namespace slackline::bench
