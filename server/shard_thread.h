// A shard with a thread, an endpoint and a port of its own: what a server runs several of.
//
// Threading: Create, Start, Stop and the destructor: one owner's thread. Post* and Report() are
// thread-safe. Callbacks run on the shard's or a checkpoint writer's thread and must not block.
// Bounds: the inbox keeps the newest map, view and checkpoint command; older ones are worth
// nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "server/shard.h"
#include "transport/factory.h"
#include "transport/transport.h"

namespace slackline::server {

class ShardThread {
 public:
  struct Callbacks {
    std::function<void()> on_report_changed;  // Epoch, view or initialised chunks.
    std::function<void(const CheckpointWriter::Outcome&)> on_checkpoint_done;
    std::function<void(const Status&)> on_failure;  // The shard cannot go on.
  };

  // Listens; nothing is answered before Start. AlreadyExists: the port is in use.
  static Result<std::unique_ptr<ShardThread>> Create(std::string_view transport,
                                                     const transport::EndpointOptions& options,
                                                     const std::string& address);
  ~ShardThread();

  const std::string& address() const { return address_; }  // With the port that was taken.
  // Starts the thread; reports are refreshed every `report_interval_ns`. Call once.
  void Start(const ShardOptions& options, TimeNs report_interval_ns, Callbacks callbacks);
  // Ends and joins the thread; a checkpoint that is being written is given up. Harmless twice.
  void Stop();

  void PostMap(const control::ShardMap& map);
  void PostView(const control::View& view);
  void PostCheckpoint(const control::TakeCheckpoint& command);
  // As of at most `report_interval_ns` ago; nullopt until the thread runs.
  std::optional<control::ShardReport> Report() const;

 private:
  struct Inbox {
    std::optional<control::ShardMap> map;
    std::optional<control::View> view;
    std::optional<control::TakeCheckpoint> checkpoint;
  };

  ShardThread(std::unique_ptr<transport::Endpoint> endpoint, std::string address);

  // All on the shard's thread.
  void Run();
  TimeNs WaitTime(TimeNs now) const;
  void HandleInbox();
  Status InstallMap(const control::ShardMap& map);
  void TakeCheckpoint(const control::TakeCheckpoint& command);
  CheckpointWriter::Options WriterOptions(const control::TakeCheckpoint& command) const;
  void RefreshReport(TimeNs now);
  void Fail(const Status& status);
  void OnCheckpointDone(const CheckpointWriter::Outcome& outcome);

  std::unique_ptr<transport::Endpoint> endpoint_;
  const std::string address_;
  const SteadyTimeSource time_;
  ShardOptions options_;
  TimeNs report_interval_ns_ = 0;
  Callbacks callbacks_;

  // The shard's thread's own.
  std::unique_ptr<Shard> shard_;
  uint32_t shard_count_ = 0;  // Of the job.
  bool failed_ = false;
  TimeNs next_report_at_ = 0;
  control::ShardReport last_report_;
  std::vector<std::unique_ptr<CheckpointWriter>> writers_;  // One, or two while one is given up.
  uint64_t last_checkpoint_id_ = 0;

  mutable Mutex mutex_;
  Inbox inbox_ SLACKLINE_GUARDED_BY(mutex_);
  std::optional<control::ShardReport> report_ SLACKLINE_GUARDED_BY(mutex_);
  std::optional<CheckpointWriter::Outcome> last_outcome_ SLACKLINE_GUARDED_BY(mutex_);

  std::atomic<bool> stopping_{false};
  Thread thread_;
};

}  // namespace slackline::server
