// A push from its judgement to its answer. Order matters: values are checked whole before the
// consistency rule records the push, and the rule's decision is carried out in the same call.
#include <algorithm>
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
  if (Changes(action) && !empty) {
    const PayloadFault fault = CheckValues(push);
    if (fault.kind == PayloadFault::Kind::kMalformed) {
      Refuse(push, ReplyStatus::kMalformed, DescribeFault(push, fault) + fault.message);
      return;
    }
    checked.not_finite = fault.kind == PayloadFault::Kind::kNotFinite;
    if (checked.not_finite) {
      ++refused_;
      LogRefusal(*push.peer, header,
                 DescribeFault(push, fault) + "a value is not finite; the push counts as empty");
    }
  }
  CarryOut(checked);
}

void Shard::Refuse(const Push& push, ReplyStatus status, std::string_view why) {
  ++refused_;
  if (!why.empty()) LogRefusal(*push.peer, *push.header, why);
  FreeSlot(push.slot);
  AnswerPlain(*push.peer, *push.header, status);
}

std::string Shard::DescribeFault(const Push& push, const PayloadFault& fault) const {
  return store_->DescribeElement(store_->at(push.local), fault.element) + ": ";
}

PayloadFault Shard::CheckValues(const Push& push) const {
  const WireHeader& header = *push.header;
  return store_->at(push.local)
      .push_codec.Validate({PayloadOf(push), header.payload_bytes}, header.scale, header.clock);
}

void Shard::CarryOut(const Push& push) {
  const WireHeader& header = *push.header;
  const bool empty = (header.flags & proto::kFlagEmptyPush) != 0 || push.not_finite;
  if (job_.quorum > 0) consistency_->OnTime(time_.NowNs());
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
    if (closes && store_->at(push.local).push_codec.dense() != nullptr) {
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
