#include "tests/sim/sim_worker.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "proto/job_codecs.h"
#include "proto/reduce.h"

namespace slackline::sim {
namespace {

using proto::MessageKind;
using proto::ReplyStatus;

constexpr TimeNs kInitRetryNs = 10 * kNsPerMs;
// Another worker than the first offers the initial weights when nobody else has for this long.
constexpr TimeNs kOfferAfterNs = 2 * kNsPerSecond;

}  // namespace

SimWorker::SimWorker(transport::SimNetwork& network, ControlPlane& control, Ledger& ledger,
                     const SimWorkerOptions& options,
                     std::function<std::vector<Membership>()> others, std::string name,
                     uint64_t seed)
    : SimProcess(network, std::move(name), seed),
      control_(control),
      ledger_(ledger),
      options_(options),
      others_(std::move(others)),
      push_plan_(proto::PushPlan(options.job).value()),
      pull_codec_(*FindCodec(options.job.pull_codec())) {
  endpoint_ = network.CreateEndpoint(this->name());
  endpoint_->set_on_ready([this] { WakeSoon(); });
  Register();
  WakeSoon();
}

SimWorker::~SimWorker() {
  control_.Close(connection_);
  endpoint_->set_on_ready(nullptr);
  core_.reset();
  regions_.clear();
}

void SimWorker::Turn() {
  if (ended()) return;
  if (std::exchange(lost_, false) || now_ns() >= register_again_ns_) {
    control_.Close(connection_);
    register_again_ns_ = kNever;
    Register();
  }
  for (; !inbox_.empty() && !ended(); inbox_.pop_front()) Handle(inbox_.front());
  if (core_ != nullptr && !ended()) {
    endpoint_->Poll(0);
    if (core_->NextDeadline() <= now_ns()) core_->OnTick();
    if (phase_ == Phase::kTraining && now_ns() >= next_step_ns_) BeginStep();
    if (phase_ == Phase::kInitialising) {
      for (ChunkIndex chunk = 0; chunk < chunks_.size(); ++chunk) {
        if (now_ns() < chunks_[chunk].retry_ns) continue;
        now_ns() - initialising_since_ns_ >= kOfferAfterNs ? SubmitInit(chunk) : SubmitPull(chunk);
      }
    }
    stats_ = core_->stats();
    WakeAt(core_->NextDeadline());
    if (endpoint_->ready()) WakeSoon();
  }
  if (ended()) return;
  Heartbeat();
  for (const ChunkState& chunk : chunks_) WakeAt(chunk.retry_ns);
  WakeAt(std::min({next_step_ns_, next_heartbeat_ns_, register_again_ns_}));
}

void SimWorker::End(Phase phase) {
  if (ended()) return;
  phase_ = phase;
  membership_.reset();
}

void SimWorker::Wrong(std::string line) {
  errors_.push_back(name() + " (" + Describe() + "): " + std::move(line));
}

std::string SimWorker::Describe() const {
  static constexpr const char* kPhases[] = {"registering", "declaring", "initialising", "training",
                                            "leaving",     "left",      "gone"};
  std::string text = std::string(kPhases[static_cast<size_t>(phase_)]) + ", rank " +
                     std::to_string(rank_) + ", life " + std::to_string(incarnation_) + ", clock " +
                     std::to_string(clock_) + ", open chunks";
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (chunks_[chunk].step != ChunkState::Step::kIdle) text += " " + std::to_string(chunk);
  }
  return text;
}

// ---- Weights and gradients ----

void SimWorker::MakeBuffers(const control::ShardMap& map) {
  for (const control::Chunk& chunk : map.chunks()) {
    ChunkState state;
    state.count = chunk.count();
    state.push_codec = proto::MakeChunkCodec(push_plan_, chunk, map);
    CHECK_GE(state.count, ledger_.elements());
    for (MutableBytes* memory : {&state.gradient, &state.landing}) {
      regions_.push_back(endpoint_->Allocate(state.count * sizeof(float)).value());
      *memory = regions_.back()->bytes();
    }
    state.decoded.resize(state.count);
    chunks_.push_back(std::move(state));
  }
}

void SimWorker::Submit(const worker::ChunkRequest& request) {
  chunks_[request.chunk].asked_ns = now_ns();
  chunks_[request.chunk].retry_ns = kNever;
  ++busy_chunks_;
  const Status status = core_->Submit(request);
  if (!status.ok() && core_->failure().ok()) Wrong("a request was refused: " + status.ToString());
}

void SimWorker::SubmitInit(ChunkIndex chunk) {
  ChunkState& state = chunks_[chunk];
  state.step = ChunkState::Step::kInit;
  std::fill(state.gradient.begin(), state.gradient.end(), std::byte{0});
  Submit({.kind = MessageKind::kInit,
          .chunk = chunk,
          .codec = CodecId::kFp32,
          .payload = state.gradient});
}

void SimWorker::SubmitPull(ChunkIndex chunk) {
  ChunkState& state = chunks_[chunk];
  state.step = ChunkState::Step::kPull;
  state.clock = clock_;
  Submit({.kind = MessageKind::kPull,
          .chunk = chunk,
          .clock = clock_,
          .reply_codec = pull_codec_.id(),
          .landing = state.landing.first(pull_codec_.EncodedBytes(state.count))});
}

void SimWorker::BeginStep() {
  next_step_ns_ = kNever;
  const bool empty = rng_.Chance(options_.empty_chance);
  std::vector<ChunkIndex> order(chunks_.size());
  for (ChunkIndex chunk = 0; chunk < chunks_.size(); ++chunk) order[chunk] = chunk;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.Below(i)]);
  for (const ChunkIndex chunk : order) {
    ChunkState& state = chunks_[chunk];
    state.clock = clock_;
    state.empty = empty;
    // One that overflowed may leave the round out: its push says that it is not to be waited for.
    if (options_.reduce && (!empty || rng_.Chance(0.5))) {
      SubmitReduce(chunk);
    } else {
      SubmitPush(chunk);
    }
    if (ended()) return;
  }
}

void SimWorker::SubmitPush(ChunkIndex chunk) {
  ChunkState& state = chunks_[chunk];
  state.step = ChunkState::Step::kPush;
  ledger_.Sent(rank_, incarnation_, clock_, chunk, state.empty);
  worker::ChunkRequest request{
      .kind = MessageKind::kPushPull,
      .chunk = chunk,
      .clock = clock_,
      .empty = state.empty,
      .reply_codec = pull_codec_.id(),
      .landing = state.landing.first(pull_codec_.EncodedBytes(state.count))};
  if (!state.empty) {
    FillGradient(chunk);
    request.codec = state.push_codec.id();
    request.weight = 1;
    request.payload = state.gradient.first(state.push_codec.EncodedBytes(state.clock));
  }
  Submit(request);
}

// ---- Rounds of kReduce ----

// A digit of base 4 for every life, at its worker's element: a sum in which one counts twice has a
// digit above 1. A worker has few enough lives that this is exact.
float SimWorker::Contribution() const {
  return std::ldexp(1.0F, 2 * static_cast<int>(incarnation_ % 11));
}

// Rounds of both kinds, sums more often.
void SimWorker::SubmitReduce(ChunkIndex chunk) {
  ChunkState& state = chunks_[chunk];
  state.step = ChunkState::Step::kReduce;
  const uint32_t round = clock_ % 3 == 2 ? proto::kReduceSumRounds : 0;
  worker::ChunkRequest request{
      .kind = MessageKind::kReduce, .chunk = chunk, .clock = clock_, .round = round};
  request.empty = state.empty;
  if (!state.empty) {
    const size_t bytes = ledger_.elements() * sizeof(float);
    std::vector<float> values(ledger_.elements());
    values[rank_] = Contribution();
    std::memcpy(state.gradient.data(), values.data(), bytes);
    request.codec = request.reply_codec = CodecId::kFp32;
    request.weight = 1;
    request.payload = state.gradient.first(bytes);
    request.landing = state.landing.first(bytes);
  }
  Submit(request);
}

void SimWorker::CheckAggregate(ChunkIndex chunk, const worker::ChunkResult& result) {
  ChunkState& state = chunks_[chunk];
  longest_wait_ns_ = std::max(longest_wait_ns_, now_ns() - state.asked_ns);
  if (result.bytes_received == 0) {
    const bool joining = result.status == ReplyStatus::kRoundClosed && !state.took_part;
    if (!state.empty && !joining) Wrong("a round of kReduce was answered without an aggregate");
    return;
  }
  std::vector<float> values(ledger_.elements());
  std::memcpy(values.data(), state.landing.data(), result.bytes_received);
  const std::string wrong = ledger_.CheckAggregate(chunk, state.clock, values);
  if (!wrong.empty()) Wrong(wrong);
  uint32_t lives = 0;
  for (const float value : values) {
    auto digits = static_cast<uint32_t>(value);
    for (; digits != 0; digits /= 4) {
      lives += digits % 4;
      if (digits % 4 > 1) Wrong("a contribution counts more than once: " + std::to_string(value));
    }
  }
  const bool is_sum = state.clock % 3 != 2;
  const auto own = static_cast<uint32_t>(values[rank_] / Contribution()) % 4;
  // One that joined a complete round is not in it; another life's larger digit hides a maximum.
  if (is_sum && own == 0 && state.took_part) Wrong("an aggregate lacks the reader's own part");
  if (is_sum && result.weight != lives) {
    Wrong("an aggregate of " + std::to_string(lives) + " has weight " +
          std::to_string(result.weight));
  }
}

void SimWorker::FillGradient(ChunkIndex chunk) {
  ChunkState& state = chunks_[chunk];
  std::vector<float> gradient(state.count, 0);
  gradient[ledger_.Element(rank_, state.clock)] = -1;  // Gradient descent adds.
  // Without a residual: a push that is refused is not to come back, as the ledger has it.
  static_cast<void>(state.push_codec.Encode(gradient.data(), 1,
                                            {.worker = rank_, .clock = state.clock, .chunk = chunk},
                                            nullptr, state.gradient.data()));
}

// ---- Answers ----

void SimWorker::OnChunkDone(const worker::ChunkResult& result) {
  ChunkState& state = chunks_[result.chunk];
  --busy_chunks_;
  const auto step = std::exchange(state.step, ChunkState::Step::kIdle);
  if (result.status == ReplyStatus::kMalformed || result.status == ReplyStatus::kNotFinite) {
    Wrong("chunk " + std::to_string(result.chunk) + " was answered with " +
          std::string(proto::ReplyStatusName(result.status)));
  }
  if (step == ChunkState::Step::kInit) {
    SubmitPull(result.chunk);
    return;
  }
  if (result.status == ReplyStatus::kNotInitialised) {
    state.retry_ns = now_ns() + kInitRetryNs;
    return;
  }
  if (step == ChunkState::Step::kPull) {
    CheckWeights(result.chunk, result, state.clock);
    ChunkFinished();
    return;
  }
  if (step == ChunkState::Step::kReduce) {
    CheckAggregate(result.chunk, result);
    SubmitPush(result.chunk);
    return;
  }
  longest_wait_ns_ = std::max(longest_wait_ns_, now_ns() - state.asked_ns);
  state.took_part = state.took_part || result.status == ReplyStatus::kOk;
  if (result.status == ReplyStatus::kRoundClosed) {
    ledger_.Refused(rank_, incarnation_, state.clock, result.chunk);
    if (options_.job.staleness() != 0 || options_.job.quorum() > 0) {
      Wrong("a round of one's clock was closed where there are none");
    }
  } else {
    ledger_.Acknowledged(rank_, incarnation_, state.clock, result.chunk, now_ns());
    largest_staleness_ = std::max(largest_staleness_, state.clock - result.min_clock);
  }
  CheckWeights(result.chunk, result, state.clock + 1);
  ChunkFinished();
}

void SimWorker::CheckWeights(ChunkIndex chunk, const worker::ChunkResult& result, Clock reading) {
  ChunkState& state = chunks_[chunk];
  const size_t bytes = pull_codec_.EncodedBytes(state.count);
  if (result.bytes_received != bytes) {
    Wrong("chunk " + std::to_string(chunk) + ": " + std::to_string(result.bytes_received) +
          " bytes of weights, expected " + std::to_string(bytes));
    return;
  }
  const Status valid = pull_codec_.Validate(state.landing.first(bytes), state.count);
  if (!valid.ok()) {
    Wrong("chunk " + std::to_string(chunk) +
          ": weights that were not handed over whole: " + valid.ToString());
    return;
  }
  pull_codec_.Decode(state.landing.data(), state.count, 1, state.decoded.data());

  std::vector<Ledger::MustSee> must_see;
  must_see.push_back({rank_, incarnation_, *first_clock_, reading - 1});
  const Clock staleness = options_.job.staleness();
  if (staleness >= 0 && options_.job.quorum() == 0) {
    for (const Membership& other : others_()) {
      if (other.worker == rank_ || other.since_ns > state.asked_ns) continue;
      must_see.push_back(
          {other.worker, other.incarnation, other.first_clock, reading - 1 - staleness});
    }
    if (result.min_clock < reading - 1 - staleness) {
      Wrong("chunk " + std::to_string(chunk) + " at clock " + std::to_string(reading) +
            " holds only clock " + std::to_string(result.min_clock));
    }
  }
  const std::string wrong = ledger_.CheckRead(chunk, state.decoded, state.asked_ns, must_see);
  if (!wrong.empty()) {
    Wrong("what clock " + std::to_string(reading) + " reads breaks a promise:\n" + wrong);
  }
}

void SimWorker::ChunkFinished() {
  if (busy_chunks_ > 0 || ended()) return;
  const auto waits = [](const ChunkState& chunk) { return chunk.retry_ns != kNever; };
  if (std::any_of(chunks_.begin(), chunks_.end(), waits)) return;
  if (phase_ == Phase::kInitialising) {
    phase_ = Phase::kTraining;
  } else {
    if (options_.report_steps) {
      control::StepReport& report = steps_.emplace_back();
      report.set_clock(clock_);
      report.set_seconds(0.01);
    }
    ++clock_;
  }
  if (clock_ >= options_.job.steps()) {
    Leave();
    return;
  }
  next_step_ns_ =
      now_ns() + static_cast<TimeNs>(rng_.Below(static_cast<uint64_t>(options_.think_max_ns) + 1));
}

void SimWorker::OnFailed(const Status& status) {
  if (status.code() != StatusCode::kAborted) Wrong("the client gave up: " + status.ToString());
  End(Phase::kGone);
}

}  // namespace slackline::sim
