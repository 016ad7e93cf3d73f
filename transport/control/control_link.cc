#include "transport/control/control_link.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <span>
#include <utility>

#include "transport/socket_options.h"

namespace slackline::transport {
namespace {

namespace asio = boost::asio;

// A body's memory grows by this: an announced length alone claims no more.
constexpr size_t kBodyStepBytes = 256u << 10;

Status NoFirstFrame() {
  return DeadlineExceeded("it connected and sent no message within " +
                          std::to_string(kControlFirstFrameNs / kNsPerSecond) + " s");
}
Status Stalled() {
  return DeadlineExceeded("it stopped in the middle of a message for " +
                          std::to_string(kControlStallNs / kNsPerSecond) + " s");
}

}  // namespace

ControlLink::ControlLink(asio::ip::tcp::socket socket, Callbacks callbacks)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      callbacks_(std::move(callbacks)) {}

Status ControlLink::Start(TimeNs first_frame_ns) {
  SLACKLINE_RETURN_IF_ERROR(SetConnectedOptions(socket_.native_handle()));
  if (first_frame_ns != kNever) StartTimer(first_frame_ns, NoFirstFrame);
  ReadMagic();
  return OkStatus();
}

// ---- Reading ----

void ControlLink::ReadMagic() {
  asio::async_read(socket_, asio::buffer(header_bytes_.data(), kControlMagicBytes),
                   [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                     if (self->ReadFailed(error)) return;
                     const Status status = CheckControlMagic(
                         std::span(self->header_bytes_).first<kControlMagicBytes>());
                     if (!status.ok()) return self->Fail(status);
                     self->StartTimer(kControlStallNs, Stalled);
                     self->ReadHeader();
                   });
}

void ControlLink::ReadHeader() {
  asio::async_read(socket_,
                   asio::buffer(header_bytes_.data() + kControlMagicBytes,
                                kControlHeaderBytes - kControlMagicBytes),
                   [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                     if (self->ReadFailed(error)) return;
                     const Result<ControlFrameHeader> header =
                         ParseControlHeader(self->header_bytes_);
                     if (!header) return self->Fail(header.error());
                     self->header_ = *header;
                     self->body_filled_ = 0;
                     self->body_.clear();
                     self->ReadBody();
                   });
}

void ControlLink::ReadBody() {
  if (body_filled_ == header_.body_bytes) return FinishBody();
  body_.resize(std::min<size_t>(header_.body_bytes, body_filled_ + kBodyStepBytes));
  asio::async_read(
      socket_, asio::buffer(body_.data() + body_filled_, body_.size() - body_filled_),
      [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
        if (self->ReadFailed(error)) return;
        self->body_filled_ += bytes;
        self->StartTimer(kControlStallNs, Stalled);
        self->ReadBody();
      });
}

void ControlLink::FinishBody() {
  StopTimer();
  Result<control::Envelope> message = ParseControlBody(header_, body_);
  if (!message) return Fail(message.error());
  body_ = {};  // Large messages are rare; idle connections should not keep their memory.
  callbacks_.on_message(std::move(*message));
  if (state_ == State::kOpen) ReadMagic();
}

// ---- Writing ----

void ControlLink::Send(ControlFrame frame) {
  if (state_ != State::kOpen) return;
  queued_bytes_ += frame->size();
  queue_.push_back(std::move(frame));
  if (queued_bytes_ > kMaxControlQueueBytes) {
    // Reported from the event loop: the caller is in the middle of something.
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->Fail(ResourceExhausted("it does not read: more than " +
                                   std::to_string(kMaxControlQueueBytes) + " bytes wait for it"));
    });
    return;
  }
  if (!writing_) Write();
}

void ControlLink::Write() {
  writing_ = true;
  asio::async_write(socket_, asio::buffer(*queue_.front()),
                    [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                      self->writing_ = false;
                      if (self->state_ == State::kClosed) return;
                      if (error) return self->Fail(Unavailable(error.message()));
                      self->queued_bytes_ -= self->queue_.front()->size();
                      self->queue_.pop_front();
                      if (!self->queue_.empty()) return self->Write();
                      if (self->state_ == State::kLingering) self->SendEnd();
                    });
}

// ---- Closing ----

void ControlLink::CloseAfterSending(std::function<void()> on_gone) {
  if (state_ != State::kOpen) {
    if (on_gone) asio::post(socket_.get_executor(), std::move(on_gone));
    return;
  }
  state_ = State::kLingering;
  on_gone_ = std::move(on_gone);
  // Its status reaches nobody: a lingering link reports no failure.
  StartTimer(kControlLingerNs, Stalled);
  if (queue_.empty()) SendEnd();
}

void ControlLink::SendEnd() {
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  // Bytes that nobody read would turn the close into a reset, and the peer could lose what was just
  // sent: read on and throw away until the peer's end of stream, or the timer, ends this.
  socket_.cancel(ignored);
  body_.resize(kBodyStepBytes);
  socket_.async_read_some(asio::buffer(body_), [self = shared_from_this()](
                                                   const boost::system::error_code& error, size_t) {
    if (self->state_ == State::kClosed) return;
    if (error) return self->CloseNow();
    self->SendEnd();
  });
}

void ControlLink::CloseNow() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  boost::system::error_code ignored;
  socket_.close(ignored);
  StopTimer();
  queue_.clear();
  queued_bytes_ = 0;
  if (on_gone_) asio::post(socket_.get_executor(), std::exchange(on_gone_, {}));
}

void ControlLink::Fail(const Status& status) {
  const bool report = state_ == State::kOpen;
  CloseNow();
  if (report) callbacks_.on_closed(status);
}

bool ControlLink::ReadFailed(const boost::system::error_code& error) {
  if (state_ != State::kOpen) return true;
  if (!error) return false;
  Fail(Unavailable(error == asio::error::eof ? "the other end closed the connection"
                                             : error.message()));
  return true;
}

void ControlLink::StartTimer(TimeNs bound_ns, Status (*status)()) {
  const uint64_t turn = ++timer_turn_;
  timer_.expires_after(std::chrono::nanoseconds(bound_ns));
  timer_.async_wait(
      [self = shared_from_this(), turn, status](const boost::system::error_code& error) {
        if (!error && turn == self->timer_turn_) self->Fail(status());
      });
}

void ControlLink::StopTimer() {
  ++timer_turn_;
  timer_.cancel();
}

}  // namespace slackline::transport
