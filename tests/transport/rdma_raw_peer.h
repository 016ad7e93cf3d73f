// A shard that speaks the RDMA protocol by hand, verb by verb, so that tests can break it.
// Threading: owner thread.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transport/rdma/frame.h"
#include "transport/rdma/hello.h"
#include "transport/rdma/rail.h"
#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {

class RawPeer : private Handler {
 public:
  RawPeer();
  ~RawPeer() override;

  // "rdma://127.0.0.1:port"; serves one channel.
  const std::string& address() const { return address_; }
  void Poll();

  struct Message {
    Frame frame;
    proto::WireHeader header;
  };
  // What arrived with a wire header.
  const std::vector<Message>& messages() const { return messages_; }
  // A message of a frame and, for kMessage, a header.
  void Send(const Frame& frame, const proto::WireHeader& header = {});
  // Posts one access to the other end's memory, from or to `local()`.
  void Access(ibv_wr_opcode opcode, uint64_t address, uint32_t key, uint32_t bytes);
  // How the last access ended; nullopt: not yet.
  std::optional<ibv_wc_status> outcome() const { return outcome_; }
  MutableBytes local() { return memory_->bytes(); }
  // Closes the bootstrap connection.
  void Leave();

 private:
  void Connect(const Hello& theirs);
  void OnOpened(Channel& bootstrap) override { bootstrap_ = &bootstrap; }
  void OnClosed(Channel&, const Status&) override { bootstrap_ = nullptr; }
  Landing OnRequestArriving(Channel&, const proto::WireHeader&) override;
  void OnRequest(Channel& bootstrap, const proto::WireHeader& header, MutableBytes) override;

  static constexpr uint64_t kAccess = 7;  // Work request id.

  std::unique_ptr<TcpEndpoint> tcp_;
  Channel* bootstrap_ = nullptr;
  std::array<std::byte, kHelloBytes> hello_in_, hello_out_;
  std::unique_ptr<Rail> rail_;
  uint64_t region_bytes_ = 0;
  std::unique_ptr<Region> memory_;
  VerbsPtr<ibv_mr> registration_;
  uint32_t unit_ = 0, staged_ = 0;
  VerbsPtr<ibv_qp> pair_;
  std::string address_;
  std::vector<Message> messages_;
  std::optional<ibv_wc_status> outcome_;
};

}  // namespace slackline::transport
