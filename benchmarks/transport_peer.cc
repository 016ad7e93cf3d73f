#include "benchmarks/transport_peer.h"

#include <algorithm>
#include <utility>

namespace slackline::bench {
namespace {

using proto::MessageKind;
using proto::WireHeader;
using transport::Landing;

constexpr TimeNs kConnectTimeoutNs = 10 * kNsPerSecond;
constexpr TimeNs kPollNs = 10 * kNsPerMs;
// Latencies kept of one run: its first ones.
constexpr size_t kMaxLatencies = 1u << 20;

}  // namespace

MutableBytes PartOf(MutableBytes buffer, uint64_t turn, size_t size_bytes) {
  if (size_bytes <= kPeerSmallBytes) buffer = buffer.first(kPeerSmallBufferBytes);
  const size_t stride_bytes = std::max<size_t>((size_bytes + 4095) / 4096 * 4096, 4096);
  const size_t parts = buffer.size() / stride_bytes;
  return buffer.subspan((turn % parts) * stride_bytes, size_bytes);
}

// ---- The answering end ----

Result<std::unique_ptr<AnsweringEnd>> AnsweringEnd::Create(
    const std::string& transport, const transport::EndpointOptions& options,
    const std::string& listen_at) {
  std::unique_ptr<AnsweringEnd> end(new AnsweringEnd());
  SLACKLINE_ASSIGN_OR_RETURN(end->endpoint_, transport::CreateEndpoint(transport, options));
  end->endpoint_->set_handler(end.get());
  SLACKLINE_ASSIGN_OR_RETURN(end->in_, end->endpoint_->Allocate(kPeerBufferBytes));
  SLACKLINE_ASSIGN_OR_RETURN(end->out_, end->endpoint_->Allocate(kPeerBufferBytes));
  std::ranges::fill(end->out_->bytes(), std::byte{1});
  SLACKLINE_ASSIGN_OR_RETURN(end->address_, end->endpoint_->Listen(listen_at));
  return end;
}

Landing AnsweringEnd::OnRequestArriving(transport::Channel&, const WireHeader& header) {
  if (header.payload_bytes > kPeerMaxBytes) return Landing::Drain();
  return Landing::Into(
      PartOf(in_->bytes(), static_cast<uint64_t>(header.clock), header.payload_bytes));
}

void AnsweringEnd::OnRequest(transport::Channel& channel, const WireHeader& header,
                             MutableBytes payload) {
  WireHeader reply = header;
  reply.kind = MessageKind::kReply;
  size_t size_bytes = 0;
  if (header.kind == MessageKind::kPushPull) size_bytes = payload.size();
  if (header.kind == MessageKind::kPull) size_bytes = std::min(header.version, kPeerMaxBytes);
  const MutableBytes answer =
      size_bytes == 0 ? MutableBytes()
                      : PartOf(out_->bytes(), static_cast<uint64_t>(header.clock), size_bytes);
  reply.codec = answer.empty() ? CodecId::kNone : CodecId::kFp32;
  reply.payload_bytes = static_cast<uint32_t>(answer.size());
  // Refused only when the channel is closed, which OnClosed tells.
  (void)channel.Reply(reply, answer);
}

// ---- The asking end ----

Result<std::unique_ptr<AskingEnd>> AskingEnd::Create(const std::string& transport,
                                                     const transport::EndpointOptions& options,
                                                     const std::string& address, size_t channels) {
  std::unique_ptr<AskingEnd> end(new AskingEnd());
  SLACKLINE_ASSIGN_OR_RETURN(end->endpoint_, transport::CreateEndpoint(transport, options));
  end->endpoint_->set_handler(end.get());
  SLACKLINE_ASSIGN_OR_RETURN(end->payloads_, end->endpoint_->Allocate(kPeerBufferBytes));
  SLACKLINE_ASSIGN_OR_RETURN(end->landings_, end->endpoint_->Allocate(kPeerBufferBytes));
  std::ranges::fill(end->payloads_->bytes(), std::byte{2});
  for (size_t i = 0; i < channels; ++i) {
    SLACKLINE_ASSIGN_OR_RETURN(transport::Channel* const channel,
                               end->endpoint_->Connect(address, kConnectTimeoutNs));
    end->channels_.push_back(channel);
  }
  // Bounded by the connects' timeout.
  while (end->open_ < channels && end->failure_.ok()) end->endpoint_->Poll(kPollNs);
  if (!end->failure_.ok()) return Err(end->failure_);
  return end;
}

Result<AskingEnd::Sample> AskingEnd::Run(const Load& load, TimeNs duration_ns) {
  load_ = load;
  sample_ = {};
  sample_.latencies_us.reserve(kMaxLatencies);
  draining_ = false;
  asked_ns_.assign(load.channels * load.window, 0);
  const TimeNs start_ns = time_.NowNs();
  for (size_t i = 0; i < load.channels; ++i) {
    for (uint64_t slot = 0; slot < load.window; ++slot) Ask(i, slot);
  }
  // One reply at least, however busy the machine is: a sample of none says nothing.
  while (failure_.ok() && (time_.NowNs() - start_ns < duration_ns || sample_.requests == 0)) {
    endpoint_->Poll(kPollNs);
  }
  sample_.seconds = static_cast<double>(time_.NowNs() - start_ns) / 1e9;
  const uint64_t counted = sample_.requests;
  draining_ = true;
  while (failure_.ok() && in_flight_ > 0) endpoint_->Poll(kPollNs);
  sample_.requests = counted;
  if (!failure_.ok()) return Err(failure_);
  return std::move(sample_);
}

void AskingEnd::Ask(size_t channel, uint64_t slot) {
  const bool pull = load_.op == Op::kPull || (load_.op == Op::kBoth && channel % 2 == 1);
  WireHeader header;
  header.kind = pull                        ? MessageKind::kPull
                : load_.op == Op::kPushPull ? MessageKind::kPushPull
                                            : MessageKind::kPush;
  header.request_id = slot;
  header.clock = static_cast<Clock>(asked_);
  header.version = load_.payload_bytes;
  header.chunk = static_cast<ChunkIndex>(channel);
  MutableBytes payload;
  if (!pull) payload = PartOf(payloads_->bytes(), asked_, load_.payload_bytes);
  header.codec = payload.empty() ? CodecId::kNone : CodecId::kFp32;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  const MutableBytes landing = PartOf(landings_->bytes(), asked_, load_.payload_bytes);
  asked_ns_[channel * load_.window + slot] = time_.NowNs();
  ++asked_;
  // Refused only when the channel is closed, which OnClosed tells.
  if (channels_[channel]->Send(header, payload, landing).ok()) ++in_flight_;
}

void AskingEnd::OnReply(transport::Channel&, const WireHeader& header, MutableBytes) {
  --in_flight_;
  ++sample_.requests;
  const size_t channel = header.chunk;
  if (sample_.latencies_us.size() < kMaxLatencies) {
    const TimeNs took_ns = time_.NowNs() - asked_ns_[channel * load_.window + header.request_id];
    sample_.latencies_us.push_back(static_cast<double>(took_ns) / 1e3);
  }
  if (!draining_) Ask(channel, header.request_id);
}

}  // namespace slackline::bench
