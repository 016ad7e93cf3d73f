// A training step: encode, push-pull, collect, decode.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "worker/client/client_impl.h"

namespace slackline::worker {

using proto::MessageKind;
using proto::ReplyStatus;

MutableBytes ClientImpl::PushBytes(ChunkIndex chunk) const {
  const ChunkWire& wire = wires_[chunk];
  return wire.push.first(wire.push_codec.EncodedBytes(clock_));
}

void ClientImpl::WantWeights(ChunkIndex chunk, ChunkRequest* request) const {
  const ChunkWire& wire = wires_[chunk];
  request->reply_codec = wire.pull_codec.id();
  request->landing = wire.pull;
  if (!reference_.empty()) request->delta_bytes = wire.pull_codec.EncodedBytes();
}

ConstBytes ClientImpl::Encode(ChunkIndex chunk) {
  const ChunkWire& wire = wires_[chunk];
  const MutableBytes bytes = PushBytes(chunk);
  if (wire.push_codec.id() != CodecId::kFp32) {
    const ModelSpace::Range range = space_.chunk(chunk);
    float* const residual = residual_.empty() ? nullptr : residual_.data() + range.offset;
    if (residual != nullptr && !options_.error_feedback) std::fill_n(residual, range.count, 0.0F);
    const float* const gradient = gradients_.data() + range.offset;
    const EncodeIdentity identity{.worker = rank(), .clock = clock_, .chunk = chunk};
    const EncodeStats stats =
        velocity_.empty()
            ? wire.push_codec.Encode(gradient, step_.scale, identity, residual, bytes.data())
            : wire.push_codec.EncodeWithMomentum(
                  gradient, step_.scale, static_cast<float>(options_.worker_momentum), identity,
                  residual, velocity_.data() + range.offset, bytes.data());
    stats_.encode.saturated += stats.saturated;
    stats_.encode.non_finite += stats.non_finite;
  }
  return bytes;
}

// A push that did not count is in the residual again: the next one carries it. Its bytes and its
// scale are still what was sent, since the step is open.
void ClientImpl::TakeBack(const ChunkResult& result) {
  if (residual_.empty() || result.bytes_sent == 0) return;
  wires_[result.chunk].push_codec.TakeBack(PushBytes(result.chunk).data(), step_.scale, clock_,
                                           residual_.data() + space_.chunk(result.chunk).offset);
}

Status ClientImpl::Decode(const ChunkResult& result) {
  if (!reference_.empty()) return DecodeSteps(result);
  const ChunkWire& wire = wires_[result.chunk];
  if (wire.pull_codec.id() == CodecId::kFp32) return OkStatus();
  const PayloadFault fault = wire.pull_codec.Validate(wire.pull, 1, 0);
  if (fault.kind != PayloadFault::Kind::kNone) return BadWeights(result.chunk, fault.element);
  wire.pull_codec.Decode(wire.pull.data(), 1, 0,
                         weights_.data() + space_.chunk(result.chunk).offset);
  return OkStatus();
}

// The reference makes the steps that the shard made, with the same additions, or is replaced.
Status ClientImpl::DecodeSteps(const ChunkResult& result) {
  const ChunkWire& wire = wires_[result.chunk];
  const std::span<float> reference = Part(reference_, space_.chunk(result.chunk));
  const std::span<float> weights = Part(weights_, space_.chunk(result.chunk));
  const ConstBytes payload = ConstBytes(wire.pull).first(result.bytes_received);
  const size_t step_bytes = wire.pull_codec.EncodedBytes();
  if (result.codec == CodecId::kFp32) {
    const Codec& fp32 = *FindCodec(CodecId::kFp32);
    if (!fp32.Validate(payload, reference.size()).ok()) return BadWeights(result.chunk, 0);
    std::memcpy(reference.data(), payload.data(), payload.size());
  } else {
    for (size_t at = 0; at < payload.size(); at += step_bytes) {
      const PayloadFault fault = wire.pull_codec.Validate(payload.subspan(at, step_bytes), 1, 0);
      if (fault.kind != PayloadFault::Kind::kNone) return BadWeights(result.chunk, fault.element);
    }
    for (size_t at = 0; at < payload.size(); at += step_bytes) {
      wire.pull_codec.DecodeAdd(payload.data() + at, 1, 0, reference.data());
    }
  }
  std::memcpy(weights.data(), reference.data(), weights.size_bytes());
  return OkStatus();
}

Status ClientImpl::BadWeights(ChunkIndex chunk, size_t element) const {
  return DataLoss("the weights of " + space_.TensorNames(chunk) + " (chunk " +
                  std::to_string(chunk) + ") cannot be used, training has diverged: value " +
                  std::to_string(element) + " or a later one is not finite");
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
  ChunkRequest request{.kind = MessageKind::kPushPull,
                       .chunk = chunk,
                       .clock = clock_,
                       .empty = no_gradient,
                       .codec = wires_[chunk].push_codec.id(),
                       .weight = no_gradient ? 0 : step_.weight,
                       .scale = step_.scale,
                       .payload = payload};
  WantWeights(chunk, &request);
  io_->Submit(request);
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
  if (result.status != ReplyStatus::kOk) TakeBack(result);
  if (result.filled) SLACKLINE_RETURN_IF_ERROR(Decode(result));
  return StatusOf(result);
}

void ClientImpl::Count(const ChunkResult& result) {
  stats_.bytes_pushed += result.bytes_sent;
  stats_.bytes_pulled += result.bytes_received;
  stats_.resends += result.resends;
  if (result.status == ReplyStatus::kRoundClosed || result.status == ReplyStatus::kNotFinite) {
    ++stats_.pushes_missed;
  }
  if (result.filled) {
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
