// A training step: encode, push-pull, collect, decode.
#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/client/client_impl.h"

namespace slackline::worker {

using proto::MessageKind;
using proto::ReplyStatus;

// The chunk's bytes as they travel: the tensor memory itself with fp32. Dense codecs have a fixed
// size per element, so that chunks lie end to end as in the flat space.
MutableBytes ClientImpl::WireBytes(std::span<std::byte> wire, std::span<float> flat,
                                   const Codec& codec, ChunkIndex chunk) const {
  const ModelSpace::Range range = space_.chunk(chunk);
  if (&codec == fp32_) return std::as_writable_bytes(Part(flat, range));
  return wire.subspan(codec.EncodedBytes(range.offset), codec.EncodedBytes(range.count));
}

ConstBytes ClientImpl::Encode(ChunkIndex chunk) {
  const MutableBytes bytes = WireBytes(wire_push_, gradients_, *push_codec_, chunk);
  if (push_codec_ != fp32_) {
    const std::span<const float> values = Part(gradients_, space_.chunk(chunk));
    const EncodeStats stats = push_codec_->Encode(values.data(), values.size(), 1.0F, bytes.data());
    stats_.encode.saturated += stats.saturated;
    stats_.encode.non_finite += stats.non_finite;
  }
  return bytes;
}

Status ClientImpl::Decode(ChunkIndex chunk) {
  if (pull_codec_ == fp32_) return OkStatus();
  const std::span<float> values = Part(weights_, space_.chunk(chunk));
  const ConstBytes bytes = WireBytes(wire_pull_, weights_, *pull_codec_, chunk);
  if (const Status valid = pull_codec_->Validate(bytes, values.size()); !valid.ok()) {
    return DataLoss("the weights of " + space_.TensorNames(chunk) + " (chunk " +
                    std::to_string(chunk) +
                    ") cannot be used, training has diverged: " + valid.message());
  }
  pull_codec_->Decode(bytes.data(), values.size(), 1.0F, values.data());
  return OkStatus();
}

Status ClientImpl::BeginStep(Clock clock, const StepOptions& options) {
  SLACKLINE_RETURN_IF_ERROR(session_->end_status());
  if (!io_) return FailedPrecondition("Declare comes before the first step");
  if (step_open_) {
    return FailedPrecondition("step " + std::to_string(clock_) + " is open: FinishStep first");
  }
  if (clock != clock_) {
    return InvalidArgument("step " + std::to_string(clock) +
                           ": clocks come without gaps, expected " + std::to_string(clock_));
  }
  // Both are divided by. An empty step has no weight, whatever is said here.
  const bool good_weight = std::isfinite(options.weight) && (options.weight > 0 || options.empty);
  if (!good_weight || !std::isfinite(options.scale) || options.scale <= 0) {
    return InvalidArgument(
        "step " + std::to_string(clock) + ": weight " + std::to_string(options.weight) +
        ", scale " + std::to_string(options.scale) +
        "; expected finite values > 0 (empty = true for a step without gradient)");
  }
  step_ = options;
  stats_ = StepStats{};
  std::ranges::fill(chunk_states_, ChunkState::kNotPushed);
  step_open_ = true;
  session_->SetProgress(clock, options.scale);
  return OkStatus();
}

Status ClientImpl::PushPull(ChunkIndex chunk, bool empty) {
  if (!step_open_) return FailedPrecondition("BeginStep comes before PushPull");
  if (chunk >= chunk_states_.size()) {
    return NotFound("chunk " + std::to_string(chunk) + " of " +
                    std::to_string(chunk_states_.size()));
  }
  if (chunk_states_[chunk] != ChunkState::kNotPushed) {
    return FailedPrecondition("chunk " + std::to_string(chunk) + " was pushed in this step");
  }
  const bool no_gradient = empty || step_.empty;
  const ConstBytes payload = no_gradient ? ConstBytes{} : Encode(chunk);
  io_->Submit({.kind = MessageKind::kPushPull,
               .chunk = chunk,
               .clock = clock_,
               .empty = no_gradient,
               .codec = push_codec_->id(),
               .reply_codec = pull_codec_->id(),
               .weight = no_gradient ? 0 : step_.weight,
               .scale = step_.scale,
               .payload = payload,
               .landing = WireBytes(wire_pull_, weights_, *pull_codec_, chunk)});
  chunk_states_[chunk] = ChunkState::kPushed;
  return OkStatus();
}

Status ClientImpl::WaitChunk(ChunkIndex chunk) {
  if (chunk >= chunk_states_.size() || chunk_states_[chunk] == ChunkState::kNotPushed) {
    return FailedPrecondition("chunk " + std::to_string(chunk) + " was not pushed in this step");
  }
  if (chunk_states_[chunk] == ChunkState::kCollected) return OkStatus();
  return Collect(chunk);
}

Status ClientImpl::Collect(ChunkIndex chunk) {
  ChunkResult result;
  if (io_->Done(chunk)) {
    SLACKLINE_RETURN_IF_ERROR(io_->Wait(chunk, &result));
  } else {
    const TimeNs start_ns = time_.NowNs();
    const Status waited = io_->Wait(chunk, &result);
    stats_.wait_ns += time_.NowNs() - start_ns;
    SLACKLINE_RETURN_IF_ERROR(waited);
  }
  chunk_states_[chunk] = ChunkState::kCollected;
  Count(result);
  if (result.bytes_received > 0) SLACKLINE_RETURN_IF_ERROR(Decode(chunk));
  return StatusOf(result);
}

void ClientImpl::Count(const ChunkResult& result) {
  stats_.bytes_pushed += result.bytes_sent;
  stats_.bytes_pulled += result.bytes_received;
  stats_.resends += result.resends;
  if (result.status == ReplyStatus::kRoundClosed || result.status == ReplyStatus::kNotFinite) {
    ++stats_.pushes_missed;
  }
  if (result.bytes_received > 0) {
    stats_.staleness.Add(std::max<Clock>(0, result.clock - result.min_clock));
  }
}

Status ClientImpl::StatusOf(const ChunkResult& result) const {
  // The good path builds no strings.
  if (result.status == ReplyStatus::kOk || result.status == ReplyStatus::kRoundClosed) {
    return OkStatus();
  }
  const std::string where = space_.TensorNames(result.chunk) + " (chunk " +
                            std::to_string(result.chunk) + ", clock " +
                            std::to_string(result.clock) + ")";
  switch (result.status) {
    case ReplyStatus::kNotFinite:
      return InvalidArgument("the gradient of " + where +
                             " holds a value that is not finite; the shard counted it as empty");
    case ReplyStatus::kNotInitialised:
      return FailedPrecondition("the shard has no weights for " + where +
                                ": call Initialize before the first step");
    default:
      return InvalidArgument("the shard refused the request for " + where +
                             " as malformed; its log says what is wrong");
  }
}

Result<StepStats> ClientImpl::FinishStep() {
  if (!step_open_) return Err(FailedPrecondition("no step is open"));
  const auto missing = std::ranges::find(chunk_states_, ChunkState::kNotPushed);
  if (missing != chunk_states_.end()) {
    return Err(FailedPrecondition("step " + std::to_string(clock_) + ": chunk " +
                                  std::to_string(missing - chunk_states_.begin()) +
                                  " was not pushed; every chunk is, once a step"));
  }
  // All of them, whatever one of them says: the next step starts with no request open.
  Status first_error;
  for (ChunkIndex chunk = 0; chunk < chunk_states_.size(); ++chunk) {
    Status status = WaitChunk(chunk);
    if (!status.ok() && first_error.ok()) first_error = std::move(status);
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(session_->end_status());
  step_open_ = false;
  ++clock_;
  SLACKLINE_RETURN_ERR_IF_ERROR(first_error);
  return stats_;
}

}  // namespace slackline::worker
