// Before and beside training: initial weights, and pulls that belong to no step.
#include <algorithm>
#include <utility>

#include "worker/client/client_impl.h"

namespace slackline::worker {

using proto::MessageKind;
using proto::ReplyStatus;

namespace {

// Rank 0 gives the initial values, so that they do not depend on who is first. Another worker that
// waited this long for them gives its own: rank 0 may be dead.
constexpr TimeNs kOfferAfterNs = 2 * kNsPerSecond;
constexpr TimeNs kPauseMinNs = 20 * kNsPerMs;
constexpr TimeNs kPauseMaxNs = 500 * kNsPerMs;
// A pull "as it is now": no clock's updates are waited for.
constexpr Clock kAnyClock = 0;

}  // namespace

Status ClientImpl::Initialize() {
  if (!io_) return FailedPrecondition("Declare comes before Initialize");
  if (step_open_) return FailedPrecondition("a step is open: FinishStep comes before Initialize");
  std::vector<ChunkIndex> missing(space_.chunk_order().begin(), space_.chunk_order().end());
  if (rank() == 0) SLACKLINE_RETURN_IF_ERROR(Offer(missing));
  const TimeNs start_ns = time_.NowNs();
  TimeNs offer_ns = start_ns + kOfferAfterNs;
  TimeNs report_ns = start_ns + options_.stall_report_ns;
  TimeNs pause_ns = kPauseMinNs;
  for (;;) {
    std::vector<ChunkIndex> not_initialised;
    SLACKLINE_RETURN_IF_ERROR(Pull(missing, first_clock_, &not_initialised));
    if (not_initialised.empty()) return OkStatus();
    missing = std::move(not_initialised);
    const TimeNs now_ns = time_.NowNs();
    const std::string what = "initial weights of " + std::to_string(missing.size()) + " of " +
                             std::to_string(space_.chunk_count()) + " chunks";
    if (now_ns - start_ns > options_.start_timeout_ns) {
      return DeadlineExceeded("gave up waiting for the " + what);
    }
    if (now_ns >= report_ns && options_.on_wait) {
      options_.on_wait("waiting for the " + what);
      report_ns = now_ns + options_.stall_report_ns;
    }
    if (now_ns >= offer_ns) {
      SLACKLINE_RETURN_IF_ERROR(Offer(missing));
      offer_ns = now_ns + kOfferAfterNs;
      continue;
    }
    if (!session_->Pause(pause_ns)) return session_->end_status();
    pause_ns = std::min(2 * pause_ns, kPauseMaxNs);
  }
}

// A chunk that has weights keeps them; that is no error.
Status ClientImpl::Offer(const std::vector<ChunkIndex>& chunks) {
  for (const ChunkIndex chunk : chunks) {
    io_->Submit({.kind = MessageKind::kInit,
                 .chunk = chunk,
                 .clock = first_clock_,
                 .codec = CodecId::kFp32,
                 .payload = std::as_bytes(Part(weights_, space_.chunk(chunk)))});
  }
  Status first_error;
  for (const ChunkIndex chunk : chunks) {
    ChunkResult result;
    Status status = io_->Wait(chunk, &result);
    if (status.ok()) status = StatusOf(result);
    if (!status.ok() && first_error.ok()) first_error = std::move(status);
  }
  return first_error;
}

// Chunks without weights go to `not_initialised`, or are an error if that is null.
Status ClientImpl::Pull(const std::vector<ChunkIndex>& chunks, Clock clock,
                        std::vector<ChunkIndex>* not_initialised) {
  for (const ChunkIndex chunk : chunks) {
    ChunkRequest request{.kind = MessageKind::kPull, .chunk = chunk, .clock = clock};
    WantWeights(chunk, &request);
    io_->Submit(request);
  }
  Status first_error;
  for (const ChunkIndex chunk : chunks) {
    ChunkResult result;
    Status status = io_->Wait(chunk, &result);
    if (status.ok() && result.status == ReplyStatus::kNotInitialised &&
        not_initialised != nullptr) {
      not_initialised->push_back(chunk);
      continue;
    }
    if (status.ok()) status = StatusOf(result);
    if (status.ok()) status = Decode(result);
    if (!status.ok() && first_error.ok()) first_error = std::move(status);
  }
  return first_error;
}

Status ClientImpl::PullAll() {
  if (!io_) return FailedPrecondition("Declare comes before PullAll");
  if (step_open_) return FailedPrecondition("a step is open: FinishStep comes before PullAll");
  return Pull({space_.chunk_order().begin(), space_.chunk_order().end()}, kAnyClock, nullptr);
}

}  // namespace slackline::worker
