#include <algorithm>
#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>

#include "common/mutex.h"
#include "common/random.h"
#include "common/thread.h"
#include "transport/address.h"
#include "transport/control/control_channel.h"
#include "transport/control/control_link.h"

namespace slackline::transport {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

// Calls without an answer yet. Far more than a process has threads that call.
constexpr size_t kMaxOpenCalls = 1024;
// One try to connect, so that a silent host does not use up the whole start-up time.
constexpr TimeNs kAttemptNs = 5 * kNsPerSecond;

Status StatusOf(const control::Error& error) {
  const bool known =
      error.code() > 0 && error.code() <= uint32_t{static_cast<uint8_t>(StatusCode::kInternal)};
  return {known ? static_cast<StatusCode>(error.code()) : StatusCode::kInternal, error.message()};
}

class ControlClientImpl final : public ControlClient {
 public:
  ControlClientImpl(Options options, Address address, Callbacks callbacks)
      : options_(std::move(options)),
        address_(std::move(address)),
        callbacks_(std::move(callbacks)),
        // Only spreads reconnects over time; nothing depends on its values.
        rng_(std::random_device{}()),
        work_(io_.get_executor()),
        resolver_(io_),
        socket_(io_),
        retry_timer_(io_),
        attempt_timer_(io_),
        backoff_ns_(options_.backoff_min_ns) {}
  ~ControlClientImpl() override;

  // Starts the thread and waits for the first connection.
  Status Start() SLACKLINE_EXCLUDES(mutex_);

  Result<control::Envelope> Call(control::Envelope request, TimeNs timeout_ns) override;
  void CallAsync(control::Envelope request, TimeNs timeout_ns,
                 std::function<void(Result<control::Envelope>)> done) override;
  Status Notify(const control::Envelope& message) override;
  bool connected() const override { return connected_.load(); }

 private:
  using Done = std::function<void(Result<control::Envelope>)>;
  struct OpenCall {
    Done done;
    std::unique_ptr<asio::steady_timer> timer;
  };

  // All on the client's thread.
  void Connect();
  void ConnectTo(const Tcp::resolver::results_type& entries);
  void OnConnected();
  void RetryAfter(const std::string& reason);
  void OnMessage(control::Envelope message);
  void OnLost(const Status& status);
  void BeginCall(uint64_t id, ControlFrame frame, TimeNs timeout_ns, Done done);
  void EndCall(uint64_t id, Result<control::Envelope> result);
  void EndAllCalls(const Status& status);

  const Options options_;
  const Address address_;
  const Callbacks callbacks_;
  Rng rng_;

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Tcp::resolver resolver_;
  Tcp::socket socket_;  // While connecting; the link's afterwards.
  asio::steady_timer retry_timer_, attempt_timer_;
  TimeNs backoff_ns_;
  uint64_t attempt_ = 0;  // Tells late handlers of a given-up attempt from those of the present.
  bool connected_before_ = false;
  std::shared_ptr<ControlLink> link_;
  std::unordered_map<uint64_t, OpenCall> calls_;

  std::atomic<bool> connected_{false};
  std::atomic<uint64_t> next_id_{1};

  Mutex mutex_;
  CondVar first_connection_;
  bool first_connected_ SLACKLINE_GUARDED_BY(mutex_) = false;
  std::string last_reason_ SLACKLINE_GUARDED_BY(mutex_) = "no answer";

  Thread thread_;  // Last: it uses everything above.
};

// ---- Life ----

Status ControlClientImpl::Start() {
  thread_ = Thread("control", [this] {
    Connect();
    io_.run();
  });
  const SteadyTimeSource time;
  const TimeNs deadline_ns = time.NowNs() + options_.connect_timeout_ns;
  MutexLock lock(mutex_);
  while (!first_connected_) {
    const TimeNs left_ns = deadline_ns - time.NowNs();
    if (left_ns <= 0) {
      return Unavailable(
          "cannot reach the coordinator at " + address_.ToString() + " after " +
          std::to_string((options_.connect_timeout_ns + kNsPerSecond / 2) / kNsPerSecond) +
          " s: " + last_reason_);
    }
    (void)first_connection_.WaitFor(lock, left_ns);
  }
  return OkStatus();
}

ControlClientImpl::~ControlClientImpl() {
  asio::post(io_, [this] {
    resolver_.cancel();
    EndAllCalls(Aborted("the control client was closed"));
    // What was sent just before (a goodbye) still leaves, for at most kControlLingerNs.
    if (link_ && link_->open()) {
      link_->CloseAfterSending([this] { io_.stop(); });
    } else {
      io_.stop();
    }
  });
  thread_.Join();
  if (link_) link_->CloseNow();
}

// ---- Connecting ----

void ControlClientImpl::Connect() {
  const uint64_t attempt = ++attempt_;
  attempt_timer_.expires_after(std::chrono::nanoseconds(kAttemptNs));
  attempt_timer_.async_wait([this, attempt](const boost::system::error_code& error) {
    if (!error && attempt == attempt_) RetryAfter("no answer");
  });
  resolver_.async_resolve(address_.host, std::to_string(address_.port),
                          [this, attempt](const boost::system::error_code& error,
                                          const Tcp::resolver::results_type& entries) {
                            if (attempt != attempt_) return;
                            if (error) return RetryAfter(error.message());
                            ConnectTo(entries);
                          });
}

void ControlClientImpl::ConnectTo(const Tcp::resolver::results_type& entries) {
  socket_ = Tcp::socket(io_);
  asio::async_connect(
      socket_, entries,
      [this, attempt = attempt_](const boost::system::error_code& error, const Tcp::endpoint&) {
        if (attempt != attempt_) return;
        if (error) return RetryAfter(error.message());
        OnConnected();
      });
}

void ControlClientImpl::RetryAfter(const std::string& reason) {
  ++attempt_;
  boost::system::error_code ignored;
  socket_.close(ignored);
  attempt_timer_.cancel();
  {
    MutexLock lock(mutex_);
    last_reason_ = reason;
  }
  // Full jitter over the upper half, so that a fleet does not return in one wave.
  const double factor = 0.5 + 0.5 * rng_.Uniform();
  const auto wait_ns = static_cast<TimeNs>(static_cast<double>(backoff_ns_) * factor);
  backoff_ns_ = std::min(2 * backoff_ns_, options_.backoff_max_ns);
  retry_timer_.expires_after(std::chrono::nanoseconds(wait_ns));
  retry_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Connect();
  });
}

void ControlClientImpl::OnConnected() {
  ++attempt_;
  attempt_timer_.cancel();
  boost::system::error_code ignored;
  // A connect to a free port of this machine can meet itself (TCP's simultaneous open).
  if (socket_.local_endpoint(ignored) == socket_.remote_endpoint(ignored)) {
    return RetryAfter("nobody listens there");
  }
  link_ = std::make_shared<ControlLink>(
      std::move(socket_),
      ControlLink::Callbacks{
          .on_message = [this](control::Envelope message) { OnMessage(std::move(message)); },
          .on_closed = [this](const Status& status) { OnLost(status); }});
  if (const Status status = link_->Start(kNever); !status.ok()) {
    link_->CloseNow();
    return RetryAfter(status.message());
  }
  backoff_ns_ = options_.backoff_min_ns;
  connected_.store(true);
  if (connected_before_) {
    if (callbacks_.on_reconnected) callbacks_.on_reconnected();
    return;
  }
  connected_before_ = true;
  MutexLock lock(mutex_);
  first_connected_ = true;
  first_connection_.NotifyAll();
}

void ControlClientImpl::OnLost(const Status& status) {
  connected_.store(false);
  EndAllCalls(Unavailable("the connection to the coordinator at " + address_.ToString() +
                          " broke: " + status.message()));
  if (callbacks_.on_lost) callbacks_.on_lost(status);
  RetryAfter(status.message());
}

// ---- Messages ----

void ControlClientImpl::OnMessage(control::Envelope message) {
  if (message.answers() == 0) {
    if (callbacks_.on_notice) callbacks_.on_notice(message);
    return;
  }
  if (message.has_error()) {
    EndCall(message.answers(), Err(StatusOf(message.error())));
  } else {
    const uint64_t id = message.answers();
    EndCall(id, std::move(message));
  }
}

Result<control::Envelope> ControlClientImpl::Call(control::Envelope request, TimeNs timeout_ns) {
  struct Waiting {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<control::Envelope>> result SLACKLINE_GUARDED_BY(mutex);
  };
  // Shared: the callback may still be inside NotifyAll when this function returns.
  auto waiting = std::make_shared<Waiting>();
  CallAsync(std::move(request), timeout_ns, [waiting](Result<control::Envelope> result) {
    MutexLock lock(waiting->mutex);
    waiting->result = std::move(result);
    waiting->changed.NotifyAll();
  });
  MutexLock lock(waiting->mutex);
  // Bounded: CallAsync ends every call, at the latest by its timeout.
  while (!waiting->result) waiting->changed.Wait(lock);
  return std::move(*waiting->result);
}

void ControlClientImpl::CallAsync(control::Envelope request, TimeNs timeout_ns, Done done) {
  const uint64_t id = next_id_.fetch_add(1);
  request.set_id(id);
  Result<ControlFrame> frame = EncodeControlFrame(request);
  asio::dispatch(
      io_, [this, id, frame = std::move(frame), timeout_ns, done = std::move(done)]() mutable {
        if (!frame) return done(Err(std::move(frame).error()));
        BeginCall(id, std::move(*frame), timeout_ns, std::move(done));
      });
}

void ControlClientImpl::BeginCall(uint64_t id, ControlFrame frame, TimeNs timeout_ns, Done done) {
  if (!link_ || !link_->open()) {
    return done(
        Err(Unavailable("there is no connection to the coordinator at " + address_.ToString())));
  }
  if (calls_.size() == kMaxOpenCalls) {
    return done(Err(
        ResourceExhausted(std::to_string(kMaxOpenCalls) + " calls to the coordinator are open")));
  }
  auto timer = std::make_unique<asio::steady_timer>(io_);
  timer->expires_after(std::chrono::nanoseconds(timeout_ns));
  timer->async_wait([this, id, timeout_ns](const boost::system::error_code& error) {
    if (error) return;
    EndCall(id, Err(DeadlineExceeded("the coordinator at " + address_.ToString() +
                                     " did not answer within " +
                                     std::to_string(timeout_ns / kNsPerMs) + " ms")));
  });
  calls_.emplace(id, OpenCall{.done = std::move(done), .timer = std::move(timer)});
  link_->Send(std::move(frame));
}

void ControlClientImpl::EndCall(uint64_t id, Result<control::Envelope> result) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;  // Its timeout passed before the answer came.
  const Done done = std::move(found->second.done);
  calls_.erase(found);
  done(std::move(result));
}

void ControlClientImpl::EndAllCalls(const Status& status) {
  // Taken out first: a callback may begin the next call.
  std::unordered_map<uint64_t, OpenCall> calls = std::exchange(calls_, {});
  for (auto& [id, call] : calls) call.done(Err(status));
}

Status ControlClientImpl::Notify(const control::Envelope& message) {
  if (!connected_.load()) {
    return Unavailable("there is no connection to the coordinator at " + address_.ToString());
  }
  Result<ControlFrame> frame = EncodeControlFrame(message);
  if (!frame) return std::move(frame).error();
  asio::dispatch(io_, [this, frame = std::move(*frame)]() mutable {
    if (link_) link_->Send(std::move(frame));
  });
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ControlClient>> ControlClient::Create(const Options& options,
                                                             Callbacks callbacks) {
  SLACKLINE_ASSIGN_OR_RETURN(Address address, ParseHostPort(options.address));
  if (address.port == 0) {
    return Err(InvalidArgument("the coordinator's address " + options.address + " has port 0"));
  }
  const bool backoff_ok =
      options.backoff_min_ns > 0 && options.backoff_max_ns >= options.backoff_min_ns;
  if (!backoff_ok) return Err(InvalidArgument("the backoff bounds are not 0 < min <= max"));
  auto client =
      std::make_unique<ControlClientImpl>(options, std::move(address), std::move(callbacks));
  SLACKLINE_RETURN_ERR_IF_ERROR(client->Start());
  return std::unique_ptr<ControlClient>(std::move(client));
}

}  // namespace slackline::transport
