#include "server/server_process.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "common/hash.h"

namespace slackline::server {
namespace {

using control::Envelope;

// A signal handler can only set a flag; this is how late it may be seen.
constexpr TimeNs kSignalTick = 100 * kNsPerMs;
// Heartbeats that were not answered yet; more are not sent.
constexpr uint32_t kMaxOpenHeartbeats = 4;
// Reports of finished checkpoint files that wait to be sent: the coordinator asks again for others.
constexpr size_t kMaxWaitingReports = 4 * kMaxShardsPerServer;
constexpr TimeNs kGoodbyeTimeout = kNsPerSecond;

// Lock-free, so that a signal handler may set it; relaxed, since it orders nothing.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

std::string RandomInstance() {
  std::random_device device;
  return HashToHex(uint64_t{device()} << 32 | device());
}

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

control::CheckpointShardDone ToProto(const CheckpointWriter::Outcome& outcome) {
  control::CheckpointShardDone done;
  done.set_checkpoint_id(outcome.checkpoint_id);
  done.set_shard(outcome.shard);
  done.set_file(outcome.file);
  done.set_bytes(outcome.digest.bytes);
  done.set_xxh3(HashToHex(outcome.digest.xxh3));
  done.set_error(outcome.status.message());
  return done;
}

}  // namespace

void ServerProcess::RequestStop() { stop_requested.store(true, std::memory_order_relaxed); }

Result<std::unique_ptr<ServerProcess>> ServerProcess::Create(const ServerOptions& options) {
  std::unique_ptr<ServerProcess> process(new ServerProcess(options));
  process->instance_ = RandomInstance();
  SLACKLINE_RETURN_ERR_IF_ERROR(process->OpenShards());
  SLACKLINE_RETURN_ERR_IF_ERROR(process->Register());
  return process;
}

ServerProcess::~ServerProcess() {
  // Shards' callbacks and the client's callbacks use each other: first no more from the client,
  // then none from the shards.
  control_.reset();
  shards_.clear();
}

Status ServerProcess::OpenShards() {
  for (uint32_t i = 0; i < options_.shards; ++i) {
    const uint32_t port = options_.port == 0 ? 0 : options_.port + i;
    const std::string address =
        options_.transport + "://" + options_.host + ":" + std::to_string(port);
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(
        std::unique_ptr<ShardThread> shard,
        ShardThread::Create(options_.transport, options_.endpoint, address));
    shards_.push_back(std::move(shard));
  }
  return OkStatus();
}

std::vector<std::string> ServerProcess::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& shard : shards_) addresses.push_back(shard->address());
  return addresses;
}

Envelope ServerProcess::Introduction() const {
  Envelope envelope;
  control::RegisterServer& who = *envelope.mutable_register_server();
  who.set_protocol_version(transport::kControlProtocolVersion);
  who.set_host(HostName());
  who.set_pid(getpid());
  who.set_instance(instance_);
  for (const auto& shard : shards_) who.add_shard_addresses(shard->address());
  return envelope;
}

Status ServerProcess::Register() {
  transport::ControlClient::Options options;
  options.address = options_.coordinator;
  options.connect_timeout_ns = options_.connect_timeout_ns;
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      control_, transport::ControlClient::Create(
                    options, {[this](const Envelope& message) { OnNotice(message); },
                              [this] { OnReconnected(); },
                              [this](const Status& status) { OnLost(status); }}));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Envelope answer,
                                    control_->Call(Introduction(), options_.connect_timeout_ns));
  if (!answer.has_registered()) {
    return FailedPrecondition("the coordinator at " + options_.coordinator +
                              " gave no proper answer to the registration");
  }
  StartShards(answer.registered());
  MutexLock lock(mutex_);
  is_registered_ = true;
  return OkStatus();
}

void ServerProcess::StartShards(const control::Registered& registered) {
  {
    // A reconnect may compare it on the client's thread.
    MutexLock lock(mutex_);
    registered_ = registered;
    registered_by_ = control_.get();
  }
  const TimeNs interval = std::max<TimeNs>(registered.heartbeat_ms(), 1) * kNsPerMs;
  for (uint32_t i = 0; i < options_.shards; ++i) {
    ShardOptions shard;
    shard.shard = registered.first_shard() + i;
    shard.expected_workers = std::max(registered.expected_workers(), 1u);
    shard.max_members = std::max(shard.max_members, 2 * shard.expected_workers);
    shards_[i]->Start(shard, interval,
                      {[this] {
                         MutexLock lock(mutex_);
                         heartbeat_due_ = true;
                         news_.NotifyOne();
                       },
                       [this](const CheckpointWriter::Outcome& o) { OnCheckpointDone(o); },
                       [this](const Status& status) { End(status); }});
  }
  LOG(INFO) << "server " << registered.id() << " of run " << registered.run_id() << ": shards "
            << registered.first_shard() << " to " << registered.first_shard() + options_.shards - 1;
}

void ServerProcess::OnNotice(const Envelope& message) {
  if (message.has_shard_map()) {
    for (const auto& shard : shards_) shard->PostMap(message.shard_map());
  } else if (message.has_view()) {
    for (const auto& shard : shards_) shard->PostView(message.view());
  } else if (message.has_take_checkpoint()) {
    for (const auto& shard : shards_) shard->PostCheckpoint(message.take_checkpoint());
  } else if (message.has_shutdown()) {
    const control::Shutdown& shutdown = message.shutdown();
    LOG(INFO) << "the coordinator ends the job: " << shutdown.reason();
    End(shutdown.failed() ? Aborted("the job failed: " + shutdown.reason()) : OkStatus());
  }
}

void ServerProcess::OnLost(const Status& status) {
  LOG(WARNING) << "the coordinator is away, shards go on: " << status.message();
  MutexLock lock(mutex_);
  is_registered_ = false;
  absent_since_ = time_.NowNs();
}

void ServerProcess::OnReconnected() {
  transport::ControlClient* client = nullptr;
  {
    MutexLock lock(mutex_);
    if (registered_by_ == nullptr || registering_) return;
    registering_ = true;
    client = registered_by_;
  }
  client->CallAsync(Introduction(), options_.connect_timeout_ns,
                    [this](Result<Envelope> answer) { OnRegisteredAgain(answer); });
}

void ServerProcess::OnRegisteredAgain(const Result<Envelope>& answer) {
  if (!answer && answer.error().code() == StatusCode::kDeadlineExceeded) {
    {
      MutexLock lock(mutex_);
      registering_ = false;
    }
    // No answer on a connection that stands: once more. One that broke repeats it by itself.
    OnReconnected();
    return;
  }
  MutexLock lock(mutex_);
  registering_ = false;
  if (!answer) {
    // The connection broke again: OnReconnected will be called again.
    if (answer.error().code() == StatusCode::kUnavailable) return;
    if (!ended_) ended_ = answer.error();
  } else if (answer->registered().run_id() != registered_.run_id() ||
             answer->registered().first_shard() != registered_.first_shard()) {
    if (!ended_) ended_ = Aborted("the coordinator came back with another run");
  } else {
    is_registered_ = true;
    absent_since_ = kNever;
    heartbeat_due_ = true;
    LOG(INFO) << "the coordinator is back";
  }
  news_.NotifyOne();
}

void ServerProcess::OnCheckpointDone(const CheckpointWriter::Outcome& outcome) {
  MutexLock lock(mutex_);
  if (done_.size() < kMaxWaitingReports) done_.push_back(ToProto(outcome));
  news_.NotifyOne();
}

void ServerProcess::End(const Status& status) {
  MutexLock lock(mutex_);
  if (!ended_) ended_ = status;
  news_.NotifyOne();
}

Status ServerProcess::Run() {
  const TimeNs interval = std::max<TimeNs>(registered_.heartbeat_ms(), 1) * kNsPerMs;
  TimeNs next_heartbeat = 0;
  for (;;) {
    const TimeNs now = time_.NowNs();
    if (stop_requested.exchange(false, std::memory_order_relaxed)) {
      LOG(INFO) << "asked to stop";
      SayGoodbye("asked to stop");
      return OkStatus();
    }
    if (now >= next_heartbeat) {
      next_heartbeat = now + interval;
      SendHeartbeat();
    }
    SendCheckpointReports();
    if (const std::optional<Status> ended = WaitForNews(next_heartbeat)) {
      if (!ended->ok()) SayGoodbye(ended->message());
      return *ended;
    }
  }
}

// Waits until something is to be done, at most a tick. What ends the process, if anything.
std::optional<Status> ServerProcess::WaitForNews(TimeNs next_heartbeat) {
  bool heartbeat = false;
  {
    MutexLock lock(mutex_);
    const TimeNs now = time_.NowNs();
    if (!ended_ && !heartbeat_due_ && done_.empty()) {
      news_.WaitFor(lock, std::clamp<TimeNs>(next_heartbeat - now, 0, kSignalTick));
    }
    if (ended_) return ended_;
    if (absent_since_ != kNever && now - absent_since_ > options_.coordinator_absence_ns) {
      return Unavailable("the coordinator at " + options_.coordinator + " has been away for " +
                         std::to_string(options_.coordinator_absence_ns / kNsPerSecond) + " s");
    }
    heartbeat = std::exchange(heartbeat_due_, false);
  }
  if (heartbeat) SendHeartbeat();
  return std::nullopt;
}

void ServerProcess::SendHeartbeat() {
  {
    MutexLock lock(mutex_);
    if (!is_registered_ || open_heartbeats_ >= kMaxOpenHeartbeats) return;
    ++open_heartbeats_;
  }
  Envelope envelope;
  control::Heartbeat& heartbeat = *envelope.mutable_heartbeat();
  heartbeat.set_sequence(++heartbeat_sequence_);
  bool mapped = true;
  for (const auto& shard : shards_) {
    const std::optional<control::ShardReport> report = shard->Report();
    if (report) *heartbeat.add_shards() = *report;
    mapped = mapped && report && report->epoch() > 0;
  }
  if (!mapped) heartbeat.set_waiting_for("the shard map");
  const TimeNs timeout = std::max<TimeNs>(registered_.lease_ms(), 1) * kNsPerMs;
  control_->CallAsync(std::move(envelope), timeout, [this](Result<Envelope> answer) {
    bool register_again = false;
    {
      MutexLock lock(mutex_);
      --open_heartbeats_;
      // The coordinator forgot us (our lease ran out while this process was stopped).
      register_again =
          !answer && is_registered_ && answer.error().code() == StatusCode::kFailedPrecondition;
      if (register_again) is_registered_ = false;
    }
    if (register_again) OnReconnected();
  });
}

void ServerProcess::SendCheckpointReports() {
  std::vector<control::CheckpointShardDone> reports;
  {
    MutexLock lock(mutex_);
    std::swap(reports, done_);
  }
  for (control::CheckpointShardDone& report : reports) {
    Envelope envelope;
    *envelope.mutable_checkpoint_shard_done() = std::move(report);
    // If there is no connection, the coordinator will ask for it again when it is back.
    const Status status = control_->Notify(envelope);
    LOG_IF(WARNING, !status.ok()) << "a checkpoint report was not sent: " << status;
  }
}

void ServerProcess::SayGoodbye(const std::string& reason) {
  Envelope envelope;
  envelope.mutable_leave()->set_reason(reason);
  // It may be gone itself; there is nothing left to do about it then.
  const Result<Envelope> answer = control_->Call(std::move(envelope), kGoodbyeTimeout);
  LOG_IF(WARNING, !answer) << "left without the coordinator's answer: " << answer.error();
}

}  // namespace slackline::server
