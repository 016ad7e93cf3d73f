// A push from its judgement to its answer. Order matters: values are checked whole before the
// consistency rule records the push, and the rule's decision is carried out in the same call.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "server/shard.h"

namespace slackline::server {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;

namespace {

PushId IdOf(const WireHeader& header, uint32_t local) {
  return {header.worker, header.incarnation, header.clock, local};
}

bool Changes(PushAction action) {
  return action == PushAction::kApply || action == PushAction::kAccumulate;
}

// The first element that is not finite once the loss scale is taken out.
std::optional<size_t> FindNotFinite(const Codec& codec, const std::byte* payload, size_t count,
                                    float payload_scale) {
  std::array<float, 256> block;  // Of the stack: nothing may be allocated here.
  for (size_t begin = 0; begin < count; begin += block.size()) {
    const size_t size = std::min(block.size(), count - begin);
    codec.Decode(payload + codec.EncodedBytes(begin), size, payload_scale, block.data());
    for (size_t i = 0; i < size; ++i) {
      if (!std::isfinite(block[i])) return begin + i;
    }
  }
  return std::nullopt;
}

}  // namespace

const std::byte* Shard::PayloadOf(const Push& push) const {
  return slots_->bytes(push.slot).data();
}

void Shard::HandlePush(const Push& push) {
  const WireHeader& header = *push.header;
  const bool empty = (header.flags & proto::kFlagEmptyPush) != 0;
  const bool missing = !empty && push.slot < 0;  // Drained: what spoke against it may be gone.
  if (HoldsPushOf(header, push.local)) {
    Refuse(push, ReplyStatus::kBusy, {});
    return;
  }
  const PushAction action = consistency_->Preview(IdOf(header, push.local));
  if (action == PushAction::kEarly || (Changes(action) && !Changeable(push.local))) {
    if (missing || !MayHold()) {
      Refuse(push, ReplyStatus::kBusy, {});
    } else {
      HoldPush(push);
    }
    return;
  }
  switch (action) {
    case PushAction::kNotInView:
      Refuse(push, ReplyStatus::kNotInView, {});
      return;
    case PushAction::kRoundClosed:
      Refuse(push, ReplyStatus::kRoundClosed, {});
      return;
    case PushAction::kSkipsClock:
      Refuse(push, ReplyStatus::kMalformed, "it skips a clock of its life on this chunk");
      return;
    default:
      break;
  }
  if (Changes(action) && missing) {
    Refuse(push, ReplyStatus::kBusy, {});
    return;
  }
  Push checked = push;
  checked.not_finite = Changes(action) && !empty && RefusesValues(push);
  CarryOut(checked);
}

void Shard::Refuse(const Push& push, ReplyStatus status, std::string_view why) {
  ++refused_;
  if (!why.empty()) LogRefusal(*push.peer, *push.header, why);
  FreeSlot(push.slot);
  AnswerPlain(*push.peer, *push.header, status);
}

bool Shard::RefusesValues(const Push& push) {
  const WireHeader& header = *push.header;
  const Chunk& chunk = store_->at(push.local);
  const Codec& codec = *job_.push_codec;
  const std::byte* payload = PayloadOf(push);
  const bool valid = codec.Validate({payload, header.payload_bytes}, chunk.count).ok();
  // A loss scale of 1 or more only makes values smaller.
  if (valid && header.scale >= 1) return false;
  const std::optional<size_t> bad = FindNotFinite(codec, payload, chunk.count, 1 / header.scale);
  if (valid && !bad) return false;
  ++refused_;
  LogRefusal(
      *push.peer, header,
      store_->DescribeElement(chunk, bad.value_or(0)) + " is not finite; the push counts as empty");
  return true;
}

void Shard::CarryOut(const Push& push) {
  const WireHeader& header = *push.header;
  const bool empty = (header.flags & proto::kFlagEmptyPush) != 0 || push.not_finite;
  const PushAction action =
      consistency_->OnPush(IdOf(header, push.local), empty ? 0 : header.weight, empty, &decisions_);
  LastPush last;
  if (action == PushAction::kApply && !empty) {
    ApplyAsync(push);
  } else if (action == PushAction::kAccumulate && job_.deterministic) {
    AddLeaf(push, empty);
  } else if (action == PushAction::kAccumulate && !empty) {
    const bool closes = !decisions_.empty() &&
                        decisions_.front().kind == Decision::Kind::kCloseRound &&
                        decisions_.front().chunk == push.local;
    if (closes) {
      last = {PayloadOf(push), 1 / header.scale};
    } else {
      Accumulate(push);
    }
  }
  if (Changes(action)) ++pushes_;
  const ReplyStatus status = push.not_finite                    ? ReplyStatus::kNotFinite
                             : action == PushAction::kDuplicate ? ReplyStatus::kDuplicate
                                                                : ReplyStatus::kOk;
  uint64_t ticket = 0;
  if (header.kind == MessageKind::kPushPull) {
    ticket = OpenPull(push.peer, header, push.local, status);
  } else {
    AnswerPlain(*push.peer, header, status);
  }
  RunDecisions(last);
  FreeSlot(push.slot);
  SettleReductions(push.local);
  if (ticket == 0 || header.payload_bytes == 0) return;
  const uint32_t index = requests_->FindTicket(ticket);
  if (index == kNoRequest || requests_->at(index).state != OpenRequest::State::kWaiting) return;
  // If the channel just broke, its close is on the way and the request goes with it.
  static_cast<void>(requests_->at(index).peer->channel->SendTaken(header.request_id));
}

bool Shard::HoldsPushOf(const WireHeader& header, uint32_t local) const {
  return std::any_of(held_.begin(), held_.end(), [&](uint32_t index) {
    const OpenRequest& held = requests_->at(index);
    return held.local == local && held.header.worker == header.worker &&
           held.header.incarnation == header.incarnation;
  });
}

void Shard::HoldPush(const Push& push) {
  const uint32_t index = requests_->Take();
  if (index == kNoRequest) {
    Refuse(push, ReplyStatus::kBusy, {});
    return;
  }
  OpenRequest& entry = requests_->at(index);
  entry.state = OpenRequest::State::kHeld;
  entry.local = push.local;
  entry.slot = push.slot;
  entry.peer = push.peer;
  entry.header = *push.header;
  held_.push_back(index);
  // The payload is here, so its credit returns: the sender may need it for the very push that this
  // one waits for.
  if (push.header->payload_bytes != 0) {
    static_cast<void>(push.peer->channel->SendTaken(push.header->request_id));
  }
}

bool Shard::RetryOneHeld() {
  for (size_t position = 0; position < held_.size(); ++position) {
    const uint32_t index = held_[position];
    const OpenRequest& entry = requests_->at(index);
    const PushAction action = consistency_->Preview(IdOf(entry.header, entry.local));
    if (action == PushAction::kEarly || (Changes(action) && !Changeable(entry.local))) continue;
    const WireHeader header = entry.header;
    const Push push{entry.peer, &header, entry.local, entry.slot};
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(position));
    requests_->Free(index);
    HandlePush(push);
    return true;
  }
  return false;
}

}  // namespace slackline::server
