// One RC queue pair of an endpoint, and the bootstrap connection that set it up and stays open
// beside it as the sign of life of the peer's process.
//
// A message is one SEND: a frame, the wire header and, up to the eager bound, the payload. A larger
// payload of a request stays where it is, and the shard READs it when it has a place for it; a
// larger payload of a reply is WRITTEN into the landing that the request granted, in the same
// doorbell list as the SEND that announces it. A message leaves only against a credit: a receive
// buffer that is known to be free.
//
// Everything is posted by Service(), inside Poll, in one list; Send and Reply only queue.
//
// Files: rdma_channel.cc (life, requests, replies), rdma_channel_connect.cc (agreement with the
// peer), rdma_channel_post.cc (posting, completions of sends), rdma_channel_receive.cc (arrivals).
// Threading: owner thread: its endpoint's.
// Ownership: the endpoint's. A closed channel lives on, inert, until the end of the Poll.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/rdma/frame.h"
#include "transport/rdma/hello.h"
#include "transport/rdma/rail.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/ring.h"
#include "transport/rdma/windows.h"
#include "transport/rdma/work_list.h"
#include "transport/request_table.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/transport.h"

namespace slackline::transport {

class RdmaEndpoint;

class RdmaChannel final : public Channel {
 public:
  enum class Role : uint8_t { kConnector, kAcceptor };

  // `id` is unique within the endpoint. `bootstrap` is the connection under way or accepted.
  RdmaChannel(RdmaEndpoint& endpoint, Role role, uint32_t id, std::string peer,
              TcpChannel* bootstrap, TimeNs deadline_ns);

  // ---- Channel ----
  Status Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) override;
  Status Reply(const proto::WireHeader& header, ConstBytes payload) override;
  Status SendTaken(uint64_t request_id) override;
  void ResumeReceiving() override;
  void Close() override;
  std::string_view peer() const override { return peer_; }

  // ---- For the endpoint: set-up, see rdma_channel_connect.cc ----
  // The connector's bootstrap is connected: says hello.
  void SayHello();
  // Where the peer's hello, or its answer, goes.
  static constexpr size_t kMaxHelloBytes = 2 * kHelloBytes;  // Another version's may be larger.
  MutableBytes HelloLanding(uint32_t bytes) { return MutableBytes(hello_in_).first(bytes); }
  // The acceptor: agrees or refuses, and answers.
  void OnHello(const proto::WireHeader& header, ConstBytes bytes);
  // The connector: the answer.
  void OnHelloAnswer(const proto::WireHeader& header, ConstBytes bytes);
  void OnBootstrapClosed(const Status& status);

  // ---- For the endpoint: work ----
  void OnReceived(uint32_t buffer, uint32_t bytes);
  // All work requests up to number `end` are done.
  void OnPosted(uint32_t end);
  void OnCompletionError(const ibv_wc& completion);
  void Service();
  // True: Service() can get something done.
  bool hot() const;

  bool closed() const { return phase_ == Phase::kClosed; }
  bool open() const { return phase_ == Phase::kOpen; }
  bool half_open() const { return role_ == Role::kAcceptor && phase_ < Phase::kOpen; }
  uint32_t id() const { return id_; }
  const Rail* rail() const { return rail_; }
  uint32_t queue_pair_number() const { return pair_ ? pair_->qp_num : 0; }
  bool Grants(const ibv_mr* region) const { return windows_ && windows_->Holds(region); }

  // When set-up is given up; kNever once it is open.
  TimeNs DeadlineNs() const { return phase_ < Phase::kOpen ? deadline_ns_ : kNever; }
  void OnDeadline();
  // Fails the channel: fences its memory and reports OnClosed, if it was ever told of.
  void Fail(const Status& status);
  // Fences now, fails in the next Poll: for places where no callback may run.
  void FailLater(const Status& status);
  // Fences without a report.
  void Shut();

  // The endpoint's bookkeeping.
  bool listed = false;         // In the endpoint's list of hot channels.
  bool reads_waiting = false;  // In its list of channels that wait for a READ's turn.
  size_t slot = 0;             // Place among the endpoint's channels.

 private:
  // In order: everything before kOpen is set-up.
  enum class Phase : uint8_t {
    kConnecting,  // The bootstrap connection.
    kGreeting,    // Hello is to come or unanswered.
    kRefused,     // The acceptor said no; the connector is to close.
    kProving,     // Queue pairs are up; the first message of each end shows that the path works.
    kOpen,
    kBroken,  // Fenced; the report follows.
    kClosed,
  };
  // A message to be sent.
  struct Outgoing {
    proto::WireHeader header;
    ConstBytes payload;
    uint32_t payload_key = 0;  // Local key of its region.
    Frame::Payload kind = Frame::Payload::kNone;
    uint32_t window = Windows::kNone;  // Request: what it grants.
    Frame::Grant target;               // Reply: where its payload is written.
  };
  // Work that was posted, up to work request number `end`.
  struct Posted {
    enum class Kind : uint8_t { kMessage, kReply, kRead };
    Kind kind = Kind::kMessage;
    uint32_t end = 0;
    uint32_t bytes = 0;       // kReply: of the payload; kRead: of this piece.
    uint64_t request_id = 0;  // kReply.
    uint64_t arrival = 0;     // kRead: its place in arrivals_.
  };
  // A request that was received and not delivered yet.
  struct Arrival {
    enum class State : uint8_t { kNew, kUnasked, kReading, kReady };
    State state = State::kNew;
    uint32_t buffer = 0;
    Frame frame;
    proto::WireHeader header;
    MutableBytes landing;
    uint32_t landing_key = 0;                 // Local key of its region.
    uint32_t read_posted = 0, read_done = 0;  // Bytes.
  };

  // ---- rdma_channel.cc ----
  void CreateTables();
  void DestroyPair();
  // Logs (once a peer and minute), counts, and fails.
  void FailProtocol(const Status& status);
  Result<ibv_mr*> RegionOf(ConstBytes memory) const;
  RequestTable::Entry* AnswerableRequest(uint64_t request_id);
  void ReturnCredit(uint32_t buffer);

  // ---- rdma_channel_connect.cc ----
  Status MakePair(uint32_t rail_hint);
  Status ConnectPair(const Hello& peer);
  Hello MyHello() const;
  Status SendHello();
  void Refuse(const proto::WireHeader& request, const Status& status);
  void AnswerHello(const proto::WireHeader& request, const Hello& hello);
  void OnReady();
  void BecomeOpen();

  // ---- rdma_channel_post.cc ----
  void Flush();
  uint32_t QueueRoom(const WorkList& list) const;
  void AddReads(WorkList& list);
  bool AddMessage(WorkList& list);
  void AddWrites(const Outgoing& message, WorkList& list);
  void AddSend(const Frame& frame, const Outgoing* message, WorkList& list);
  void NotePosted(Posted posted, const WorkList& list);
  void Post(WorkList& list);
  bool CreditIsDue() const;
  bool MayPostMessage() const;

  // ---- rdma_channel_receive.cc ----
  void OnMessage(uint32_t buffer, const Frame& frame, ConstBytes bytes);
  void OnRequestMessage(uint32_t buffer, const Frame& frame, const proto::WireHeader& header);
  void OnReplyMessage(const Frame& frame, const proto::WireHeader& header, ConstBytes eager);
  void ServiceArrivals();
  bool Admit(Arrival& arrival);
  bool AskForLanding(Arrival& arrival);
  void DeliverReady();

  RdmaEndpoint& endpoint_;
  const Role role_;
  const uint32_t id_;
  std::string peer_;  // "rdma://host:port"
  Phase phase_ = Phase::kConnecting;
  TcpChannel* bootstrap_;  // Null once it is closed.
  TimeNs deadline_ns_;
  Status broken_;      // kBroken: why.
  bool told_ = false;  // The handler knows of this channel.

  std::array<std::byte, kHelloBytes> hello_out_;
  std::array<std::byte, kMaxHelloBytes> hello_in_;
  Hello mine_, theirs_;

  Rail* rail_ = nullptr;
  uint32_t unit_ = 0;
  bool has_unit_ = false;
  VerbsPtr<ibv_qp> pair_;
  std::unique_ptr<Windows> windows_;
  uint32_t inline_bytes_ = 0;   // Messages up to this go into the work request itself.
  uint32_t eager_bytes_ = 0;    // Agreed.
  uint32_t max_reads_ = 0;      // Agreed.
  uint32_t segment_bytes_ = 0;  // Of a WRITE.
  uint32_t first_packet_ = 0;

  // An acceptor gets these when it opens, strangers do not.
  std::unique_ptr<RequestTable> requests_;
  std::unique_ptr<Ring<Outgoing>> outgoing_;
  std::vector<Frame::Grant> landings_;  // Acceptor: by the tag of a request's entry.
  std::vector<uint32_t> free_landings_;

  Ring<Posted> posted_{128};
  Ring<Arrival> arrivals_{kReceiveCredits};
  uint64_t asked_ = 0;          // Arrivals before this place have their landing.
  uint64_t next_read_ = 0;      // Arrivals before this place have all their READs posted.
  bool paused_ = false;         // The handler said Later.
  bool ready_to_send_ = false;  // kReady is to be sent.

  uint32_t credits_ = 0;   // Messages that the peer can take now.
  uint32_t consumed_ = 0;  // Its messages whose buffers are free again and not reported yet.
  uint32_t reads_ = 0;     // In flight.
  uint32_t messages_ = 0;  // Posted and not completed.
  uint32_t staged_ = 0;    // Messages ever, for their place in staging memory.
  uint32_t posted_end_ = 0, completed_end_ = 0, signalled_end_ = 0;  // Count work requests.
};

}  // namespace slackline::transport
