// A peer that says and scribbles whatever the input tells it, against a real endpoint: nothing of
// it may crash, hang, or disturb a channel that behaves.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "tests/testing/fuzz_expect.h"
#include "tests/transport/shm_raw_peer.h"
#include "transport/shm/shm_endpoint.h"

namespace {

using slackline::ConstBytes;
using slackline::MutableBytes;
using slackline::Status;
using slackline::proto::WireHeader;
using slackline::testing::FuzzExpect;
namespace proto = slackline::proto;
namespace transport = slackline::transport;

constexpr size_t kBytes = 4096;

class Echo final : public transport::Handler {
 public:
  explicit Echo(MutableBytes landing) : landing_(landing) {}
  void OnOpened(transport::Channel&) override {}
  void OnClosed(transport::Channel&, const Status&) override {}
  transport::Landing OnRequestArriving(transport::Channel&, const WireHeader& header) override {
    if (header.payload_bytes > landing_.size()) return transport::Landing::Drain();
    return transport::Landing::Into(landing_.first(header.payload_bytes));
  }
  void OnRequest(transport::Channel& at, const WireHeader& header, MutableBytes payload) override {
    WireHeader reply = header;
    reply.kind = proto::MessageKind::kReply;
    reply.payload_bytes = static_cast<uint32_t>(payload.size());
    (void)at.Reply(reply, payload);
  }
  void OnReply(transport::Channel&, const WireHeader&, MutableBytes) override { ++replies; }
  uint64_t replies = 0;

 private:
  MutableBytes landing_;
};

// Takes fixed pieces off the input; zeros when it is used up.
class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <typename T>
  T Take() {
    T value{};
    const size_t size = std::min(sizeof value, bytes_.size());
    if (size > 0) std::memcpy(&value, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
};

// One endpoint that listens and has an honest channel to itself.
struct Rig {
  Rig() {
    endpoint = transport::ShmEndpoint::Create({.poll_mode = transport::PollMode::kSleep}).value();
    memory = endpoint->Allocate(2 * kBytes).value();
    echo = std::make_unique<Echo>(memory->bytes().first(kBytes));
    endpoint->set_handler(echo.get());
    address = endpoint->Listen("shm://127.0.0.1:0").value();
    honest = endpoint->Connect(address, slackline::kNsPerSecond).value();
    for (int i = 0; i < 20; ++i) endpoint->Poll(slackline::kNsPerMs);
  }
  void ExpectHonestWorks() {
    WireHeader header{.kind = proto::MessageKind::kPushPull, .request_id = 1};
    header.codec = slackline::CodecId::kFp32;
    header.payload_bytes = kBytes;
    const uint64_t before = echo->replies;
    const MutableBytes out = memory->bytes().subspan(kBytes);
    FuzzExpect(honest->Send(header, out, out).ok(), "the honest channel is open");
    for (int i = 0; i < 1000 && echo->replies == before; ++i) endpoint->Poll(slackline::kNsPerMs);
    FuzzExpect(echo->replies == before + 1, "the honest channel is answered");
  }

  std::unique_ptr<transport::Endpoint> endpoint;
  std::unique_ptr<transport::Region> memory;
  std::unique_ptr<Echo> echo;
  std::string address;
  transport::Channel* honest = nullptr;
};

void Step(transport::ShmRawPeer& peer, transport::Endpoint& endpoint, Input& input) {
  transport::SharedSegment& segment = peer.segment();
  switch (input.Take<uint8_t>() % 8) {
    case 0: {  // Any message, with or without memory.
      const auto message = input.Take<transport::ShmMessage>();
      peer.Say(message, input.Take<uint8_t>() % 2 == 0 ? peer.memory().get() : -1);
      break;
    }
    case 1:  // Memory of a small id.
      peer.Say({.kind = transport::ShmKind::kRegion,
                .id = input.Take<uint8_t>(),
                .size_bytes = input.Take<uint32_t>()},
               peer.memory().get());
      break;
    case 2:
      peer.Say({.kind = transport::ShmKind::kForget, .id = input.Take<uint8_t>()});
      break;
    case 3: {  // Any eight bytes anywhere in the segment.
      const size_t at = input.Take<uint32_t>() % (sizeof segment / 8) * 8;
      const auto word = input.Take<uint64_t>();
      std::memcpy(peer.segment_bytes() + at, &word, sizeof word);
      break;
    }
    case 4:  // Positions.
      segment.requests.tail.value.store(input.Take<uint16_t>());
      break;
    case 5:
      segment.replies.head.value.store(input.Take<uint16_t>());
      break;
    case 6: {  // A right header, since a fuzzer does not guess checksums.
      WireHeader header{.kind = proto::MessageKind::kPushPull};
      header.request_id = input.Take<uint8_t>();
      header.payload_bytes = input.Take<uint16_t>();
      header.codec =
          header.payload_bytes > 0 ? slackline::CodecId::kFp32 : slackline::CodecId::kNone;
      peer.Write(header, input.Take<uint8_t>(), input.Take<uint32_t>());
      break;
    }
    default:
      endpoint.Poll(0);
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Rig rig;
  constexpr int kMaxSteps = 200;
  Input input(std::span(data, size));
  {
    transport::ShmRawPeer peer(rig.address);
    FuzzExpect(peer.connected(), "the endpoint listens");
    if (input.Take<uint8_t>() % 8 != 0) peer.SayHello();
    for (int i = 0; i < 3; ++i) rig.endpoint->Poll(slackline::kNsPerMs);
    for (int step = 0; step < kMaxSteps && !input.empty(); ++step) Step(peer, *rig.endpoint, input);
    rig.endpoint->Poll(0);
  }
  for (int i = 0; i < 2; ++i) rig.endpoint->Poll(slackline::kNsPerMs);
  rig.ExpectHonestWorks();
  return 0;
}
