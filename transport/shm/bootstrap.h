// The Unix-domain socket beside every shared-memory channel: it passes memory (as descriptors),
// rings the other end awake, and its hang-up is the sign of a death. Names are abstract: nothing is
// left behind in a file system. Messages are of one fixed size, in host order (both ends are on one
// host), each with at most one descriptor.
// Threading: pure functions on the caller's socket. Nothing here blocks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/file.h"
#include "common/status.h"
#include "transport/address.h"

namespace slackline::transport {

inline constexpr uint32_t kShmMagic = 0x4D485331;
// Of these messages and of SharedSegment.
inline constexpr uint16_t kShmVersion = 1;

enum class ShmKind : uint16_t {
  kHello = 1,    // Connector: a segment comes with it, `size_bytes` long.
  kWelcome = 2,  // Acceptor: the channel is open; or, of another version, that it is not.
  kRegion = 3,   // Memory `id` of `size_bytes` comes with it; messages may name it now.
  kForget = 4,   // Memory `id` is gone.
  kRing = 5,     // There is news in the segment.
};

struct ShmMessage {
  uint32_t magic = kShmMagic;
  uint16_t version = kShmVersion;
  ShmKind kind = ShmKind::kRing;
  uint64_t id = 0;
  uint64_t size_bytes = 0;
};
static_assert(sizeof(ShmMessage) == 24, "no padding goes out");

// Unimplemented: another version (both are named). InvalidArgument: not a message, or a descriptor
// too many or too few.
Result<ShmMessage> ParseShmMessage(std::span<const std::byte> bytes, bool has_descriptor);

// The abstract name of "shm://host:port". InvalidArgument: the host's name is too long for one.
Result<std::string> SocketName(const Address& address);
// AlreadyExists: somebody listens there.
Result<Fd> ListenLocal(const std::string& name);
// Connects at once. 0, or an errno: ECONNREFUSED nobody listens, EAGAIN too many others connect.
int ConnectLocal(const std::string& name, Fd* socket);

struct LocalPeer {
  pid_t pid = 0;
  uid_t uid = 0;
};
// Who is at the other end, by the kernel's word.
Result<LocalPeer> PeerOf(const Fd& socket);

// 0 or an errno; EAGAIN: the other end has a full queue of messages to read.
int SendShmMessage(const Fd& socket, const ShmMessage& message, int descriptor = -1);

struct ShmReceived {
  enum class What : uint8_t { kNothing, kMessage, kEnd } what = What::kNothing;
  ShmMessage message;
  Fd descriptor;
};
// Takes the next message. Errors: ParseShmMessage's.
Result<ShmReceived> ReceiveShmMessage(const Fd& socket);

}  // namespace slackline::transport
