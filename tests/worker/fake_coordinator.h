// A coordinator whose answers are the test's: it can go away and come back, forget a worker, and
// say anything. For what the real one cannot be made to do at an exact moment.
// Threading: thread-safe; the test's thread starts and stops it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/thread.h"
#include "transport/control/control_channel.h"

namespace slackline::worker {

class FakeCoordinator {
 public:
  using Connection = transport::ControlServer::ConnectionId;

  FakeCoordinator() { Start(); }
  ~FakeCoordinator() { Stop(); }

  // Listens (again, on the same port).
  void Start() {
    transport::ControlServer::Callbacks callbacks;
    callbacks.on_opened = [](Connection, const std::string&) {};
    callbacks.on_message = [this](Connection from, const control::Envelope& message) {
      OnMessage(from, message);
    };
    callbacks.on_closed = [](Connection, const Status&) {};
    callbacks.on_tick = [] {};
    auto server = transport::ControlServer::Create(address_, kNsPerSecond / 100, callbacks);
    ASSERT_TRUE(server) << server.error();
    server_ = std::move(*server);
    address_ = server_->address();
    thread_ = Thread("coordinator", [this] { server_->Run(); });
  }
  // Cuts every connection and stops listening.
  void Stop() {
    if (!server_) return;
    server_->Stop();
    thread_.Join();
    server_.reset();
  }
  const std::string& address() const { return address_; }

  // What a message of this kind gets as an answer, instead of an Ack; nothing if it has no body.
  void SetAnswer(control::Envelope::BodyCase kind, const control::Envelope& answer) {
    MutexLock lock(mutex_);
    answers_.emplace_back(kind, answer);
  }
  // Sent along with the answer to DeclareModel.
  void SetStart(const control::View& view, const control::ShardMap& map) {
    MutexLock lock(mutex_);
    start_.resize(2);
    *start_[0].mutable_view() = view;
    *start_[1].mutable_shard_map() = map;
  }
  // Sent with the next heartbeat's answer.
  void Notify(const control::Envelope& notice) {
    MutexLock lock(mutex_);
    notices_.push_back(notice);
  }
  // Waits until the test's condition holds over all messages that came, or fails after a bound.
  using Messages = std::vector<control::Envelope>;
  void WaitFor(const std::function<bool(const Messages&)>& condition, const char* what) {
    constexpr TimeNs kBound = 20 * kNsPerSecond;
    const TimeNs deadline_ns = SteadyTimeSource().NowNs() + kBound;
    MutexLock lock(mutex_);
    while (!condition(messages_)) {
      const TimeNs left_ns = deadline_ns - SteadyTimeSource().NowNs();
      ASSERT_GT(left_ns, 0) << what;
      came_.WaitFor(lock, left_ns);
    }
  }
  Messages Received(control::Envelope::BodyCase kind) {
    MutexLock lock(mutex_);
    Messages some;
    for (const control::Envelope& message : messages_) {
      if (message.body_case() == kind) some.push_back(message);
    }
    return some;
  }
  static size_t Count(const Messages& messages, control::Envelope::BodyCase kind) {
    size_t count = 0;
    for (const control::Envelope& message : messages) count += message.body_case() == kind ? 1 : 0;
    return count;
  }

 private:
  void OnMessage(Connection from, const control::Envelope& message) {
    MutexLock lock(mutex_);
    messages_.push_back(message);
    control::Envelope answer;
    answer.mutable_ack();
    for (const auto& [kind, given] : answers_) {
      if (kind == message.body_case()) answer = given;
    }
    answer.set_answers(message.id());
    if (answer.body_case() != control::Envelope::BODY_NOT_SET) server_->Send(from, answer);
    if (message.has_declare_model()) {
      for (const control::Envelope& notice : start_) server_->Send(from, notice);
    }
    if (message.has_heartbeat()) {
      for (const control::Envelope& notice : notices_) server_->Send(from, notice);
      notices_.clear();
    }
    came_.NotifyAll();
  }

  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<transport::ControlServer> server_;
  Mutex mutex_;
  CondVar came_;
  std::vector<std::pair<control::Envelope::BodyCase, control::Envelope>> answers_;
  std::vector<control::Envelope> start_;
  std::vector<control::Envelope> notices_;
  Messages messages_;
  Thread thread_;
};

}  // namespace slackline::worker
