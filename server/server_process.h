// A server: its shards' threads, and its word with the coordinator.
//
// The coordinator is never on the data path: while it is away, shards go on; when it is back, the
// server registers again under the same instance name.
// Threading: one owner's thread calls everything; RequestStop alone may be called from anywhere, a
// signal handler included.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "server/shard_thread.h"
#include "transport/control/control_channel.h"
#include "transport/factory.h"

namespace slackline::server {

struct ServerOptions {
  std::string coordinator;         // host:port
  std::string host = "127.0.0.1";  // Where shards listen, and what workers are told.
  uint16_t port = 0;               // Of the first shard, the others follow; 0: any free ones.
  uint32_t shards = 1;
  std::string transport = "tcp";
  transport::EndpointOptions endpoint = {};
  TimeNs connect_timeout_ns = 15 * kNsPerSecond;
  // A coordinator that is away for longer will not come back.
  TimeNs coordinator_absence_ns = 600 * kNsPerSecond;
};

inline constexpr uint32_t kMaxShardsPerServer = 256;

class ServerProcess {
 public:
  // Listens, finds the coordinator and registers. AlreadyExists: a port is in use; Unavailable: no
  // coordinator within the timeout; others: it refused.
  static Result<std::unique_ptr<ServerProcess>> Create(const ServerOptions& options);
  ~ServerProcess();

  // Serves until the coordinator ends the job (OK), RequestStop (OK, after saying goodbye), or
  // something fails.
  Status Run();
  std::vector<std::string> addresses() const;

  static void RequestStop();

 private:
  explicit ServerProcess(const ServerOptions& options) : options_(options) {}

  Status OpenShards();
  Status Register();
  void StartShards(const control::Registered& registered);
  control::Envelope Introduction() const;
  // On the control client's thread.
  void OnNotice(const control::Envelope& message);
  void OnReconnected();
  void OnLost(const Status& status);
  void OnRegisteredAgain(const Result<control::Envelope>& answer);
  // On shards' threads.
  void OnCheckpointDone(const CheckpointWriter::Outcome& outcome);
  // On any thread: Run returns this. The first one counts.
  void End(const Status& status);
  // On the owner's.
  std::optional<Status> WaitForNews(TimeNs now);
  void SendHeartbeat();
  void SendCheckpointReports();
  void SayGoodbye(const std::string& reason);

  const ServerOptions options_;
  const SteadyTimeSource time_;
  std::string instance_;
  control::Registered registered_;  // As it was first.
  std::vector<std::unique_ptr<ShardThread>> shards_;
  uint64_t heartbeat_sequence_ = 0;

  Mutex mutex_;
  CondVar news_;
  bool heartbeat_due_ SLACKLINE_GUARDED_BY(mutex_) = false;
  uint32_t open_heartbeats_ SLACKLINE_GUARDED_BY(mutex_) = 0;
  bool is_registered_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool registering_ SLACKLINE_GUARDED_BY(mutex_) = false;
  TimeNs absent_since_ SLACKLINE_GUARDED_BY(mutex_) = kNever;
  std::optional<Status> ended_ SLACKLINE_GUARDED_BY(mutex_);  // Why Run returns.
  std::vector<control::CheckpointShardDone> done_ SLACKLINE_GUARDED_BY(mutex_);

  // Last: its thread uses the others.
  std::unique_ptr<transport::ControlClient> control_;
  // The same, for its own thread: null before the first registration, when there is none to repeat,
  // and not cleared while the client ends, as control_ is.
  transport::ControlClient* registered_by_ SLACKLINE_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace slackline::server
