// What keeps the session up: registration after a reconnect, heartbeats, notices.
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "worker/client/control_session.h"

namespace slackline::worker {

namespace {

constexpr TimeNs kRegisterTimeoutNs = 5 * kNsPerSecond;

}  // namespace

// ---- Notices -----------------------------------------------------------------------------------

void ControlSession::OnNotice(const control::Envelope& notice) {
  switch (notice.body_case()) {
    case control::Envelope::kView:
      OnView(notice.view());
      return;
    case control::Envelope::kShardMap:
      OnMap(notice.shard_map());
      return;
    case control::Envelope::kShutdown: {
      {
        MutexLock lock(mutex_);
        if (leaving_) return;  // As it should be: the job ends after the goodbyes.
      }
      const control::Shutdown& shutdown = notice.shutdown();
      End(Aborted(std::string(shutdown.failed() ? "the job failed: " : "the job has ended: ") +
                  shutdown.reason()));
      return;
    }
    case control::Envelope::kError:
      LOG(WARNING) << "the coordinator says: " << notice.error().message();
      return;
    default:
      return;  // Of a later version, or for servers.
  }
}

void ControlSession::OnView(const control::View& view) {
  bool removed = false;
  {
    MutexLock lock(mutex_);
    if (view_ && view.version() <= view_->version()) return;
    view_ = view;
    const auto me = std::ranges::find_if(view.members(), [this](const control::Member& member) {
      return member.worker() == registered_.id() &&
             member.incarnation() == registered_.incarnation();
    });
    if (me != view.members().end() && !member_) {
      member_ = true;
      first_clock_ = me->first_clock();
    }
    removed = me == view.members().end() && member_ && !leaving_;
    Changed();
  }
  if (removed) {
    End(Aborted("worker " + std::to_string(registered_.id()) + " (incarnation " +
                std::to_string(registered_.incarnation()) +
                ") was removed from the view: its lease expired (" +
                std::to_string(registered_.lease_ms()) + " ms); start over to join again"));
  }
}

void ControlSession::OnMap(const control::ShardMap& map) {
  {
    MutexLock lock(mutex_);
    if (map_ && map.epoch() <= map_->epoch()) return;
    map_ = map;
    Changed();
    if (!started_) return;
  }
  if (options_.on_map) options_.on_map(map);
}

// ---- Registration and heartbeats ---------------------------------------------------------------

void ControlSession::RunHeartbeats() {
  const TimeNs interval_ns = registered_.heartbeat_ms() * kNsPerMs;
  TimeNs next_beat_ns = time_.NowNs();
  for (;;) {
    bool register_now = false;
    bool lost = false;
    {
      MutexLock lock(mutex_);
      for (;;) {
        if (stop_) return;
        lost = end_.ok() && CoordinatorIsLost();
        if (lost) break;
        register_now = register_again_ && !registration_open_;
        if (register_now) break;
        const TimeNs left_ns = next_beat_ns - time_.NowNs();
        const bool may_beat = joined_ && !heartbeat_open_;
        if (may_beat && (left_ns <= 0 || beat_now_)) break;
        // While no beat may go, an answer or a reconnect wakes this thread.
        changed_.WaitFor(lock, may_beat ? left_ns : interval_ns);
      }
    }
    if (lost) {
      End(Unavailable("the coordinator at " + options_.coordinator + " has been away for " +
                      std::to_string(options_.coordinator_absence_ns / kNsPerSecond) + " s"));
    } else if (register_now) {
      RegisterAgain();
    } else {
      next_beat_ns = time_.NowNs() + interval_ns;
      Beat();
    }
  }
}

bool ControlSession::CoordinatorIsLost() const {
  return absent_since_ != kNever && time_.NowNs() - absent_since_ > options_.coordinator_absence_ns;
}

void ControlSession::RegisterAgain() {
  {
    MutexLock lock(mutex_);
    register_again_ = false;
    registration_open_ = true;
  }
  client_->CallAsync(
      Registration(), kRegisterTimeoutNs,
      [this](const Result<control::Envelope>& answer) { OnRegisteredAgain(answer); });
}

void ControlSession::OnRegisteredAgain(const Result<control::Envelope>& answer) {
  Status end;
  if (answer && answer->has_registered()) {
    const control::Registered& now = answer->registered();
    if (now.id() != registered_.id() || now.incarnation() != registered_.incarnation() ||
        now.run_id() != registered_.run_id()) {
      end = Aborted(
          "the coordinator was started anew and does not know this worker's life; start "
          "over to join its run");
    }
  } else if (!answer && answer.error().code() != StatusCode::kUnavailable &&
             answer.error().code() != StatusCode::kDeadlineExceeded) {
    end = Aborted("the coordinator does not take this worker back: " + answer.error().message());
  }
  {
    MutexLock lock(mutex_);
    registration_open_ = false;
    joined_ = answer && end.ok();
    // No answer on a connection that stands: once more. One that broke repeats it by itself.
    if (!answer && answer.error().code() == StatusCode::kDeadlineExceeded) register_again_ = true;
    Changed();
    if (leaving_) return;
  }
  if (!end.ok()) End(end);
}

void ControlSession::Beat() {
  control::Envelope envelope;
  uint64_t reports_end = 0;
  {
    MutexLock lock(mutex_);
    beat_now_ = false;
    heartbeat_open_ = true;
    control::Heartbeat& heartbeat = *envelope.mutable_heartbeat();
    heartbeat.set_sequence(++heartbeat_sequence_);
    heartbeat.mutable_clock()->set_value(clock_);
    heartbeat.mutable_clock()->set_loss_scale(loss_scale_);
    heartbeat.set_waiting_for(waiting_for_);
    const size_t count = std::min<size_t>(reports_.size(), kMaxStepReportsPerHeartbeat);
    for (size_t i = 0; i < count; ++i) *heartbeat.add_steps() = reports_[i];
    reports_end = first_report_ + count;
  }
  client_->CallAsync(envelope, registered_.lease_ms() * kNsPerMs,
                     [this, reports_end](const Result<control::Envelope>& answer) {
                       OnHeartbeatAnswer(answer, reports_end);
                     });
}

void ControlSession::OnHeartbeatAnswer(const Result<control::Envelope>& answer,
                                       uint64_t reports_end) {
  MutexLock lock(mutex_);
  heartbeat_open_ = false;
  if (answer) {
    // Some of them may have been dropped meanwhile.
    while (!reports_.empty() && first_report_ < reports_end) {
      reports_.pop_front();
      ++first_report_;
    }
  } else if (answer.error().code() != StatusCode::kUnavailable &&
             answer.error().code() != StatusCode::kDeadlineExceeded) {
    register_again_ = true;  // It does not know us; the registration finds out why.
  }
  Changed();
}

void ControlSession::SetProgress(Clock clock, double loss_scale) {
  MutexLock lock(mutex_);
  clock_ = clock;
  loss_scale_ = loss_scale;
}

void ControlSession::Report(const control::StepReport& report) {
  MutexLock lock(mutex_);
  if (reports_.size() == kMaxStepReports) {
    reports_.pop_front();
    ++first_report_;
    if (dropped_reports_++ == 0) {
      LOG(WARNING) << "the coordinator takes no step reports: the oldest of " << kMaxStepReports
                   << " are dropped";
    }
  }
  reports_.push_back(report);
}

}  // namespace slackline::worker
