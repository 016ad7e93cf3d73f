#include "transport/rdma/hello.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/byte_order.h"
#include "common/hash.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/verbs.h"

namespace slackline::transport {
namespace {

// Offsets. Magic, version and size stay where they are in every version.
namespace at {
constexpr size_t kMagic = 0;
constexpr size_t kVersion = 8;
constexpr size_t kSize = 10;
constexpr size_t kAccepted = 12;
constexpr size_t kEthernet = 13;
constexpr size_t kReads = 14;
constexpr size_t kReserved = 15;
constexpr size_t kQueuePair = 16;
constexpr size_t kFirstPacket = 20;
constexpr size_t kGid = 24;
constexpr size_t kMtu = 40;
constexpr size_t kEager = 44;
constexpr size_t kCredits = 48;
constexpr size_t kRail = 52;
constexpr size_t kLid = 56;
constexpr size_t kReserved2 = 58;
constexpr size_t kDevice = 64;
constexpr size_t kReason = kDevice + kHelloDeviceChars;
constexpr size_t kReserved3 = kReason + kHelloReasonChars;
constexpr size_t kHash = kHelloBytes - sizeof(uint64_t);
}  // namespace at
static_assert(at::kReserved3 <= at::kHash);

constexpr uint32_t kMaxNumber24 = (1u << 24) - 1;

void StoreText(std::byte* out, std::string_view text, size_t max_chars) {
  std::memcpy(out, text.data(), std::min(text.size(), max_chars));
}

// Printable ASCII up to the first zero; anything else becomes '?', since it goes into a log.
std::string LoadText(const std::byte* in, size_t max_chars) {
  std::string text;
  for (size_t i = 0; i < max_chars && in[i] != std::byte{0}; ++i) {
    const char c = static_cast<char>(in[i]);
    text.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return text;
}

Status Range(std::string_view field, uint64_t value, std::string_view expected) {
  return InvalidArgument("RDMA hello: " + std::string(field) + " is " + std::to_string(value) +
                         ", expected " + std::string(expected));
}

Status CheckFields(const Hello& hello) {
  if (!hello.accepted) return OkStatus();  // Nothing but the reason counts.
  if (hello.queue_pair == 0 || hello.queue_pair > kMaxNumber24) {
    return Range("queue pair", hello.queue_pair, "1 to 2^24 - 1");
  }
  if (hello.first_packet > kMaxNumber24) {
    return Range("first packet", hello.first_packet, "below 2^24");
  }
  if (!std::has_single_bit(hello.mtu_bytes) || hello.mtu_bytes < 256 || hello.mtu_bytes > 4096) {
    return Range("MTU", hello.mtu_bytes, "256, 512, 1024, 2048 or 4096");
  }
  if (hello.eager_bytes > kMaxEagerBytes) {
    return Range("eager bytes", hello.eager_bytes, "at most " + std::to_string(kMaxEagerBytes));
  }
  constexpr uint32_t kMostCredits = 1024;
  if (hello.credits < 2 || hello.credits > kMostCredits) {
    return Range("credits", hello.credits, "2 to " + std::to_string(kMostCredits));
  }
  if (hello.rail >= kMaxRdmaRails) {
    return Range("rail", hello.rail, "below " + std::to_string(kMaxRdmaRails));
  }
  return OkStatus();
}

}  // namespace

void EncodeHello(const Hello& hello, std::span<std::byte, kHelloBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  StoreLe(&out[at::kMagic], kHelloMagic);
  StoreLe(&out[at::kVersion], hello.version);
  StoreLe(&out[at::kSize], static_cast<uint16_t>(kHelloBytes));
  StoreLe(&out[at::kAccepted], static_cast<uint8_t>(hello.accepted));
  StoreLe(&out[at::kEthernet], static_cast<uint8_t>(hello.ethernet));
  StoreLe(&out[at::kReads], hello.reads);
  StoreLe(&out[at::kQueuePair], hello.queue_pair);
  StoreLe(&out[at::kFirstPacket], hello.first_packet);
  std::memcpy(&out[at::kGid], hello.gid.data(), hello.gid.size());
  StoreLe(&out[at::kMtu], hello.mtu_bytes);
  StoreLe(&out[at::kEager], hello.eager_bytes);
  StoreLe(&out[at::kCredits], hello.credits);
  StoreLe(&out[at::kRail], hello.rail);
  StoreLe(&out[at::kLid], hello.lid);
  StoreText(&out[at::kDevice], hello.device, kHelloDeviceChars);
  StoreText(&out[at::kReason], hello.reason, kHelloReasonChars);
  StoreLe(&out[at::kHash], Hash64(out.first<at::kHash>()));
}

Result<Hello> ParseHello(ConstBytes in) {
  if (in.size() < at::kAccepted || LoadLe<uint64_t>(&in[at::kMagic]) != kHelloMagic) {
    return Err(DataLoss("RDMA hello: the peer's " + std::to_string(in.size()) +
                        " bytes are not one; it speaks another protocol"));
  }
  Hello hello;
  hello.version = LoadLe<uint16_t>(&in[at::kVersion]);
  // Before the checksum: another version may be of another size.
  if (hello.version != kRdmaProtocolVersion) {
    return Err(Unimplemented("RDMA hello: the peer's protocol version is " +
                             std::to_string(hello.version) + ", this program's is " +
                             std::to_string(kRdmaProtocolVersion) +
                             "; run the same release on both sides"));
  }
  if (in.size() != kHelloBytes || LoadLe<uint16_t>(&in[at::kSize]) != kHelloBytes) {
    return Err(DataLoss("RDMA hello: " + std::to_string(in.size()) + " bytes, expected " +
                        std::to_string(kHelloBytes)));
  }
  if (LoadLe<uint64_t>(&in[at::kHash]) != Hash64(in.first(at::kHash))) {
    return Err(DataLoss("RDMA hello: its checksum is wrong; it is damaged"));
  }
  const auto zero = [&](size_t begin, size_t end) {
    return std::all_of(in.begin() + static_cast<ptrdiff_t>(begin),
                       in.begin() + static_cast<ptrdiff_t>(end),
                       [](std::byte byte) { return byte == std::byte{0}; });
  };
  if (!zero(at::kReserved, at::kQueuePair) || !zero(at::kReserved2, at::kDevice) ||
      !zero(at::kReserved3, at::kHash)) {
    return Err(InvalidArgument("RDMA hello: reserved bytes are not zero"));
  }
  const auto accepted = LoadLe<uint8_t>(&in[at::kAccepted]);
  const auto ethernet = LoadLe<uint8_t>(&in[at::kEthernet]);
  if (accepted > 1) return Err(Range("accepted", accepted, "0 or 1"));
  if (ethernet > 1) return Err(Range("ethernet", ethernet, "0 or 1"));
  hello.accepted = accepted == 1;
  hello.ethernet = ethernet == 1;
  hello.reads = LoadLe<uint8_t>(&in[at::kReads]);
  hello.queue_pair = LoadLe<uint32_t>(&in[at::kQueuePair]);
  hello.first_packet = LoadLe<uint32_t>(&in[at::kFirstPacket]);
  std::memcpy(hello.gid.data(), &in[at::kGid], hello.gid.size());
  hello.mtu_bytes = LoadLe<uint32_t>(&in[at::kMtu]);
  hello.eager_bytes = LoadLe<uint32_t>(&in[at::kEager]);
  hello.credits = LoadLe<uint32_t>(&in[at::kCredits]);
  hello.rail = LoadLe<uint32_t>(&in[at::kRail]);
  hello.lid = LoadLe<uint16_t>(&in[at::kLid]);
  hello.device = LoadText(&in[at::kDevice], kHelloDeviceChars);
  hello.reason = LoadText(&in[at::kReason], kHelloReasonChars);
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckFields(hello));
  return hello;
}

std::string Describe(const Hello& hello) {
  ibv_gid gid;
  static_assert(sizeof(gid.raw) == sizeof(hello.gid));
  std::memcpy(gid.raw, hello.gid.data(), sizeof(gid.raw));
  std::string text = hello.device;
  text.append(", GID ").append(GidText(gid));
  text.append(", MTU ").append(std::to_string(hello.mtu_bytes));
  if (!hello.ethernet) text.append(", LID ").append(std::to_string(hello.lid));
  return text;
}

}  // namespace slackline::transport
