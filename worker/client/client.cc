#include "worker/client/client.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "proto/job_codecs.h"
#include "worker/client/client_impl.h"

namespace slackline::worker {

namespace {

// Data leases wait through a restart of the coordinator, until Cancel.
constexpr TimeNs kLeaseTimeoutNs = kNever;
constexpr TimeNs kReportTimeoutNs = 30 * kNsPerSecond;

CoreMap ToCoreMap(const control::ShardMap& map) {
  CoreMap core;
  core.epoch = map.epoch();
  core.shard_addresses.assign(map.shard_addresses().begin(), map.shard_addresses().end());
  for (const control::Chunk& chunk : map.chunks()) core.chunk_shard.push_back(chunk.shard());
  return core;
}

}  // namespace

void StalenessCounts::Add(Clock staleness, uint64_t chunks) {
  Entry* const last = entries_.data() + size_;
  Entry* place = std::lower_bound(entries_.data(), last, staleness,
                                  [](const Entry& a, Clock b) { return a.first < b; });
  if (place == last || place->first != staleness) {
    if (size_ == kMaxEntries) {
      if (place == last) (--place)->first = staleness;  // The largest place grows.
    } else {
      std::move_backward(place, last, last + 1);
      *place = {staleness, 0};
      ++size_;
    }
  }
  place->second += chunks;
}

Result<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  return ClientImpl::Connect(options);
}

Result<std::unique_ptr<Client>> ClientImpl::Connect(const ClientOptions& options) {
  std::unique_ptr<ClientImpl> client(new ClientImpl(options));
  ClientImpl* const self = client.get();
  SLACKLINE_ASSIGN_OR_RETURN(
      client->session_,
      ControlSession::Open({.coordinator = options.coordinator,
                            .wanted_rank = options.wanted_rank,
                            .job = options.job,
                            .connect_timeout_ns = options.connect_timeout_ns,
                            .start_timeout_ns = options.start_timeout_ns,
                            .report_ns = options.stall_report_ns,
                            .on_wait = options.on_wait,
                            .on_ended = [self](const Status& status) { self->OnEnded(status); },
                            .on_map = [self](const control::ShardMap& map) { self->OnMap(map); }}));
  SLACKLINE_RETURN_ERR_IF_ERROR(client->CheckCodecs());
  return client;
}

// The I/O thread goes first, since it writes into the regions; then the session, whose callbacks
// reach the loop; then memory, and the endpoint that it came from last.
ClientImpl::~ClientImpl() {
  if (io_) io_->Stop();
  session_.reset();
}

void ClientImpl::OnEnded(const Status& status) {
  MutexLock lock(io_mutex_);
  if (live_io_ != nullptr) live_io_->End(status);
}

void ClientImpl::OnMap(const control::ShardMap& map) {
  bool fits = true;
  {
    MutexLock lock(io_mutex_);
    if (live_io_ == nullptr) {
      early_map_ = map;  // StartIo takes it.
      return;
    }
    fits = SameChunks(map, map_);
    if (fits) live_io_->Update(ToCoreMap(map));
  }
  if (!fits) Cancel("the coordinator's new shard map cuts the model into other chunks");
}

Status ClientImpl::CheckCodecs() {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(push_plan_, proto::PushPlan(job()));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(pull_plan_, proto::PullPlan(job()));
  const double momentum = options_.worker_momentum;
  const bool may_have_one = job().optimizer().name() == "sgd" && push_plan_.dense() == nullptr;
  if (momentum != 0 && !(momentum > 0 && momentum < 1 && may_have_one)) {
    return InvalidArgument("momentum at the worker is " + std::to_string(momentum) +
                           ": expected 0, or less than 1 with the optimizer sgd and a push codec "
                           "with a residual; found " +
                           job().optimizer().name() + " and " + job().push_codec());
  }
  return OkStatus();
}

Status ClientImpl::Declare(std::vector<TensorSpec> tensors) {
  if (io_) return FailedPrecondition("the model was declared already");
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const control::DeclareModel declaration,
                                    ModelSpace::Declaration(tensors));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(ControlSession::Start start,
                                    session_->DeclareAndWait(declaration));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(space_, ModelSpace::Create(std::move(tensors), start.map));
  map_ = std::move(start.map);
  first_clock_ = start.first_clock;
  clock_ = first_clock_;
  chunk_states_.assign(space_.chunk_count(), ChunkState::kNotPushed);
  return StartIo();
}

Status ClientImpl::StartIo() {
  IoLoop::Options options;
  options.core.worker = rank();
  options.core.incarnation = incarnation();
  options.core.credit_bytes = options_.credit_bytes;
  options.core.stall_report_ns = options_.stall_report_ns;
  options.core.stall_timeout_ns = options_.stall_timeout_ns;
  // Differs between workers, which is all that jitter needs.
  options.core.seed = (uint64_t{rank()} << 32) | incarnation();
  options.transport = options_.transport;
  options.endpoint = options_.endpoint;
  options.on_wait = options_.on_wait;
  options.on_failed = [this](const Status& status) { session_->End(status); };
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(io_, IoLoop::Create(std::move(options)));
  SLACKLINE_RETURN_IF_ERROR(AllocateMemory());
  io_->Start(ToCoreMap(map_));
  std::optional<control::ShardMap> early_map;
  {
    MutexLock lock(io_mutex_);
    live_io_ = io_.get();
    early_map.swap(early_map_);
  }
  if (early_map) OnMap(*early_map);
  // An end between the start and here has not reached the loop.
  if (const Status end = session_->end_status(); !end.ok()) io_->End(end);
  return io_->WaitOpen(options_.start_timeout_ns);
}

Status ClientImpl::AllocateMemory() {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(weights_, AllocateFloats());
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(gradients_, AllocateFloats());
  if (push_plan_.dense() == nullptr) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(residual_, AllocateFloats());
    if (options_.worker_momentum > 0) {
      SLACKLINE_ASSIGN_OR_RETURN_STATUS(velocity_, AllocateFloats());
    }
  }
  if (pull_plan_.dense() == nullptr) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(reference_, AllocateFloats());
  }
  return AllocateWires();
}

// Chunks lie behind each other, each from a cache line on.
Status ClientImpl::AllocateWires() {
  constexpr size_t kAlignBytes = 64;
  const auto align = [](size_t bytes) {
    return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  };
  // A lossy pull codec's steps, or the whole reference.
  const auto pull_bytes = [&](const ChunkWire& wire) {
    return reference_.empty() ? wire.pull_codec.MaxEncodedBytes()
                              : wire.pull_codec.count() * sizeof(float);
  };
  size_t total = 0;
  wires_.resize(space_.chunk_count());
  for (const control::Chunk& chunk : map_.chunks()) {
    ChunkWire& wire = wires_[chunk.index()];
    wire.push_codec = proto::MakeChunkCodec(push_plan_, chunk, map_);
    wire.pull_codec = proto::MakeChunkCodec(pull_plan_, chunk, map_);
    if (wire.push_codec.id() != CodecId::kFp32) total += align(wire.push_codec.MaxEncodedBytes());
    if (wire.pull_codec.id() != CodecId::kFp32) total += align(pull_bytes(wire));
  }
  MutableBytes rest;
  if (total > 0) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(rest, AllocateBytes(total));
  }
  const auto place = [&](const ChunkCodec& codec, size_t size_bytes, std::span<float> flat) {
    if (codec.id() == CodecId::kFp32) return std::as_writable_bytes(flat);
    const MutableBytes taken = rest.first(size_bytes);
    rest = rest.subspan(align(taken.size()));
    return taken;
  };
  for (ChunkIndex chunk = 0; chunk < wires_.size(); ++chunk) {
    ChunkWire& wire = wires_[chunk];
    wire.push = place(wire.push_codec, wire.push_codec.MaxEncodedBytes(),
                      Part(gradients_, space_.chunk(chunk)));
    wire.pull = place(wire.pull_codec, pull_bytes(wire), Part(weights_, space_.chunk(chunk)));
  }
  return OkStatus();
}

Result<std::span<std::byte>> ClientImpl::AllocateBytes(size_t size_bytes) {
  SLACKLINE_ASSIGN_OR_RETURN(std::unique_ptr<transport::Region> region, io_->Allocate(size_bytes));
  regions_.push_back(std::move(region));
  return regions_.back()->bytes().first(size_bytes);
}

Result<std::span<float>> ClientImpl::AllocateFloats() {
  SLACKLINE_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                             AllocateBytes(space_.element_count() * sizeof(float)));
  // Regions are page-aligned and zero.
  return std::span<float>(reinterpret_cast<float*>(bytes.data()), space_.element_count());
}

std::span<float> ClientImpl::Part(std::span<float> all, size_t tensor) const {
  return Part(all, space_.tensor(tensor));
}

std::span<float> ClientImpl::Part(std::span<float> all, ModelSpace::Range range) const {
  return all.subspan(range.offset, range.count);
}

Status ClientImpl::Barrier(const std::string& name, TimeNs timeout_ns) {
  control::Envelope request;
  request.mutable_barrier_arrive()->set_name(name);
  const auto answer =
      session_->Ask(request, timeout_ns, "the other workers at barrier '" + name + "'");
  return answer ? OkStatus() : answer.error();
}

Result<control::DataLease> ClientImpl::LeaseData(uint32_t count) {
  control::Envelope request;
  request.mutable_data_lease_request()->set_count(count);
  SLACKLINE_ASSIGN_OR_RETURN(
      const control::Envelope answer,
      session_->Ask(request, kLeaseTimeoutNs, "a data lease from the coordinator"));
  return answer.data_lease();
}

Status ClientImpl::FinishData(const std::vector<uint64_t>& lease_ids) {
  control::Envelope request;
  request.mutable_data_lease_done()->mutable_lease_ids()->Add(lease_ids.begin(), lease_ids.end());
  const auto answer =
      session_->Ask(request, kLeaseTimeoutNs, "the coordinator to take back a data lease");
  return answer ? OkStatus() : answer.error();
}

Status ClientImpl::ReportFinal(const control::FinalReport& report) {
  control::Envelope request;
  *request.mutable_final_report() = report;
  const auto answer =
      session_->Ask(request, kReportTimeoutNs, "the coordinator to take the final report");
  return answer ? OkStatus() : answer.error();
}

Status ClientImpl::Leave(bool done, const std::string& reason) {
  const Status left = session_->Leave(done, reason);
  // What follows of the job's end is no concern of this worker.
  session_->End(Aborted("this worker has left"));
  return left;
}

void ClientImpl::Cancel(const std::string& reason) { session_->End(Aborted(reason)); }

}  // namespace slackline::worker
