#include "worker/client/io_loop.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "transport/factory.h"

namespace slackline::worker {

Result<std::unique_ptr<IoLoop>> IoLoop::Create(Options options) {
  SLACKLINE_ASSIGN_OR_RETURN(std::unique_ptr<transport::Endpoint> endpoint,
                             transport::CreateEndpoint(options.transport, options.endpoint));
  return std::unique_ptr<IoLoop>(new IoLoop(std::move(options), std::move(endpoint)));
}

IoLoop::IoLoop(Options options, std::unique_ptr<transport::Endpoint> endpoint)
    : options_(std::move(options)),
      endpoint_(std::move(endpoint)),
      core_(std::make_unique<ClientCore>(options_.core, *endpoint_, time_,
                                         static_cast<CoreEvents&>(*this))) {}

IoLoop::~IoLoop() { Stop(); }

void IoLoop::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  End(Aborted("the client is gone"));
  thread_.Join();
}

Result<std::unique_ptr<transport::Region>> IoLoop::Allocate(size_t size_bytes) {
  return endpoint_->Allocate(size_bytes);
}

void IoLoop::Start(const CoreMap& map) {
  CHECK(!thread_.joinable()) << "Start is called once";
  work_ = std::vector<Work>(map.chunk_shard.size());
  submitted_ = std::make_unique<SpscRing<ChunkIndex>>(map.chunk_shard.size());
  Update(map);
  thread_ = Thread("client-io", [this] { Run(); });
}

Status IoLoop::WaitOpen(TimeNs timeout_ns) {
  const TimeNs deadline_ns = time_.NowNs() + timeout_ns;
  MutexLock lock(mutex_);
  while (!all_open_) {
    if (!end_.ok()) return end_;
    const TimeNs left_ns = deadline_ns - time_.NowNs();
    if (left_ns <= 0) {
      return DeadlineExceeded("not every shard could be reached in time; last: " +
                              (last_loss_.ok() ? "no answer" : last_loss_.message()));
    }
    changed_.WaitFor(lock, left_ns);
  }
  return OkStatus();
}

void IoLoop::Submit(const ChunkRequest& request) {
  Work& work = work_[request.chunk];
  const uint32_t state = work.state.load(std::memory_order_acquire);
  CHECK(state != kPending) << "chunk " << request.chunk << " has an open request";
  work.request = request;
  work.state.store(kPending, std::memory_order_relaxed);  // The ring publishes it.
  CHECK(submitted_->TryPush(request.chunk)) << "the ring holds one request a chunk";
  WakeLoop();
}

// The loop says that it will sleep and then looks for work; the giver gives work and then looks
// whether it sleeps. Both write the flag in one step with reading it, so that one comes after the
// other and sees what was done before: the loop the work, or the giver the sleep. A busy loop costs
// the giver no system call.
void IoLoop::WakeLoop() {
  if (sleeping_.exchange(false, std::memory_order_acq_rel)) endpoint_->Wake();
}

bool IoLoop::Done(ChunkIndex chunk) const {
  return work_[chunk].state.load(std::memory_order_acquire) != kPending;
}

Status IoLoop::Wait(ChunkIndex chunk, ChunkResult* result) {
  Work& work = work_[chunk];
  // Acquire: the result and the landed payload are seen.
  uint32_t state = work.state.load(std::memory_order_acquire);
  while (state == kPending) {
    work.state.wait(kPending, std::memory_order_acquire);
    state = work.state.load(std::memory_order_acquire);
  }
  if (state == kDropped) return end_status();
  *result = work.result;
  return OkStatus();
}

void IoLoop::Update(const CoreMap& map) {
  {
    MutexLock lock(mutex_);
    new_map_ = map;
  }
  orders_waiting_.store(true, std::memory_order_release);
  WakeLoop();
}

void IoLoop::End(const Status& status) {
  {
    MutexLock lock(mutex_);
    if (end_.ok()) end_ = status;
    changed_.NotifyAll();
  }
  orders_waiting_.store(true, std::memory_order_release);
  WakeLoop();
}

Status IoLoop::end_status() const {
  MutexLock lock(mutex_);
  return end_;
}

void IoLoop::Run() {
  while (!stop_.load(std::memory_order_relaxed)) {
    TakeOrders();
    TakeRequests();
    if (time_.NowNs() >= core_->NextDeadline()) core_->OnTick();
    sleeping_.exchange(true, std::memory_order_acq_rel);  // See WakeLoop.
    TimeNs wait_ns = 0;
    const bool idle = submitted_->empty() && !orders_waiting_.load(std::memory_order_relaxed) &&
                      !stop_.load(std::memory_order_relaxed);
    if (idle) {
      const TimeNs deadline_ns = core_->NextDeadline();
      // A second at most, so that no mistake about a deadline lasts.
      wait_ns = deadline_ns == kNever
                    ? kNsPerSecond
                    : std::clamp<TimeNs>(deadline_ns - time_.NowNs(), 0, kNsPerSecond);
    }
    endpoint_->Poll(wait_ns);
    sleeping_.store(false, std::memory_order_relaxed);
  }
  core_->Fail(Aborted("the client is gone"));
  TakeRequests();
}

void IoLoop::TakeRequests() {
  ChunkIndex chunk = 0;
  while (submitted_->TryPop(&chunk)) {
    Work& work = work_[chunk];
    const Status status = core_->Submit(work.request);
    if (status.ok()) continue;
    // After a failure every request is dropped. Anything else would be a request that no core
    // takes, which ends the job as well: its chunk would never come.
    core_->Fail(status);
    Deliver(work, kDropped);
  }
}

void IoLoop::TakeOrders() {
  // Acquire: what was ordered before the flag was set is seen below; what comes later sets it anew.
  if (!orders_waiting_.exchange(false, std::memory_order_acq_rel)) return;
  std::optional<CoreMap> map;
  Status end;
  {
    MutexLock lock(mutex_);
    map = std::move(new_map_);
    new_map_.reset();
    end = end_;
  }
  if (!end.ok()) {
    core_->Fail(end);
    return;
  }
  if (!map) return;
  if (const Status status = core_->SetMap(*map); !status.ok()) core_->Fail(status);
}

void IoLoop::Deliver(Work& work, WorkState state) {
  // Release: publishes the result and the payload that landed.
  work.state.store(state, std::memory_order_release);
  work.state.notify_one();
}

void IoLoop::OnChunkDone(const ChunkResult& result) {
  Work& work = work_[result.chunk];
  work.result = result;
  Deliver(work, kAnswered);
}

void IoLoop::OnAllOpen() {
  MutexLock lock(mutex_);
  all_open_ = true;
  changed_.NotifyAll();
}

void IoLoop::OnLinkLost(ShardIndex shard, uint32_t attempts, const Status& status) {
  const std::string line =
      "lost the connection to shard " + std::to_string(shard) + ": " + status.message();
  {
    MutexLock lock(mutex_);
    last_loss_ = Status(status.code(), line);
  }
  // Attempts that fail in a row are one event; the reports of stalls count them.
  if (attempts == 1 && options_.on_wait) options_.on_wait(line);
}

void IoLoop::OnWaiting(const std::string& line) {
  if (options_.on_wait) options_.on_wait(line);
}

// Requests that are still in the ring follow in TakeRequests, whose Submit fails from now on.
void IoLoop::OnChunkDropped(ChunkIndex chunk) { Deliver(work_[chunk], kDropped); }

void IoLoop::OnFailed(const Status& status) {
  {
    MutexLock lock(mutex_);
    if (end_.ok()) end_ = status;
    changed_.NotifyAll();
  }
  if (options_.on_failed) options_.on_failed(status);
}

}  // namespace slackline::worker
