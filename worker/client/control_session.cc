#include "worker/client/control_session.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>

namespace slackline::worker {

namespace {

// Between questions that were answered with "not now".
constexpr TimeNs kRetryPauseNs = 200 * kNsPerMs;
// A second question while one waits: what does the coordinator wait for?
constexpr TimeNs kStatusTimeoutNs = 2 * kNsPerSecond;
constexpr TimeNs kLastReportsTimeoutNs = 3 * kNsPerSecond;
constexpr TimeNs kGoodbyeTimeoutNs = 2 * kNsPerSecond;
constexpr int64_t kDefaultHeartbeatMs = 1000;  // If the coordinator names none.

std::string NewInstance() {
  std::random_device device;
  char text[48];
  std::snprintf(text, sizeof text, "%ld-%08x%08x", static_cast<long>(getpid()), device(), device());
  return text;
}

std::string HostName() {
  char name[256] = "";
  // A name that is cut off is still a name.
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

// Why one slice of connecting failed, without its own "cannot reach ... after 5 s: ".
std::string SliceReason(const Status& status) {
  static constexpr std::string_view kAfter = " s: ";
  const std::string& message = status.message();
  const size_t after = message.find(kAfter);
  return after == std::string::npos ? message : message.substr(after + kAfter.size());
}

bool WorthRetrying(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded;
}

}  // namespace

ControlSession::ControlSession(Options options)
    : options_(std::move(options)), instance_(NewInstance()) {}

ControlSession::~ControlSession() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    Changed();
  }
  heartbeats_.Join();
  client_.reset();  // Before anything that its callbacks touch.
}

Result<std::unique_ptr<ControlSession>> ControlSession::Open(Options options) {
  std::unique_ptr<ControlSession> session(new ControlSession(std::move(options)));
  SLACKLINE_RETURN_ERR_IF_ERROR(session->ConnectAndRegister());
  return session;
}

Status ControlSession::ConnectAndRegister() {
  SLACKLINE_RETURN_IF_ERROR(Connect(time_.NowNs() + options_.connect_timeout_ns));
  {
    MutexLock lock(mutex_);
    joined_ = true;  // The registration itself may be asked.
  }
  // Unavailable: the place belongs to a process that may be dead; its lease decides.
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      const control::Envelope answer,
      AskUntil(Registration(), time_.NowNs() + options_.start_timeout_ns,
               "the coordinator to accept this worker", /*even_after_end=*/false));
  if (!answer.has_registered()) {
    return Internal("the coordinator answered a registration with something else");
  }
  {
    MutexLock lock(mutex_);
    registered_ = answer.registered();
    if (registered_.heartbeat_ms() <= 0) registered_.set_heartbeat_ms(kDefaultHeartbeatMs);
    has_registered_ = true;
    Changed();
  }
  heartbeats_ = Thread("client-control", [this] { RunHeartbeats(); });
  return OkStatus();
}

// In slices, so that a coordinator that is not there is named within seconds.
Status ControlSession::Connect(TimeNs deadline_ns) {
  const TimeNs started_ns = time_.NowNs();
  transport::ControlClient::Callbacks callbacks;
  callbacks.on_notice = [this](const control::Envelope& notice) { OnNotice(notice); };
  callbacks.on_lost = [this](const Status&) {
    MutexLock lock(mutex_);
    joined_ = false;
    absent_since_ = time_.NowNs();
  };
  callbacks.on_reconnected = [this] {
    MutexLock lock(mutex_);
    absent_since_ = kNever;
    // Before the first registration there is nothing to repeat: whoever asks, asks again.
    (has_registered_ ? register_again_ : joined_) = true;
    Changed();
  };
  transport::ControlClient::Options options;
  options.address = options_.coordinator;
  for (;;) {
    const TimeNs left_ns = deadline_ns - time_.NowNs();
    options.connect_timeout_ns = std::clamp<TimeNs>(left_ns, 1, options_.report_ns);
    auto client = transport::ControlClient::Create(options, callbacks);
    if (client) {
      client_ = std::move(*client);
      return OkStatus();
    }
    const bool retry = client.error().code() == StatusCode::kUnavailable;
    if (!retry) return client.error();
    if (time_.NowNs() >= deadline_ns) {
      return Unavailable(
          "cannot reach the coordinator at " + options_.coordinator + " after " +
          std::to_string((time_.NowNs() - started_ns) / kNsPerSecond) +
          " s (is it running, and is --coordinator right?): " + SliceReason(client.error()));
    }
    SayWaiting("the coordinator at " + options_.coordinator + " (" + SliceReason(client.error()) +
               ")");
  }
}

control::Envelope ControlSession::Registration() const {
  control::Envelope envelope;
  control::RegisterWorker& worker = *envelope.mutable_register_worker();
  worker.set_protocol_version(transport::kControlProtocolVersion);
  worker.set_host(HostName());
  worker.set_pid(getpid());
  worker.set_wanted_rank(options_.wanted_rank);
  *worker.mutable_job() = options_.job;
  worker.set_instance(instance_);
  return envelope;
}

Result<ControlSession::Start> ControlSession::DeclareAndWait(const control::DeclareModel& model) {
  const TimeNs deadline_ns = time_.NowNs() + options_.start_timeout_ns;
  control::Envelope declaration;
  *declaration.mutable_declare_model() = model;
  SLACKLINE_ASSIGN_OR_RETURN(
      [[maybe_unused]] const control::Envelope answer,
      AskUntil(declaration, deadline_ns, "the coordinator to accept the model",
               /*even_after_end=*/false));
  Wait wait{.deadline_ns = deadline_ns,
            .next_report_ns = time_.NowNs() + options_.report_ns,
            .what = "the start: " + std::to_string(registered_.expected_servers()) +
                    " servers and " + std::to_string(registered_.expected_workers()) + " workers",
            .ask_coordinator = true};
  for (;;) {
    uint64_t seen = 0;
    {
      MutexLock lock(mutex_);
      if (member_ && map_) {
        started_ = true;
        return Start{*map_, first_clock_};
      }
      seen = changes_;
    }
    SLACKLINE_RETURN_ERR_IF_ERROR(WaitForChange(seen, &wait));
  }
}

Result<control::Envelope> ControlSession::Ask(const control::Envelope& request, TimeNs timeout_ns,
                                              const std::string& what) {
  // Saturating: "for ever" is a timeout, too.
  const TimeNs now_ns = time_.NowNs();
  const TimeNs deadline_ns = timeout_ns > kNever - now_ns ? kNever : now_ns + timeout_ns;
  return AskUntil(request, deadline_ns, what, /*even_after_end=*/false);
}

Result<control::Envelope> ControlSession::AskUntil(const control::Envelope& request,
                                                   TimeNs deadline_ns, const std::string& what,
                                                   bool even_after_end) {
  Wait wait{.deadline_ns = deadline_ns,
            .next_report_ns = time_.NowNs() + options_.report_ns,
            .what = what,
            .even_after_end = even_after_end};
  for (;;) {
    uint64_t seen = 0;
    bool joined = false;
    {
      MutexLock lock(mutex_);
      seen = changes_;
      joined = joined_;
    }
    if (!joined) {
      SLACKLINE_RETURN_ERR_IF_ERROR(WaitForChange(seen, &wait));
      continue;
    }
    Result<control::Envelope> answer = AskOnce(request, &wait);
    if (answer || !WorthRetrying(answer.error().code()) || time_.NowNs() >= deadline_ns) {
      return answer;
    }
    wait.not_now = " (" + answer.error().message() + ")";
    // The coordinator said "not now", or the connection broke: it may take a moment to notice.
    Wait pause{.deadline_ns = std::min(deadline_ns, time_.NowNs() + kRetryPauseNs),
               .what = what,
               .even_after_end = even_after_end};
    while (WaitForChange(UINT64_MAX, &pause).ok()) {
    }
    SLACKLINE_RETURN_ERR_IF_ERROR(even_after_end ? OkStatus() : end_status());
  }
}

Result<control::Envelope> ControlSession::AskOnce(const control::Envelope& request, Wait* wait) {
  auto pending = std::make_shared<Pending>();
  const TimeNs left_ns = std::max<TimeNs>(1, wait->deadline_ns - time_.NowNs());
  client_->CallAsync(request, left_ns, [this, pending](Result<control::Envelope> answer) {
    MutexLock lock(mutex_);
    pending->answer = std::move(answer);
    pending->done = true;
    Changed();
  });
  for (;;) {
    uint64_t seen = 0;
    {
      MutexLock lock(mutex_);
      if (pending->done) return std::move(pending->answer);
      seen = changes_;
    }
    SLACKLINE_RETURN_ERR_IF_ERROR(WaitForChange(seen, wait));
  }
}

// Returns when something changed since `seen`, or after a line about the wait. An error: the end,
// or the wait's deadline.
Status ControlSession::WaitForChange(uint64_t seen, Wait* wait) {
  {
    MutexLock lock(mutex_);
    for (;;) {
      if (!wait->even_after_end && !end_.ok()) return end_;
      if (changes_ != seen && seen != UINT64_MAX) return OkStatus();
      const TimeNs now_ns = time_.NowNs();
      if (now_ns >= wait->deadline_ns) {
        return DeadlineExceeded("gave up waiting for " + wait->what);
      }
      if (now_ns >= wait->next_report_ns) break;
      waiting_for_ = wait->what;
      changed_.WaitFor(lock, std::min(wait->deadline_ns, wait->next_report_ns) - now_ns);
      waiting_for_.clear();
    }
  }
  wait->next_report_ns = time_.NowNs() + options_.report_ns;
  std::string line = wait->what + wait->not_now;
  if (wait->ask_coordinator) line += WhatTheCoordinatorWaitsFor();
  if (!client_->connected()) line += " (the coordinator is not reachable now)";
  SayWaiting(line);
  return OkStatus();
}

void ControlSession::SayWaiting(const std::string& what) {
  if (options_.on_wait) options_.on_wait("waiting for " + what);
}

// " (the coordinator waits for: server 1)", from its status page; empty if that does not say.
std::string ControlSession::WhatTheCoordinatorWaitsFor() {
  control::Envelope request;
  request.mutable_status_request();
  const Result<control::Envelope> answer = client_->Call(request, kStatusTimeoutNs);
  if (!answer || !answer->has_status_page()) return "";
  // Without exceptions: a page that does not parse is discarded.
  const auto page = nlohmann::json::parse(answer->status_page().json(), nullptr, false);
  if (!page.is_object() || !page.contains("waiting_for")) return "";
  const auto& waiting = page["waiting_for"];
  std::string list;
  if (waiting.is_string()) list = waiting.get<std::string>();
  if (waiting.is_array()) {
    for (const auto& item : waiting) {
      if (!item.is_string()) continue;
      if (!list.empty()) list += ", ";
      list += item.get<std::string>();
    }
  }
  return list.empty() ? "" : " (the coordinator waits for: " + list + ")";
}

Status ControlSession::Leave(bool done, const std::string& reason) {
  const TimeNs deadline_ns = time_.NowNs() + kLastReportsTimeoutNs;
  // Reports first: after the goodbye nobody listens. Without them the goodbye still counts.
  Wait wait{.deadline_ns = deadline_ns, .what = "the last reports", .even_after_end = true};
  for (;;) {
    uint64_t seen = 0;
    {
      MutexLock lock(mutex_);
      leaving_ = true;
      if (reports_.empty()) break;
      beat_now_ = true;
      seen = changes_;
      changed_.NotifyAll();
    }
    if (!WaitForChange(seen, &wait).ok()) break;
  }
  control::Envelope goodbye;
  goodbye.mutable_leave()->set_done(done);
  goodbye.mutable_leave()->set_reason(reason);
  const Result<control::Envelope> answer =
      AskUntil(goodbye, time_.NowNs() + kGoodbyeTimeoutNs, "the coordinator to take the goodbye",
               /*even_after_end=*/true);
  {
    MutexLock lock(mutex_);
    stop_ = true;  // No heartbeat of one who has left.
    Changed();
  }
  return answer ? OkStatus() : answer.error();
}

bool ControlSession::lowest_live_rank() const {
  MutexLock lock(mutex_);
  if (!view_) return registered_.id() == 0;
  return std::ranges::none_of(view_->members(), [this](const control::Member& member) {
    return member.worker() < registered_.id();
  });
}

void ControlSession::End(const Status& status) {
  {
    MutexLock lock(mutex_);
    if (!end_.ok()) return;
    end_ = status;
    Changed();
  }
  if (options_.on_ended) options_.on_ended(status);
}

Status ControlSession::end_status() const {
  MutexLock lock(mutex_);
  return end_;
}

bool ControlSession::Pause(TimeNs duration_ns) {
  Wait wait{.deadline_ns = time_.NowNs() + duration_ns, .what = "a pause"};
  return WaitForChange(UINT64_MAX, &wait).code() == StatusCode::kDeadlineExceeded;
}

}  // namespace slackline::worker
