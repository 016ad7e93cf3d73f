// kReduce: contributions to a (clock, round) of a chunk, answered with their aggregate.
#include <glog/logging.h>

#include "proto/reduce.h"
#include "server/shard.h"

namespace slackline::server {

using proto::ReplyStatus;
using proto::WireHeader;

namespace {

bool IsEmpty(const WireHeader& header) { return (header.flags & proto::kFlagEmptyPush) != 0; }

}  // namespace

Shard::Refusal Shard::CheckReduce(const WireHeader& header, const Chunk& chunk) const {
  if (job_.mode != ConsistencyMode::kBsp || job_.quorum > 0) {
    return {ReplyStatus::kMalformed,
            "rounds of a clock exist under staleness 0 only, without quorum"};
  }
  if (header.round >= proto::kReduceRounds) {
    return {ReplyStatus::kMalformed, "there is no such round"};
  }
  if (!IsEmpty(header)) {
    if (header.codec != CodecId::kFp32 || header.reply_codec != CodecId::kFp32) {
      return {ReplyStatus::kMalformed, "contributions and aggregates are fp32"};
    }
    if (header.payload_bytes == 0 || header.payload_bytes % sizeof(float) != 0 ||
        header.payload_bytes > chunk.count * sizeof(float)) {
      return {ReplyStatus::kMalformed, "a contribution is 1 to the chunk's count of values"};
    }
  }
  if (!chunk.initialised) return {ReplyStatus::kNotInitialised, "no weights yet"};
  return {};
}

// A round that cannot take the contribution needs no payload: most are resends.
Shard::Arrival Shard::JudgeReduce(const WireHeader& header, uint32_t local) const {
  const Reduction& reduction = store_->at(local).reductions[header.round].state;
  const bool counts = header.clock == consistency_->OpenRound(local);
  const bool held =
      reduction.clock() == header.clock &&
      (reduction.complete() || reduction.HasContributed(header.worker, header.incarnation));
  return counts && !held ? Arrival::kLand : Arrival::kDrain;
}

void Shard::HandleReduce(const Push& push) {
  const WireHeader& header = *push.header;
  ChunkReduction& round = store_->at(push.local).reductions[header.round];
  const Clock open = consistency_->OpenRound(push.local);
  if (header.clock < open) return Refuse(push, ReplyStatus::kRoundClosed, {});
  // A replaced round's aggregate may still be on its way to one that left.
  if (header.clock > open || (round.state.clock() != open && round.pins != 0)) {
    return Refuse(push, ReplyStatus::kBusy, {});
  }
  if (round.state.clock() != open) round.state.Begin(open);

  const size_t count = header.payload_bytes / sizeof(float);
  const size_t present = round.state.aggregate().size();
  if (count != 0 && present != 0 && count != present) {
    return Refuse(push, ReplyStatus::kMalformed, "other contributions are of another size");
  }
  if (!round.state.complete() && !round.state.HasContributed(header.worker, header.incarnation)) {
    if (push.slot < 0 && !IsEmpty(header)) return Refuse(push, ReplyStatus::kBusy, {});
    if (!AddContribution(push, &round.state)) {
      Refuse(push, ReplyStatus::kNotFinite, "a contribution is not finite; it counts as empty");
      return SettleReductions(push.local);
    }
  }
  FreeSlot(push.slot);
  if (IsEmpty(header)) {
    AnswerPlain(*push.peer, header, ReplyStatus::kOk);
  } else {
    OpenReduce(push);
  }
  SettleReductions(push.local);
}

bool Shard::AddContribution(const Push& push, Reduction* reduction) {
  const WireHeader& header = *push.header;
  std::span<const float> values;
  if (push.slot >= 0) {
    values = {reinterpret_cast<const float*>(PayloadOf(push)),
              header.payload_bytes / sizeof(float)};
  }
  const bool finite =
      FindCodec(CodecId::kFp32)->Validate(std::as_bytes(values), values.size()).ok();
  if (!finite) values = {};
  reduction->Add(header.worker, header.incarnation, header.weight, values,
                 proto::IsMaximumRound(header.round));
  return finite;
}

// Until the round is complete the request waits in the round's list. A life has one there; a newer
// one is a resend.
void Shard::OpenReduce(const Push& push) {
  const WireHeader& header = *push.header;
  ChunkReduction& round = store_->at(push.local).reductions[header.round];
  for (uint32_t index = round.waiting; index != kNoRequest; index = requests_->at(index).next) {
    const OpenRequest& entry = requests_->at(index);
    if (entry.header.worker == header.worker && entry.header.incarnation == header.incarnation) {
      DropRequest(index);
      break;
    }
  }
  const uint32_t index = requests_->Take();
  if (index == kNoRequest) {
    ++refused_;
    AnswerPlain(*push.peer, header, ReplyStatus::kBusy);
    return;
  }
  OpenRequest& entry = requests_->at(index);
  entry.state = OpenRequest::State::kReducing;
  entry.status = ReplyStatus::kOk;
  entry.local = push.local;
  entry.peer = push.peer;
  entry.header = header;
  entry.next = round.waiting;
  round.waiting = index;
  if (round.state.complete()) {
    AnswerReduce(index);
  } else {
    // If the channel just broke, its close is on the way and the request goes with it.
    static_cast<void>(push.peer->channel->SendTaken(header.request_id));
  }
}

// After anything that may complete a round: a contribution, a push, a view. An answer may find its
// channel broken and drop other requests, so that every look at a list begins at its head.
void Shard::SettleReductions(uint32_t local) {
  for (ChunkReduction& round : store_->at(local).reductions) {
    // Requests of lives that left are refused, whether the round is complete or not.
    for (uint32_t index = round.waiting; index != kNoRequest;) {
      const WireHeader header = requests_->at(index).header;
      if (IsMember(header.worker, header.incarnation)) {
        index = requests_->at(index).next;
        continue;
      }
      const Peer& peer = *requests_->at(index).peer;
      DropRequest(index);
      AnswerPlain(peer, header, ReplyStatus::kNotInView);
      index = round.waiting;
    }
    round.state.Settle(*consistency_, local);
    while (round.state.complete() && round.waiting != kNoRequest) AnswerReduce(round.waiting);
  }
}

void Shard::AnswerReduce(uint32_t index) {
  const OpenRequest& entry = requests_->at(index);
  ChunkReduction& round = store_->at(entry.local).reductions[entry.header.round];
  const ConstBytes aggregate = std::as_bytes(round.state.aggregate());
  if (aggregate.size() != entry.header.payload_bytes) {
    // It joined when the round was complete without anyone's values, or with others.
    const WireHeader header = entry.header;
    const Peer& peer = *entry.peer;
    DropRequest(index);
    AnswerPlain(peer, header, ReplyStatus::kRoundClosed);
    return;
  }
  WireHeader reply;
  reply.codec = CodecId::kFp32;
  reply.weight = round.state.weight();
  reply.round = entry.header.round;
  ReplyPinned(index, &round.pins, reply, aggregate);
}

}  // namespace slackline::server
