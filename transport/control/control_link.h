// One connection of the control plane, either end: reads frames, writes queued ones, within bounds.
//
// Threading: owner thread: the one that runs its io_context; callbacks run on it.
// Ownership: shared with its pending operations; close it to let it go.
// Errors: on_closed is called once, unless this end closed first. A bad frame is DataLoss or
// InvalidArgument, a peer that does not read or stops inside a frame ResourceExhausted or
// DeadlineExceeded, the rest Unavailable.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "transport/control/control_channel.h"
#include "transport/control/control_frame.h"

namespace slackline::transport {

// Bytes that wait for one peer. Above this it does not read and is closed.
inline constexpr size_t kMaxControlQueueBytes = size_t{kMaxControlBytes} + (32u << 20);
// An accepted connection must send its first frame within this.
inline constexpr TimeNs kControlFirstFrameNs = 10 * kNsPerSecond;
// A peer may pause between frames for ever, inside one only for this.
inline constexpr TimeNs kControlStallNs = 60 * kNsPerSecond;
// How long a closing connection may take to send what is queued.
inline constexpr TimeNs kControlLingerNs = kNsPerSecond;

class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  struct Callbacks {
    std::function<void(control::Envelope)> on_message;
    std::function<void(const Status&)> on_closed;
  };

  ControlLink(boost::asio::ip::tcp::socket socket, Callbacks callbacks);

  // Begins to read. `first_frame_ns`: the bound on the first frame, or kNever.
  Status Start(TimeNs first_frame_ns);
  // Queues a frame; nothing happens on a closed link.
  void Send(ControlFrame frame);
  // Delivers nothing more; closes once what is queued has been sent, at the latest after
  // kControlLingerNs. No callback follows but `on_gone`, when it is done.
  void CloseAfterSending(std::function<void()> on_gone = {});
  // Closes now. No callback follows.
  void CloseNow();
  bool open() const { return state_ == State::kOpen; }

 private:
  enum class State { kOpen, kLingering, kClosed };

  void ReadMagic();
  void ReadHeader();
  void ReadBody();
  void FinishBody();
  void Write();
  void SendEnd();
  // Fails the link with `status` after `bound_ns`, unless started anew or stopped before.
  void StartTimer(TimeNs bound_ns, Status (*status)());
  void StopTimer();
  void Fail(const Status& status);
  // True: reading ends here, since the link failed or is no longer open.
  bool ReadFailed(const boost::system::error_code& error);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  uint64_t timer_turn_ = 0;  // Tells a handler that was ready already that its timer was stopped.
  Callbacks callbacks_;
  std::function<void()> on_gone_;
  State state_ = State::kOpen;

  std::array<std::byte, kControlHeaderBytes> header_bytes_;
  ControlFrameHeader header_;
  std::string body_;  // Grows as bytes come, not as they are announced.
  size_t body_filled_ = 0;

  std::deque<ControlFrame> queue_;  // The front one is being written.
  size_t queued_bytes_ = 0;
  bool writing_ = false;
};

}  // namespace slackline::transport
