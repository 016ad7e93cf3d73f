#include "worker/client/client_core.h"

#include <algorithm>
#include <utility>

namespace slackline::worker {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;

namespace {

bool IsChunkRequest(MessageKind kind) {
  return kind == MessageKind::kPushPull || kind == MessageKind::kPush ||
         kind == MessageKind::kPull || kind == MessageKind::kInit || kind == MessageKind::kReduce;
}

bool WantsPayload(const ChunkRequest& request) {
  return request.kind == MessageKind::kPushPull || request.kind == MessageKind::kPull ||
         (request.kind == MessageKind::kReduce && !request.empty);
}

}  // namespace

ClientCore::ClientCore(const CoreOptions& options, transport::Endpoint& endpoint,
                       const TimeSource& time, CoreEvents& events)
    : options_(options), endpoint_(endpoint), time_(time), events_(events), rng_(options.seed) {
  endpoint_.set_handler(this);
}

ClientCore::~ClientCore() { CloseAll(); }

Status ClientCore::SetMap(const CoreMap& map) {
  if (!failure_.ok()) return failure_;
  if (!links_.empty() && map.epoch <= map_.epoch) return OkStatus();
  if (map.shard_addresses.empty() || map.chunk_shard.empty()) {
    return InvalidArgument("the shard map of epoch " + std::to_string(map.epoch) +
                           " has no shards or no chunks");
  }
  if (!slots_.empty() && map.chunk_shard.size() != slots_.size()) {
    return InvalidArgument("the shard map of epoch " + std::to_string(map.epoch) + " has " +
                           std::to_string(map.chunk_shard.size()) + " chunks, the model has " +
                           std::to_string(slots_.size()));
  }
  for (const ShardIndex shard : map.chunk_shard) {
    if (shard >= map.shard_addresses.size()) {
      return InvalidArgument("the shard map of epoch " + std::to_string(map.epoch) +
                             " puts a chunk on shard " + std::to_string(shard) + " of " +
                             std::to_string(map.shard_addresses.size()));
    }
  }
  BuildLinks(map);
  for (Link& link : links_) {
    if (failure_.ok()) Connect(link);
  }
  return failure_;
}

Status ClientCore::Submit(const ChunkRequest& request) {
  if (!failure_.ok()) return failure_;
  if (request.chunk >= slots_.size()) {
    return NotFound("chunk " + std::to_string(request.chunk) + " of " +
                    std::to_string(slots_.size()));
  }
  if (!IsChunkRequest(request.kind) || request.payload.size() > proto::kMaxPayloadBytes) {
    return InvalidArgument("chunk " + std::to_string(request.chunk) + ": a request of kind " +
                           std::to_string(static_cast<int>(request.kind)) + " with " +
                           std::to_string(request.payload.size()) + " bytes, at most " +
                           std::to_string(proto::kMaxPayloadBytes) + " fit");
  }
  Slot& slot = slots_[request.chunk];
  if (slot.state != Slot::State::kIdle) {
    return FailedPrecondition("chunk " + std::to_string(request.chunk) +
                              " has an open request already");
  }
  slot.header = WireHeader{
      .kind = request.kind,
      .flags = request.empty ? proto::kFlagEmptyPush : uint8_t{0},
      .request_id = (next_request_++ << 32) | request.chunk,
      .epoch = map_.epoch,
      .clock = request.clock,
      .worker = options_.worker,
      .incarnation = options_.incarnation,
      .chunk = request.chunk,
      .round = request.round,
      .codec = request.payload.empty() ? CodecId::kNone : request.codec,
      .reply_codec = WantsPayload(request) ? request.reply_codec : CodecId::kNone,
      .weight = request.weight,
      .scale = request.scale,
      .payload_bytes = static_cast<uint32_t>(request.payload.size()),
      .version = slot.version,
  };
  slot.payload = request.payload;
  slot.landing = WantsPayload(request) ? request.landing : MutableBytes{};
  slot.wants_payload = WantsPayload(request);
  slot.was_sent = false;
  slot.delta_bytes = request.delta_bytes;
  slot.push_status = ReplyStatus::kOk;
  slot.clock = request.clock;
  slot.bytes_sent = request.payload.size();
  slot.bytes_received = 0;
  slot.resends = 0;
  slot.submitted_ns = time_.NowNs();
  slot.state = Slot::State::kReady;
  if (open_requests_++ == 0) stall_check_ns_ = slot.submitted_ns + options_.stall_report_ns;
  ++stats_.requests;
  Link& link = links_[slot.shard];
  link.ready.Insert(slot.number);
  Pump(link);
  return OkStatus();
}

TimeNs ClientCore::NextDeadline() const {
  if (!failure_.ok()) return kNever;
  TimeNs deadline = stall_check_ns_;
  for (const Link& link : links_) {
    // While it connects, the transport's own timeout ends it.
    if (link.state != Link::State::kConnecting) deadline = std::min(deadline, link.deadline_ns);
    if (!link.paused.empty()) {
      deadline = std::min(deadline, slots_[link.paused.front()].resume_ns);
    }
  }
  return deadline;
}

void ClientCore::OnTick() {
  const TimeNs now_ns = time_.NowNs();
  for (Link& link : links_) {
    if (!failure_.ok()) return;
    TickLink(link, now_ns);
  }
  if (failure_.ok() && now_ns >= stall_check_ns_) CheckStall(now_ns);
}

void ClientCore::Fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  CloseAll();
  stall_check_ns_ = kNever;
  open_requests_ = 0;
  // First the reason: who learns that a chunk was dropped asks for it.
  events_.OnFailed(status);
  for (ChunkIndex chunk = 0; chunk < slots_.size(); ++chunk) {
    if (slots_[chunk].state == Slot::State::kIdle) continue;
    slots_[chunk].state = Slot::State::kIdle;
    events_.OnChunkDropped(chunk);
  }
}

// Sends what may go: first what must go again, in its old order, then new requests by chunk.
void ClientCore::Pump(Link& link) {
  while (link.state == Link::State::kOpen && link.open < options_.max_open_requests) {
    ChunkIndex chunk = link.resend.front();
    if (chunk == kNoSlot) {
      const uint32_t number = link.ready.First();
      if (number == kNoSlot) return;
      chunk = link.chunks[number];
    }
    const size_t bytes = slots_[chunk].payload.size();
    if (link.credit_used_bytes > 0 && link.credit_used_bytes + bytes > options_.credit_bytes) {
      return;
    }
    if (!SendSlot(link, chunk)) return;
  }
}

bool ClientCore::SendSlot(Link& link, ChunkIndex chunk) {
  Slot& slot = slots_[chunk];
  const Status sent = link.channel->Send(slot.header, slot.payload, slot.landing);
  if (!sent.ok()) {
    // A full channel has replies to come, and each of them pumps again.
    if (sent.code() != StatusCode::kResourceExhausted || link.open == 0) {
      LoseLink(link, sent, /*closed=*/false);
    }
    return false;
  }
  if (slot.state == Slot::State::kResend) {
    link.resend.Remove(slots_, chunk);
  } else {
    link.ready.Erase(slot.number);
  }
  if (slot.was_sent) {
    ++slot.resends;
    ++stats_.resends;
  }
  slot.was_sent = true;
  slot.state = Slot::State::kSent;
  link.sent.PushBack(slots_, chunk);
  link.credit_used_bytes += slot.payload.size();
  ++link.open;
  ++stats_.sends;
  return true;
}

// The slot that waits for an answer to this id; null for an id off the wire that is not open.
ClientCore::Slot* ClientCore::OpenSlot(uint64_t request_id) {
  const auto chunk = static_cast<ChunkIndex>(request_id & UINT32_MAX);
  if (chunk >= slots_.size()) return nullptr;
  Slot& slot = slots_[chunk];
  const bool open = slot.state == Slot::State::kSent || slot.state == Slot::State::kTaken;
  return open && slot.header.request_id == request_id ? &slot : nullptr;
}

void ClientCore::OnTaken(transport::Channel& channel, uint64_t request_id) {
  Link& link = *static_cast<Link*>(channel.context());
  link.heard = true;
  Slot* slot = OpenSlot(request_id);
  if (slot == nullptr || slot->state != Slot::State::kSent) return;
  slot->state = Slot::State::kTaken;
  link.credit_used_bytes -= slot->payload.size();
  Pump(link);
}

void ClientCore::OnReply(transport::Channel& channel, const WireHeader& header,
                         MutableBytes payload) {
  Link& link = *static_cast<Link*>(channel.context());
  link.heard = true;
  if (header.request_id == kHelloRequestId) {
    OnHelloReply(link, header);
    return;
  }
  Slot* slot = OpenSlot(header.request_id);
  if (slot == nullptr) {
    ++stats_.stray_replies;
    return;
  }
  if (header.status != ReplyStatus::kBusy) link.busy_in_a_row = 0;
  switch (header.status) {
    case ReplyStatus::kOk:
    case ReplyStatus::kDuplicate:
      if (header.status == ReplyStatus::kDuplicate) ++stats_.duplicates;
      OnWeights(link, *slot, header, payload.size());
      return;
    case ReplyStatus::kBusy:
      ++stats_.busy;
      ++link.busy_in_a_row;
      Pause(link, *slot, /*wait_for_map=*/false);
      return;
    case ReplyStatus::kMapChanged:
      Pause(link, *slot, /*wait_for_map=*/true);
      events_.OnMapNeeded(map_.epoch);
      return;
    case ReplyStatus::kNotInView:
      Fail(Aborted("shard " + std::to_string(link.shard) + ": worker " +
                   std::to_string(options_.worker) + " (incarnation " +
                   std::to_string(options_.incarnation) +
                   ") is not in the view (any more); start over to join again"));
      return;
    case ReplyStatus::kRoundClosed:
    case ReplyStatus::kNotFinite:
      PullAfterMissedPush(link, *slot, header.status);
      return;
    case ReplyStatus::kNotInitialised:
    case ReplyStatus::kMalformed:
      slot->push_status = header.status;
      Finish(link, *slot, header);
      return;
    case ReplyStatus::kShuttingDown:
      LoseLink(link, Unavailable("the shard is shutting down"), /*closed=*/false);
      return;
  }
  LoseLink(link, DataLoss("a reply with an unknown status"), /*closed=*/false);
}

size_t ClientCore::ExpectedBytes(const Slot& slot, const WireHeader& header) {
  if (slot.delta_bytes == 0 || header.codec == CodecId::kFp32) return slot.landing.size();
  // A version below the one that is held wraps, and fits no landing.
  const uint64_t steps = header.version - slot.version;
  return steps <= slot.landing.size() / slot.delta_bytes ? steps * slot.delta_bytes : SIZE_MAX;
}

// A reply that says yes, with the payload that was asked for, or the peer does not speak our
// protocol and nothing it sends can be trusted.
void ClientCore::OnWeights(Link& link, Slot& slot, const WireHeader& header, size_t payload_bytes) {
  const size_t expected_bytes = ExpectedBytes(slot, header);
  const bool codec_fits = !slot.wants_payload || header.codec == slot.header.reply_codec ||
                          (slot.delta_bytes != 0 && header.codec == CodecId::kFp32);
  if (payload_bytes != expected_bytes || !codec_fits || header.chunk != slot.header.chunk) {
    LoseLink(
        link,
        DataLoss("the reply for chunk " + std::to_string(slot.header.chunk) + " has " +
                 std::to_string(payload_bytes) + " bytes of codec " +
                 std::to_string(static_cast<int>(header.codec)) + " for chunk " +
                 std::to_string(header.chunk) + ", expected " + std::to_string(expected_bytes) +
                 " bytes of codec " + std::to_string(static_cast<int>(slot.header.reply_codec))),
        /*closed=*/false);
    return;
  }
  slot.bytes_received = payload_bytes;
  const bool reduced = slot.header.kind == MessageKind::kReduce;
  if (slot.wants_payload && !reduced) slot.version = header.version;
  link.last_min_clock = std::max(link.last_min_clock, header.min_clock);
  Finish(link, slot, header);
}

void ClientCore::Release(Link& link, Slot& slot) {
  if (slot.state == Slot::State::kSent) link.credit_used_bytes -= slot.payload.size();
  link.sent.Remove(slots_, slot.header.chunk);
  --link.open;
}

void ClientCore::Finish(Link& link, Slot& slot, const WireHeader& header) {
  Release(link, slot);
  slot.state = Slot::State::kIdle;
  if (--open_requests_ == 0) stall_check_ns_ = kNever;
  const bool missed_round =
      slot.header.kind == MessageKind::kReduce && slot.push_status != ReplyStatus::kOk;
  const bool filled = slot.push_status != ReplyStatus::kNotInitialised &&
                      slot.push_status != ReplyStatus::kMalformed && !missed_round;
  const ChunkResult result{.chunk = slot.header.chunk,
                           .clock = slot.clock,
                           .status = slot.push_status,
                           .bytes_sent = slot.bytes_sent,
                           .bytes_received = filled ? slot.bytes_received : 0,
                           .filled = filled && slot.wants_payload,
                           .codec = header.codec,
                           .resends = slot.resends,
                           .version = slot.version,
                           .min_clock = header.min_clock,
                           .weight = header.weight};
  Pump(link);
  events_.OnChunkDone(result);
}

// Lays a refused request aside. Requests behind it go on, since one of them may be what the shard
// waits for.
void ClientCore::Pause(Link& link, Slot& slot, bool wait_for_map) {
  Release(link, slot);
  const uint32_t doublings = std::min(wait_for_map ? 8U : link.busy_in_a_row, 16U);
  const TimeNs pause_ns =
      std::min(options_.busy_pause_min_ns << doublings, options_.busy_pause_max_ns);
  slot.resume_ns = time_.NowNs() + Jittered(pause_ns);
  if (!link.paused.empty()) {
    slot.resume_ns = std::max(slot.resume_ns, slots_[link.paused.back()].resume_ns);
  }
  slot.state = Slot::State::kPaused;
  slot.wait_for_map = wait_for_map;
  link.paused.PushBack(slots_, slot.header.chunk);
  Pump(link);
}

void ClientCore::PullAfterMissedPush(Link& link, Slot& slot, ReplyStatus status) {
  ++stats_.pushes_missed;
  slot.push_status = status;
  if (!slot.wants_payload || slot.header.kind == MessageKind::kReduce) {
    Finish(link, slot, slot.header);
    return;
  }
  Release(link, slot);
  WireHeader& header = slot.header;
  header.kind = MessageKind::kPull;
  header.flags = 0;
  header.request_id = (next_request_++ << 32) | header.chunk;
  header.clock = slot.clock + 1;
  header.codec = CodecId::kNone;
  header.weight = 0;
  header.scale = 1;
  header.payload_bytes = 0;
  slot.payload = {};
  slot.was_sent = false;
  slot.state = Slot::State::kReady;
  link.ready.Insert(slot.number);
  Pump(link);
}

}  // namespace slackline::worker
