// One TCP connection of an endpoint: frames of a 128-byte header and a payload, read straight into
// the memory that its handler names and written straight from the memory that its caller names.
//
// I/O is non-blocking sendmsg/recvmsg; Asio says when a socket that blocked is ready again. A read
// asks for at most the rest of the present payload and the next header, so that no byte of a
// payload ever arrives anywhere but where it belongs.
//
// A connector sends requests and reads replies, an acceptor the other way round; a message of the
// wrong direction is a protocol error.
//
// Files: tcp_channel.cc (life, requests, replies), tcp_channel_read.cc, tcp_channel_write.cc.
// Threading: owner thread: its endpoint's.
// Ownership: the endpoint's. A closed channel lives on, inert, until its pending Asio handlers ran.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/request_table.h"
#include "transport/tcp/handler_slot.h"
#include "transport/tcp/send_queue.h"
#include "transport/tcp/socket_io.h"
#include "transport/transport.h"

namespace slackline::transport {

class TcpEndpoint;

// Sockets with the context's own executor type: a type-erased one would allocate.
using TcpSocket =
    boost::asio::basic_stream_socket<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;

class TcpChannel final : public Channel {
 public:
  enum class Role : uint8_t { kConnector, kAcceptor };
  using SocketAddress = boost::asio::ip::tcp::endpoint;

  // `id` is unique within the endpoint.
  TcpChannel(TcpEndpoint& endpoint, Role role, uint64_t id, std::string peer);

  // ---- Channel ----
  Status Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) override;
  Status Reply(const proto::WireHeader& header, ConstBytes payload) override;
  Status SendTaken(uint64_t request_id) override;
  void ResumeReceiving() override;
  void Close() override;
  std::string_view peer() const override { return peer_; }
  uint64_t bytes_moved() const override;

  // This end's address without its port: the one that routes to the peer. Empty: not connected.
  std::string LocalHost() const;

  // ---- For the endpoint ----
  // Tries the addresses in turn until the deadline; reports OnOpened or OnClosed inside Poll().
  void StartConnecting(TimeNs deadline_ns, TimeNs timeout_ns);
  void ConnectTo(std::vector<SocketAddress> candidates);
  // Takes over an accepted socket. An error: the socket is of no use (its peer left already).
  Status Adopt(TcpSocket socket);

  // One pass of writing and reading, bounded in bytes and messages.
  void Service();
  // True: Service() may get something done without waiting for the reactor.
  bool hot() const;
  bool closed() const { return phase_ == Phase::kClosed; }
  bool open() const { return phase_ == Phase::kOpen; }
  uint64_t id() const { return id_; }

  // When this channel is given up if nothing happens; kNever if it may idle.
  TimeNs DeadlineNs() const;
  // What the passing of the deadline means.
  Status DeadlineStatus() const;

  // Fails the channel: fences its memory and reports OnClosed.
  void Fail(const Status& status);
  // Fences without a report.
  void Shut();

  // The endpoint's bookkeeping.
  bool listed = false;                           // In the endpoint's list of hot channels.
  size_t slot = 0;                               // Place among the endpoint's channels.
  uint32_t pending_waits = 0;                    // Asio handlers that refer to this channel.
  bool read_paced = false, write_paced = false;  // Until the endpoint's pacer has bytes again.

 private:
  enum class Phase : uint8_t { kConnecting, kOpen, kClosed };
  enum class Reading : uint8_t { kHeader, kPayload, kDrain, kPaused };

  // ---- tcp_channel.cc ----
  void TryNextCandidate();
  void OnConnected(int error);
  Status BecomeOpen();
  void CreateTables();
  // Logs (once a peer and minute), counts, and fails.
  void FailProtocol(const Status& status);

  // ---- tcp_channel_read.cc ----
  void ServiceReads();
  size_t ReadVectors(std::span<iovec> vectors, size_t budget_bytes, size_t* wanted_bytes);
  void ConsumeRead(size_t bytes);
  void ConsumeHeader();
  void OnRequestHeader();
  void AskForLanding();
  void OnReplyHeader();
  void FinishPayload();
  void WaitReadable();

  // ---- tcp_channel_write.cc ----
  void ServiceWrites();
  void ReportWritten();
  void WaitWritable();

  TcpEndpoint& endpoint_;
  const Role role_;
  const uint64_t id_;
  std::string peer_;  // "tcp://host:port"
  TcpSocket socket_;
  Phase phase_ = Phase::kConnecting;

  std::vector<SocketAddress> candidates_;
  size_t next_candidate_ = 0;
  std::string connect_error_;  // Of the last candidate.
  TimeNs connect_deadline_ns_ = kNever;
  TimeNs connect_timeout_ns_ = 0;
  TimeNs opened_ns_ = 0;

  // An acceptor gets its tables with the first valid header: strangers cost 128 bytes.
  std::unique_ptr<RequestTable> requests_;
  std::unique_ptr<SendQueue> queue_;

  // Reading. `header_` is the message whose payload is coming; the next header's bytes gather in
  // `header_bytes_` meanwhile.
  Reading reading_ = Reading::kHeader;
  std::array<std::byte, proto::kWireHeaderBytes> header_bytes_;
  size_t header_filled_ = 0;
  proto::WireHeader header_;
  MutableBytes landing_;       // Whole.
  size_t payload_filled_ = 0;  // Of header_.payload_bytes.
  TimeNs read_progress_ns_ = 0;
  uint64_t bytes_read_ = 0;

  uint32_t read_misses_ = 0;  // Reads in a row that would have blocked.
  bool read_waiting_ = false, write_waiting_ = false;
  HandlerSlot read_slot_, write_slot_;  // The connect operation uses write_slot_.
};

}  // namespace slackline::transport
