// A whole fleet in one process, for tests of the client: the real coordinator, a real server with
// some shards, each on its own thread, over TCP on the loopback.
// Threading: the test's thread makes and ends it. Clients may live on any threads.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/thread.h"
#include "server/coordinator/coordinator_process.h"
#include "server/server_process.h"
#include "worker/client/client.h"

namespace slackline::worker {

struct FleetOptions {
  uint32_t workers = 1;
  uint32_t shards = 2;
  TimeNs lease_ns = 5 * kNsPerSecond;
};

// It must be told to end by its clients' Leave: the destructor waits for that.
class Fleet {
 public:
  explicit Fleet(const FleetOptions& options) {
    server::coordinator::ProcessOptions process;
    process.job.expected_workers = options.workers;
    process.job.lease_ns = options.lease_ns;
    auto coordinator = server::coordinator::CoordinatorProcess::Create(std::move(process));
    EXPECT_TRUE(coordinator) << coordinator.error();
    coordinator_ = std::move(*coordinator);
    coordinator_thread_ = Thread("coordinator", [this] { exit_code_ = coordinator_->Run(); });
    auto server = server::ServerProcess::Create(
        {.coordinator = coordinator_->address(), .shards = options.shards});
    EXPECT_TRUE(server) << server.error();
    server_ = std::move(*server);
    server_thread_ = Thread("server", [this] {
      server_status_ = server_->Run();
      server_.reset();  // As a process that exits: the coordinator waits for that.
    });
  }

  // Waits until the job has ended by itself; the coordinator's exit code.
  int Join() {
    coordinator_thread_.Join();
    server_thread_.Join();
    EXPECT_TRUE(server_status_.ok()) << server_status_;
    return exit_code_;
  }

  const std::string& address() const { return coordinator_->address(); }

 private:
  std::unique_ptr<server::coordinator::CoordinatorProcess> coordinator_;
  std::unique_ptr<server::ServerProcess> server_;
  int exit_code_ = -1;
  Status server_status_;
  Thread coordinator_thread_;
  Thread server_thread_;
};

// A job with SGD and a constant learning rate; FP32 both ways.
inline control::JobSpec MakeJob(int32_t staleness, int64_t steps) {
  control::JobSpec job;
  job.set_model("test");
  job.set_steps(steps);
  job.set_staleness(staleness);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_schedule()->set_name("constant");
  job.mutable_schedule()->set_learning_rate(0.125);
  job.set_push_codec("fp32");
  job.set_pull_codec("fp32");
  job.set_chunk_bytes(1024);
  return job;
}

}  // namespace slackline::worker
