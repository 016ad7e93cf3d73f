// What arrives is judged here against what this side knows, before anything is changed by it.
#include <algorithm>
#include <cmath>

#include "server/shard.h"

namespace slackline::server {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;

namespace {

bool IsPush(MessageKind kind) {
  return kind == MessageKind::kPush || kind == MessageKind::kPushPull;
}

bool IsEmptyPush(const WireHeader& header) { return (header.flags & proto::kFlagEmptyPush) != 0; }

}  // namespace

bool Shard::IsMember(WorkerId worker, Incarnation incarnation) const {
  if (!consistency_) return false;
  const std::vector<Member>& members = consistency_->view().members;
  return std::any_of(members.begin(), members.end(), [=](const Member& member) {
    return member.worker == worker && member.incarnation == incarnation;
  });
}

Shard::Refusal Shard::Check(const Peer& peer, const WireHeader& header) const {
  if (!peer.greeted) return {ReplyStatus::kMalformed, "the channel has not said hello"};
  if (header.worker != peer.worker || header.incarnation != peer.incarnation) {
    return {ReplyStatus::kMalformed, "not the worker that said hello on this channel"};
  }
  if (header.epoch != epoch_) return {ReplyStatus::kMapChanged, "another epoch"};
  if (!IsMember(header.worker, header.incarnation)) {
    return {ReplyStatus::kNotInView, "not a member"};
  }
  if (header.table != 0) return {ReplyStatus::kMalformed, "there is no such table"};
  const std::optional<uint32_t> local = store_->FindLocal(header.chunk);
  if (!local) return {ReplyStatus::kMalformed, "the chunk is not on this shard"};
  const Chunk& chunk = store_->at(*local);
  if (header.reply_codec != chunk.pull_codec.id() &&
      (header.kind == MessageKind::kPull || header.kind == MessageKind::kPushPull)) {
    return {ReplyStatus::kMalformed, "reply codec is not the job's pull codec"};
  }
  switch (header.kind) {
    case MessageKind::kPush:
    case MessageKind::kPushPull:
      return CheckPush(header, chunk);
    case MessageKind::kReduce:
      return CheckReduce(header, chunk);
    case MessageKind::kPull:
      if (header.payload_bytes != 0) return {ReplyStatus::kMalformed, "a pull has no payload"};
      break;
    case MessageKind::kInit:
      if (header.codec != CodecId::kFp32 || header.payload_bytes != chunk.count * sizeof(float)) {
        return {ReplyStatus::kMalformed, "initial weights must be the chunk's count of fp32"};
      }
      return {};
    default:
      return {ReplyStatus::kMalformed, "this request is not offered"};
  }
  if (!chunk.initialised) return {ReplyStatus::kNotInitialised, "no weights yet"};
  return {};
}

Shard::Refusal Shard::CheckPush(const WireHeader& header, const Chunk& chunk) const {
  if (header.round != 0) return {ReplyStatus::kMalformed, "a push has round 0"};
  if (IsEmptyPush(header)) {
    if (header.payload_bytes != 0) {
      return {ReplyStatus::kMalformed, "an empty push has no payload"};
    }
  } else {
    if (header.codec != chunk.push_codec.id()) {
      return {ReplyStatus::kMalformed, "codec is not the job's push codec"};
    }
    if (header.payload_bytes != chunk.push_codec.EncodedBytes(header.clock)) {
      return {ReplyStatus::kMalformed, "payload has not the size that the codec gives the chunk"};
    }
    // Both are divided by, in FP32: neither the quotient nor the divisor may leave its range.
    constexpr double kSmallest = 1e-30, kLargest = 1e30;
    if (!(header.weight >= kSmallest && header.weight <= kLargest)) {
      return {ReplyStatus::kMalformed, "weight of a gradient must be in [1e-30, 1e30]"};
    }
    if (!(header.scale >= kSmallest && header.scale <= kLargest)) {
      return {ReplyStatus::kMalformed, "loss scale must be in [1e-30, 1e30]"};
    }
  }
  if (!chunk.initialised) return {ReplyStatus::kNotInitialised, "no weights yet"};
  return {};
}

Shard::Arrival Shard::Judge(const WireHeader& header, uint32_t local) const {
  const Chunk& chunk = store_->at(local);
  if (header.kind == MessageKind::kInit) {
    return chunk.initialised ? Arrival::kDrain : Arrival::kLand;
  }
  if (header.kind == MessageKind::kReduce) return JudgeReduce(header, local);
  // One push of a life waits on a chunk at most: the next cannot be judged before it.
  if (HoldsPushOf(header, local)) return Arrival::kDrain;
  switch (consistency_->Preview({header.worker, header.incarnation, header.clock, local})) {
    case PushAction::kApply:
    case PushAction::kAccumulate:
      // It will have to be held when it is here; if it cannot be, its channel waits instead.
      if (!chunk.WritableCopy() && !MayHold()) return Arrival::kWait;
      return Arrival::kLand;
    case PushAction::kEarly:
      // Early pushes may fill their share of the slots, never those that the open round needs.
      return MayHold() ? Arrival::kLand : Arrival::kDrain;
    default:
      return Arrival::kDrain;
  }
}

transport::Landing Shard::OnRequestArriving(transport::Channel& channel, const WireHeader& header) {
  Peer* peer = PeerOf(channel);
  if (peer == nullptr || Check(*peer, header).status != ReplyStatus::kOk) {
    return transport::Landing::Drain();
  }
  if (!IsPush(header.kind) && header.kind != MessageKind::kInit &&
      header.kind != MessageKind::kReduce) {
    return transport::Landing::Drain();
  }
  Arrival arrival = Judge(header, *store_->FindLocal(header.chunk));
  if (arrival == Arrival::kDrain) return transport::Landing::Drain();
  const int32_t slot = arrival == Arrival::kLand ? slots_->Take(peer) : -1;
  if (slot < 0) {
    if (!peer->waits_for_slot) waiting_for_slot_.push_back(peer);
    peer->waits_for_slot = true;
    return transport::Landing::Later();
  }
  return transport::Landing::Into(slots_->bytes(slot).first(header.payload_bytes));
}

void Shard::OnRequest(transport::Channel& channel, const WireHeader& header, MutableBytes payload) {
  Peer* peer = PeerOf(channel);
  if (peer == nullptr) return;
  bytes_in_ += header.payload_bytes;
  const int32_t slot = payload.empty() ? -1 : slots_->Find(payload.data());
  if (slot >= 0) slots_->Claim(slot);
  busy_ = true;
  Dispatch(peer, header, slot);
  busy_ = false;
  Settle();
}

void Shard::Dispatch(Peer* peer, const WireHeader& header, int32_t slot) {
  if (header.kind == MessageKind::kHello) {
    HandleHello(peer, header);
    return;
  }
  const Refusal refusal = Check(*peer, header);
  if (refusal.status != ReplyStatus::kOk) {
    FreeSlot(slot);
    ++refused_;
    if (refusal.status == ReplyStatus::kMalformed) LogRefusal(*peer, header, refusal.why);
    AnswerPlain(*peer, header, refusal.status);
    return;
  }
  const uint32_t local = *store_->FindLocal(header.chunk);
  if (header.kind == MessageKind::kInit) {
    HandleInit(peer, header, local, slot);
  } else if (header.kind == MessageKind::kPull) {
    OpenPull(peer, header, local, ReplyStatus::kOk);
    RunDecisions({});
  } else if (header.kind == MessageKind::kReduce) {
    HandleReduce({peer, &header, local, slot});
  } else {
    HandlePush({peer, &header, local, slot});
  }
}

void Shard::HandleHello(Peer* peer, const WireHeader& header) {
  if (header.payload_bytes != 0 || header.epoch != epoch_ ||
      !IsMember(header.worker, header.incarnation)) {
    ++refused_;
    AnswerPlain(*peer, header,
                header.payload_bytes != 0 ? ReplyStatus::kMalformed
                : header.epoch != epoch_  ? ReplyStatus::kMapChanged
                                          : ReplyStatus::kNotInView);
    return;
  }
  // A reconnect: what the old channel still carries must not be taken for the life's word.
  for (Peer& other : peers_) {
    if (&other != peer && other.greeted && other.worker == header.worker &&
        other.incarnation == header.incarnation) {
      ClosePeer(&other);
    }
  }
  peer->greeted = true;
  peer->worker = header.worker;
  peer->incarnation = header.incarnation;
  AnswerPlain(*peer, header, ReplyStatus::kOk);
}

void Shard::HandleInit(Peer* peer, const WireHeader& header, uint32_t local, int32_t slot) {
  const Chunk& chunk = store_->at(local);
  ReplyStatus status = ReplyStatus::kOk;
  if (chunk.initialised) {
    status = ReplyStatus::kDuplicate;
  } else if (slot < 0) {
    status = ReplyStatus::kBusy;  // It was drained, and what spoke against it is gone since.
  } else {
    const std::byte* payload = slots_->bytes(slot).data();
    const Codec& fp32 = *FindCodec(CodecId::kFp32);
    if (fp32.Validate({payload, header.payload_bytes}, chunk.count).ok()) {
      SetWeights(local, reinterpret_cast<const float*>(payload));
    } else {
      status = ReplyStatus::kNotFinite;
      ++refused_;
      LogRefusal(*peer, header, "initial weights are not finite");
    }
  }
  FreeSlot(slot);
  AnswerPlain(*peer, header, status);
}

void Shard::FreeSlot(int32_t slot) {
  if (slot >= 0) slots_->Free(slot);
}

}  // namespace slackline::server
