// The control plane's connections: length-prefixed, checksummed protobuf Envelopes over TCP
// (Boost.Asio). The coordinator runs a ControlServer, everyone else a ControlClient.
//
// Frame: magic u32, body bytes u32 (<= kMaxControlBytes), XXH3-64 of the body, body. A peer that
// sends anything else is logged once, answered with nothing and closed; the others do not notice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/time_source.h"
#include "proto/control.pb.h"

namespace slackline::transport {

inline constexpr uint32_t kControlProtocolVersion = 1;
inline constexpr uint32_t kMaxControlBytes = 64u << 20;
inline constexpr size_t kMaxControlConnections = 4096;

// The coordinator's end.
// Threading: owner thread: the one that calls Run(); callbacks run on it. Stop() is thread-safe.
class ControlServer {
 public:
  using ConnectionId = uint64_t;  // Never reused within a process.
  struct Callbacks {
    std::function<void(ConnectionId, const std::string& peer)> on_opened;
    std::function<void(ConnectionId, const control::Envelope&)> on_message;
    std::function<void(ConnectionId, const Status&)> on_closed;
    std::function<void()> on_tick;
  };
  // Listens at "host:port" (port 0: a free one). AlreadyExists: the port is in use (says which).
  static Result<std::unique_ptr<ControlServer>> Create(std::string_view address,
                                                       TimeNs tick_interval_ns,
                                                       Callbacks callbacks);
  virtual ~ControlServer() = default;
  virtual std::string address() const = 0;  // With the port that was taken.
  // Queues a message; one to a connection that is gone is dropped. A connection whose queue exceeds
  // its bound (a peer that does not read) is closed.
  virtual void Send(ConnectionId connection, const control::Envelope& message) = 0;
  // Closes after what is queued has been sent (for at most a second).
  virtual void Close(ConnectionId connection) = 0;
  virtual void Run() = 0;
  virtual void Stop() = 0;
};

// A server's or worker's end: one connection, its own thread, reconnects with backoff for ever
// (callers bound their waits).
// Threading: thread-safe. Callbacks run on the client's thread and must not block; they must not
// call Call().
class ControlClient {
 public:
  struct Options {
    std::string address;                            // host:port of the coordinator.
    TimeNs connect_timeout_ns = 15 * kNsPerSecond;  // The first connection; Create fails after it.
    TimeNs backoff_min_ns = 50 * kNsPerMs;
    TimeNs backoff_max_ns = 2 * kNsPerSecond;
  };
  struct Callbacks {
    // A message that answers no call.
    std::function<void(const control::Envelope&)> on_notice;
    // Connected again after a loss: registration must be repeated (with Notify or CallAsync).
    std::function<void()> on_reconnected;
    std::function<void(const Status&)> on_lost;
  };
  // Unavailable after the timeout: "cannot reach the coordinator at host:port after 15 s: reason".
  static Result<std::unique_ptr<ControlClient>> Create(const Options& options, Callbacks callbacks);
  virtual ~ControlClient() = default;  // Joins the thread.

  // Sends and waits for the answer. An Error answer becomes its Status. DeadlineExceeded after
  // `timeout_ns`; Unavailable if the connection broke meanwhile.
  virtual Result<control::Envelope> Call(control::Envelope request, TimeNs timeout_ns) = 0;
  // The same without waiting; `done` runs on the client's thread.
  virtual void CallAsync(control::Envelope request, TimeNs timeout_ns,
                         std::function<void(Result<control::Envelope>)> done) = 0;
  // Sends a message that wants no answer. Unavailable while there is no connection.
  virtual Status Notify(const control::Envelope& message) = 0;
  virtual bool connected() const = 0;
};

}  // namespace slackline::transport
