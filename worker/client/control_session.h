// The worker's standing with the coordinator: registration (again after every reconnect), lease,
// view, shard map, and the questions that a worker asks.
//
// While the coordinator is away, training goes on; questions wait for it to come back, within their
// own timeout. The end is one thing, however it comes (shutdown, removal from the view, a stall on
// the data plane, Cancel): End() once, and every waiting and later question returns its status.
// Threading: thread-safe, apart from construction and destruction. Callbacks run on any thread,
// without locks held, and must not block.
// Errors: Unavailable and DeadlineExceeded name what was waited for; Aborted after the end.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"
#include "transport/control/control_channel.h"

namespace slackline::worker {

// Step reports that wait for the coordinator; beyond it the oldest are dropped and counted.
inline constexpr size_t kMaxStepReports = 4096;
inline constexpr int kMaxStepReportsPerHeartbeat = 1024;

class ControlSession {
 public:
  struct Options {
    std::string coordinator;  // host:port
    int32_t wanted_rank = -1;
    control::JobSpec job;
    TimeNs connect_timeout_ns = 15 * kNsPerSecond;
    TimeNs start_timeout_ns = 120 * kNsPerSecond;  // For a free rank, and for the start.
    TimeNs report_ns = 5 * kNsPerSecond;           // Between lines about one wait.
    // A coordinator that is away for longer will not come back: Unavailable ends this life.
    TimeNs coordinator_absence_ns = 600 * kNsPerSecond;
    std::function<void(const std::string&)> on_wait;
    std::function<void(const Status&)> on_ended;           // Once.
    std::function<void(const control::ShardMap&)> on_map;  // Each newer one, after the start.
  };

  // Connects and registers. InvalidArgument: another job than the cluster's, by field.
  static Result<std::unique_ptr<ControlSession>> Open(Options options);
  ~ControlSession();
  ControlSession(const ControlSession&) = delete;
  ControlSession& operator=(const ControlSession&) = delete;

  // As the coordinator answered the first registration.
  const control::Registered& registered() const { return registered_; }

  struct Start {
    control::ShardMap map;
    Clock first_clock = 0;
  };
  // Declares the model and waits until this worker is in the view and the shard map is there.
  Result<Start> DeclareAndWait(const control::DeclareModel& model);

  // Sends the request and waits for its answer, through reconnects. `what` completes "waiting for".
  Result<control::Envelope> Ask(const control::Envelope& request, TimeNs timeout_ns,
                                const std::string& what);

  bool lowest_live_rank() const;
  void SetProgress(Clock clock, double loss_scale);
  void Report(const control::StepReport& report);
  // Hands over the reports that are left and says goodbye; works after End(), too.
  Status Leave(bool done, const std::string& reason);

  void End(const Status& status);
  Status end_status() const;
  // Waits at most this long; false (at once) after the end.
  bool Pause(TimeNs duration_ns);

 private:
  // An answer on its way to the thread that waits for it. Shared, since either side may go first.
  struct Pending {
    bool done = false;
    Result<control::Envelope> answer = Err(Unavailable("no answer"));
  };

  // A wait of the calling thread.
  struct Wait {
    TimeNs deadline_ns = kNever;
    TimeNs next_report_ns = kNever;
    std::string what = {};
    std::string not_now = {};  // How the coordinator put it off, in brackets.
    bool even_after_end = false;
    bool ask_coordinator = false;  // Its status page says what is missing.
  };

  explicit ControlSession(Options options);

  Status ConnectAndRegister();
  Status Connect(TimeNs deadline_ns);
  control::Envelope Registration() const;
  Result<control::Envelope> AskUntil(const control::Envelope& request, TimeNs deadline_ns,
                                     const std::string& what, bool even_after_end);
  Result<control::Envelope> AskOnce(const control::Envelope& request, Wait* wait);
  Status WaitForChange(uint64_t seen, Wait* wait);
  void Changed() SLACKLINE_REQUIRES(mutex_) {
    ++changes_;
    changed_.NotifyAll();
  }
  void SayWaiting(const std::string& what);
  std::string WhatTheCoordinatorWaitsFor();

  // control_session_upkeep.cc. On the connection's thread:
  void OnNotice(const control::Envelope& notice);
  void OnView(const control::View& view);
  void OnMap(const control::ShardMap& map);
  void OnRegisteredAgain(const Result<control::Envelope>& answer);
  void OnHeartbeatAnswer(const Result<control::Envelope>& answer, uint64_t reports_end);

  // On the session's own thread:
  void RunHeartbeats();
  void RegisterAgain();
  bool CoordinatorIsLost() const SLACKLINE_REQUIRES(mutex_);
  void Beat();

  const Options options_;
  const SteadyTimeSource time_;
  const std::string instance_;      // Tells a reconnect from a new process.
  control::Registered registered_;  // Written before the second thread starts.

  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t changes_ SLACKLINE_GUARDED_BY(mutex_) = 0;
  bool has_registered_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool joined_ SLACKLINE_GUARDED_BY(mutex_) = false;  // Registered on the present connection.
  bool register_again_ SLACKLINE_GUARDED_BY(mutex_) = false;
  TimeNs absent_since_ SLACKLINE_GUARDED_BY(mutex_) = kNever;  // Of the coordinator.
  bool leaving_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool stop_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool beat_now_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool heartbeat_open_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool registration_open_ SLACKLINE_GUARDED_BY(mutex_) = false;
  uint64_t heartbeat_sequence_ SLACKLINE_GUARDED_BY(mutex_) = 0;
  Status end_ SLACKLINE_GUARDED_BY(mutex_);
  std::string waiting_for_ SLACKLINE_GUARDED_BY(mutex_);
  std::optional<control::View> view_ SLACKLINE_GUARDED_BY(mutex_);
  std::optional<control::ShardMap> map_ SLACKLINE_GUARDED_BY(mutex_);
  bool started_ SLACKLINE_GUARDED_BY(mutex_) = false;  // DeclareAndWait has returned.
  bool member_ SLACKLINE_GUARDED_BY(mutex_) = false;   // This life is or was in a view.
  Clock first_clock_ SLACKLINE_GUARDED_BY(mutex_) = 0;
  Clock clock_ SLACKLINE_GUARDED_BY(mutex_) = kNoClock;
  double loss_scale_ SLACKLINE_GUARDED_BY(mutex_) = 1;
  std::deque<control::StepReport> reports_ SLACKLINE_GUARDED_BY(mutex_);
  uint64_t first_report_ SLACKLINE_GUARDED_BY(mutex_) = 0;  // Number of reports_.front().
  uint64_t dropped_reports_ SLACKLINE_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<transport::ControlClient> client_;
  Thread heartbeats_;
};

}  // namespace slackline::worker
