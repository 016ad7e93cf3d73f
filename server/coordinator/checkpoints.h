// Decides when a checkpoint is cut, and follows one attempt at a time until it is committed or
// abandoned. An abandoned attempt costs nothing but itself: the checkpoint before it stays.
//
// BSP: the command goes out ahead of time for an exact clock (a multiple of --checkpoint_every,
// minus one), and every shard cuts each chunk when that round closes. The lead over the highest
// clock seen covers what has happened since the shards' last reports; it doubles when a shard says
// that it was too late. SSP and ASP: the command goes out when the slowest chunk has reached the
// clock, and shards cut at once.
// Threading: owner thread: the coordinator's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"

namespace slackline::server::coordinator {

// One file of a checkpoint, as its shard reported it.
struct CheckpointFile {
  ShardIndex shard = 0;
  std::string name;
  uint64_t bytes = 0;
  std::string xxh3;  // 16 hexadecimal digits.
};

struct CheckpointPlan {
  uint64_t id = 0;
  Clock clock = kNoClock;
  bool final = false;
  std::string directory;              // Where it is written: DIR/.tmp-<id>.
  std::string target;                 // Where it ends: DIR/step-<clock + 1>.
  std::vector<CheckpointFile> files;  // By shard.
};

class Checkpoints {
 public:
  struct Options {
    std::string directory;  // Empty: no checkpoints at all.
    bool exact_cut = true;  // BSP.
    int64_t every = 0;      // Clocks; 0: only the final one.
    Clock first_clock = 0;  // Of the job; what is before it is in a checkpoint already.
    Clock steps = 0;
    TimeNs timeout_ns = 120 * kNsPerSecond;  // From when the cut's clock was reached.
  };
  enum class Phase : uint8_t { kIdle, kPreparing, kWriting, kCommitting };

  explicit Checkpoints(const Options& options);

  // Starts the attempt that is due, if any and none is on its way: true, and plan() has id, clock
  // and directories. `slowest`: every chunk has every member's updates up to it. `highest`: the
  // highest clock that any chunk has seen. `lead`: clocks that may have passed since.
  bool StartDue(Clock slowest, Clock highest, Clock lead);
  // After the last worker has left: a cut at once, after `clock`. False: there is nothing to save
  // that is not saved. No attempt may be on its way.
  bool StartFinal(Clock clock, TimeNs now);

  // The directory is there: `shards` are to report. Ids of older attempts are ignored: false.
  bool OnPrepared(uint64_t id, const std::vector<ShardIndex>& shards);
  // InvalidArgument: a report that cannot be (hostile or a bug); the attempt goes on.
  // Aborted: the shard failed; the caller abandons the attempt. True: all shards have reported, and
  // plan() is complete: commit it. Reports for older attempts are ignored.
  Result<bool> OnShardDone(const control::CheckpointShardDone& report);
  // The attempt is complete: true. Ids of older attempts are ignored: false.
  bool OnCommitted(uint64_t id);

  // DeadlineExceeded names the shards that did not report; the caller abandons the attempt.
  Status CheckDeadline(Clock highest, TimeNs now);
  // Gives the attempt up. Returns the directory to discard.
  std::string Abandon(const std::string& reason);

  bool enabled() const { return !options_.directory.empty(); }
  Phase phase() const { return phase_; }
  const CheckpointPlan& plan() const { return plan_; }
  const std::vector<ShardIndex>& awaited() const { return awaited_; }
  const std::string& last_target() const { return last_target_; }  // Empty: none yet.
  void set_last_target(std::string target) { last_target_ = std::move(target); }
  uint64_t committed() const { return committed_; }
  uint64_t failures() const { return failures_; }
  const std::string& last_error() const { return last_error_; }

 private:
  void Start(Clock clock, bool final);

  const Options options_;
  Phase phase_ = Phase::kIdle;
  CheckpointPlan plan_;
  std::vector<ShardIndex> awaited_;  // Shards that have not reported yet.
  TimeNs deadline_ns_ = kNever;
  uint64_t next_id_ = 1;
  Clock last_clock_;  // Of the last attempt, committed or not.
  Clock last_committed_clock_;
  Clock extra_lead_ = 0;  // Grows while BSP cuts come too late.
  std::string last_target_;
  uint64_t committed_ = 0;
  uint64_t failures_ = 0;
  std::string last_error_;
};

}  // namespace slackline::server::coordinator
