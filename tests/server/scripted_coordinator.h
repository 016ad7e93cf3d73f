// A coordinator that a test scripts: it answers registrations and heartbeats by itself, remembers
// what it hears, and says what the test tells it to.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/thread.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "transport/control/control_channel.h"

namespace slackline::server {

class ScriptedCoordinator {
 public:
  using Envelope = control::Envelope;

  explicit ScriptedCoordinator(const std::string& address = "127.0.0.1:0",
                               const std::string& run_id = "run")
      : run_id_(run_id) {
    transport::ControlServer::Callbacks callbacks;
    callbacks.on_opened = [](uint64_t, const std::string&) {};
    callbacks.on_closed = [](uint64_t, const Status&) {};
    callbacks.on_message = [this](uint64_t connection, const Envelope& message) {
      OnMessage(connection, message);
    };
    // Says at once what Say queued, and stops when told.
    callbacks.on_tick = [this] { OnTick(); };
    auto server = transport::ControlServer::Create(address, kNsPerMs, std::move(callbacks));
    EXPECT_TRUE(server.has_value()) << server.error();
    server_ = std::move(*server);
    address_ = server_->address();
    thread_ = Thread("coordinator", [this] { server_->Run(); });
  }
  ~ScriptedCoordinator() {
    server_->Stop();
    thread_.Join();
  }
  const std::string& address() const { return address_; }

  // Sends to the server that registered last.
  void Say(const Envelope& message) {
    MutexLock lock(mutex_);
    to_say_.push_back(message);
  }
  // Waits until a message that it heard is what `wanted` looks for; fails the test after a bound.
  bool Hear(const std::function<bool(const Envelope&)>& wanted) {
    MutexLock lock(mutex_);
    const SteadyTimeSource time;
    const TimeNs deadline = time.NowNs() + 20 * kNsPerSecond;
    for (;;) {
      for (const Envelope& message : heard_) {
        if (wanted(message)) return true;
      }
      const TimeNs left = deadline - time.NowNs();
      if (left <= 0) return false;
      news_.WaitFor(lock, left);
    }
  }
  // Forgets what it heard so far.
  void Forget() {
    MutexLock lock(mutex_);
    heard_.clear();
  }
  // Later registrations and heartbeats are answered with this error.
  void RefuseWith(const Status& status) {
    MutexLock lock(mutex_);
    refusal_ = status;
  }
  // The next heartbeat is refused, as after a lease that ran out, and the registration that follows
  // gets no answer.
  void LoseRegistration() {
    MutexLock lock(mutex_);
    refuse_heartbeat_ = ignore_registration_ = true;
  }

 private:
  void OnMessage(uint64_t connection, const Envelope& message) {
    MutexLock lock(mutex_);
    connection_ = connection;
    heard_.push_back(message);
    news_.NotifyAll();
    if (message.id() == 0) return;
    if (message.has_register_server() && std::exchange(ignore_registration_, false)) return;
    Envelope answer;
    answer.set_answers(message.id());
    if (!refusal_.ok()) {
      answer.mutable_error()->set_code(static_cast<uint32_t>(refusal_.code()));
      answer.mutable_error()->set_message(refusal_.message());
    } else if (message.has_heartbeat() && std::exchange(refuse_heartbeat_, false)) {
      answer.mutable_error()->set_code(static_cast<uint32_t>(StatusCode::kFailedPrecondition));
    } else if (message.has_register_server()) {
      control::Registered& registered = *answer.mutable_registered();
      registered.set_lease_ms(5000);
      registered.set_heartbeat_ms(20);
      registered.set_expected_workers(1);
      registered.set_expected_servers(1);
      registered.set_run_id(run_id_);
    } else if (message.has_heartbeat()) {
      answer.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
    } else {
      answer.mutable_ack();
    }
    server_->Send(connection, answer);
  }
  void OnTick() {
    MutexLock lock(mutex_);
    if (connection_ == 0) return;
    for (const Envelope& message : to_say_) server_->Send(connection_, message);
    to_say_.clear();
  }

  const std::string run_id_;
  std::string address_;
  Mutex mutex_;
  CondVar news_;
  std::vector<Envelope> heard_ SLACKLINE_GUARDED_BY(mutex_);
  std::vector<Envelope> to_say_ SLACKLINE_GUARDED_BY(mutex_);
  uint64_t connection_ SLACKLINE_GUARDED_BY(mutex_) = 0;
  Status refusal_ SLACKLINE_GUARDED_BY(mutex_);
  bool refuse_heartbeat_ SLACKLINE_GUARDED_BY(mutex_) = false;
  bool ignore_registration_ SLACKLINE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<transport::ControlServer> server_;
  Thread thread_;  // Last: it uses the others.
};

}  // namespace slackline::server
