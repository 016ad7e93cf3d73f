#include "server/shard_thread.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "server/checkpoint/manifest.h"
#include "server/checkpoint/restore.h"
#include "transport/factory.h"

namespace slackline::server {
namespace {

// Room for the workers of a view, and for as many that are replaced at that moment.
constexpr uint32_t kMinWatermarks = 16;

// The endpoint must have a handler when it starts to listen, before the shard can exist. Nothing
// polls the endpoint until the shard is there, so nothing reaches this one.
class NobodyYet final : public transport::Handler {
 public:
  void OnOpened(transport::Channel& channel) override { channel.Close(); }
  void OnClosed(transport::Channel&, const Status&) override {}
};

}  // namespace

Result<std::unique_ptr<ShardThread>> ShardThread::Create(std::string_view transport,
                                                         const transport::EndpointOptions& options,
                                                         const std::string& address) {
  static NobodyYet nobody;
  SLACKLINE_ASSIGN_OR_RETURN(std::unique_ptr<transport::Endpoint> endpoint,
                             transport::CreateEndpoint(transport, options));
  endpoint->set_handler(&nobody);
  SLACKLINE_ASSIGN_OR_RETURN(std::string bound, endpoint->Listen(address));
  return std::unique_ptr<ShardThread>(new ShardThread(std::move(endpoint), std::move(bound)));
}

ShardThread::ShardThread(std::unique_ptr<transport::Endpoint> endpoint, std::string address)
    : endpoint_(std::move(endpoint)), address_(std::move(address)) {}

ShardThread::~ShardThread() {
  Stop();
  // The shard lets go of its checkpoint before the writer ends, and of its memory before the
  // endpoint does.
  shard_.reset();
  writers_.clear();
}

void ShardThread::Start(const ShardOptions& options, TimeNs report_interval_ns,
                        Callbacks callbacks) {
  options_ = options;
  report_interval_ns_ = report_interval_ns;
  callbacks_ = std::move(callbacks);
  shard_ = std::make_unique<Shard>(*endpoint_, time_, options_);
  endpoint_->set_handler(shard_.get());
  thread_ = Thread("shard-" + std::to_string(options_.shard), [this] { Run(); });
}

void ShardThread::Stop() {
  // Relaxed would do: Wake and Join order everything else.
  stopping_.store(true);
  endpoint_->Wake();
  thread_.Join();
}

void ShardThread::PostMap(const control::ShardMap& map) {
  {
    MutexLock lock(mutex_);
    inbox_.map = map;
  }
  endpoint_->Wake();
}

void ShardThread::PostView(const control::View& view) {
  {
    MutexLock lock(mutex_);
    inbox_.view = view;
  }
  endpoint_->Wake();
}

void ShardThread::PostCheckpoint(const control::TakeCheckpoint& command) {
  {
    MutexLock lock(mutex_);
    inbox_.checkpoint = command;
  }
  endpoint_->Wake();
}

std::optional<control::ShardReport> ShardThread::Report() const {
  MutexLock lock(mutex_);
  return report_;
}

void ShardThread::Run() {
  RefreshReport(time_.NowNs());
  while (!stopping_.load()) {
    endpoint_->Poll(WaitTime(time_.NowNs()));
    shard_->OnTick(time_.NowNs());
    HandleInbox();
    RefreshReport(time_.NowNs());
    std::erase_if(writers_, [](const auto& writer) { return writer->done(); });
  }
}

TimeNs ShardThread::WaitTime(TimeNs now) const {
  const TimeNs until = std::min(shard_->NextDeadline(), next_report_at_);
  return std::max<TimeNs>(until - now, 0);
}

void ShardThread::HandleInbox() {
  Inbox inbox;
  {
    MutexLock lock(mutex_);
    std::swap(inbox, inbox_);
  }
  if (failed_) return;
  Status status;
  if (inbox.map) status = InstallMap(*inbox.map);
  if (status.ok() && inbox.view) status = shard_->InstallView(*inbox.view);
  if (!status.ok()) {
    Fail(status);
    return;
  }
  if (inbox.checkpoint) TakeCheckpoint(*inbox.checkpoint);
}

// Workers hear of the map only after every shard has reported it, so a shard may take its time to
// load its chunks here.
Status ShardThread::InstallMap(const control::ShardMap& map) {
  const bool first = shard_->epoch() == 0;
  SLACKLINE_RETURN_IF_ERROR(shard_->InstallMap(map));
  shard_count_ = static_cast<uint32_t>(map.shard_addresses_size());
  if (!first) return OkStatus();
  if (!map.restore_from().empty()) {
    SLACKLINE_RETURN_IF_ERROR(RestoreShard(map.restore_from(), map, options_.shard, shard_.get()));
  }
  LOG(INFO) << "shard " << options_.shard << ": " << shard_->chunks()->size() << " of "
            << map.chunks_size() << " chunks"
            << (map.restore_from().empty() ? "" : ", restored from " + map.restore_from());
  return OkStatus();
}

// The coordinator repeats a command when its connection was lost meanwhile.
void ShardThread::TakeCheckpoint(const control::TakeCheckpoint& command) {
  if (command.checkpoint_id() == last_checkpoint_id_) {
    std::optional<CheckpointWriter::Outcome> outcome;
    {
      MutexLock lock(mutex_);
      outcome = last_outcome_;
    }
    if (outcome && outcome->checkpoint_id == command.checkpoint_id()) {
      callbacks_.on_checkpoint_done(*outcome);
    }
    return;
  }
  last_checkpoint_id_ = command.checkpoint_id();
  if (shard_->chunks() == nullptr) {
    OnCheckpointDone({command.checkpoint_id(),
                      options_.shard,
                      "",
                      FailedPrecondition("the shard has no chunks yet"),
                      {}});
    return;
  }
  writers_.push_back(std::make_unique<CheckpointWriter>(
      WriterOptions(command),
      CheckpointWriter::Callbacks{
          [this] { endpoint_->Wake(); },
          [this](const CheckpointWriter::Outcome& outcome) { OnCheckpointDone(outcome); }}));
  shard_->BeginCheckpoint(command.checkpoint_id(), command.clock(), command.final(),
                          writers_.back().get());
}

CheckpointWriter::Options ShardThread::WriterOptions(const control::TakeCheckpoint& command) const {
  CheckpointWriter::Options options;
  options.checkpoint_id = command.checkpoint_id();
  options.shard = options_.shard;
  options.directory = command.directory();
  options.file = ShardFileName(options_.shard, shard_count_);
  options.layout.max_watermarks = std::max(2 * options_.expected_workers, kMinWatermarks);
  for (uint32_t local = 0; local < shard_->chunks()->size(); ++local) {
    const Chunk& chunk = shard_->chunks()->at(local);
    options.layout.chunks.push_back({chunk.index, chunk.count});
  }
  options.layout.slot_names = shard_->slot_names();
  return options;
}

void ShardThread::OnCheckpointDone(const CheckpointWriter::Outcome& outcome) {
  LOG_IF(ERROR, !outcome.status.ok()) << "shard " << options_.shard << ": checkpoint "
                                      << outcome.checkpoint_id << ": " << outcome.status;
  {
    MutexLock lock(mutex_);
    if (!last_outcome_ || last_outcome_->checkpoint_id <= outcome.checkpoint_id) {
      last_outcome_ = outcome;
    }
  }
  callbacks_.on_checkpoint_done(outcome);
  endpoint_->Wake();  // So that the writer is let go.
}

void ShardThread::RefreshReport(TimeNs now) {
  if (failed_) return;  // What it holds is not to be relied on.
  const bool changed = shard_->epoch() != last_report_.epoch() ||
                       shard_->view_version() != last_report_.view_version() ||
                       shard_->initialised_chunks() != last_report_.chunks_initialised();
  if (!changed && now < next_report_at_) return;
  next_report_at_ = now + report_interval_ns_;
  last_report_ = shard_->Report();
  {
    MutexLock lock(mutex_);
    report_ = last_report_;
  }
  if (changed) callbacks_.on_report_changed();
}

void ShardThread::Fail(const Status& status) {
  failed_ = true;
  LOG(ERROR) << "shard " << options_.shard << ": " << status;
  callbacks_.on_failure(status);
}

}  // namespace slackline::server
