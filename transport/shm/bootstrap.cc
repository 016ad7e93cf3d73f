#include "transport/shm/bootstrap.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace slackline::transport {
namespace {

constexpr int kListenBacklog = 512;
// Descriptors of one receive that are looked at; the kernel closes those that do not fit.
constexpr size_t kMaxDescriptors = 4;

struct LocalAddress {
  sockaddr_un address = {};
  socklen_t size = 0;
};

LocalAddress MakeLocalAddress(const std::string& name) {
  LocalAddress local;
  local.address.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract.
  name.copy(local.address.sun_path + 1, sizeof local.address.sun_path - 1);
  local.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return local;
}

Result<Fd> OpenSocket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Err(ErrnoStatus(errno, "a Unix-domain socket"));
  return fd;
}

// Closes all but the first; a message carries one at most.
Fd TakeDescriptor(const msghdr& header, size_t* count) {
  Fd first;
  msghdr* mutable_header = const_cast<msghdr*>(&header);  // CMSG_NXTHDR only reads.
  for (cmsghdr* part = CMSG_FIRSTHDR(mutable_header); part != nullptr;
       part = CMSG_NXTHDR(mutable_header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t descriptors = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < descriptors; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      Fd owned(fd);
      if ((*count)++ == 0) first = std::move(owned);
    }
  }
  return first;
}

}  // namespace

Result<ShmMessage> ParseShmMessage(std::span<const std::byte> bytes, bool has_descriptor) {
  ShmMessage message;
  if (bytes.size() != sizeof message) {
    return Err(InvalidArgument("a message of " + std::to_string(bytes.size()) +
                               " bytes, expected " + std::to_string(sizeof message)));
  }
  std::memcpy(&message, bytes.data(), sizeof message);
  if (message.magic != kShmMagic) return Err(InvalidArgument("not a message of shared memory"));
  if (message.version != kShmVersion) {
    return Err(Unimplemented("the peer speaks version " + std::to_string(message.version) +
                             " of shared memory, this end version " + std::to_string(kShmVersion) +
                             ": run the same build at both ends"));
  }
  const auto kind = static_cast<uint16_t>(message.kind);
  if (kind < static_cast<uint16_t>(ShmKind::kHello) ||
      kind > static_cast<uint16_t>(ShmKind::kRing)) {
    return Err(InvalidArgument("a message of unknown kind " + std::to_string(kind)));
  }
  const bool wants = message.kind == ShmKind::kHello || message.kind == ShmKind::kRegion;
  if (wants != has_descriptor) {
    return Err(InvalidArgument("a message of kind " + std::to_string(kind) +
                               (wants ? " without its descriptor" : " with a descriptor")));
  }
  return message;
}

Result<std::string> SocketName(const Address& address) {
  std::string name = "slackline-shm/" + address.host + ":" + std::to_string(address.port);
  if (name.size() >= sizeof(sockaddr_un::sun_path)) {
    return Err(InvalidArgument("cannot share memory at '" + address.ToString().substr(0, 80) +
                               "...': a Unix-domain socket's name has at most " +
                               std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                               " bytes, use a shorter host name"));
  }
  return name;
}

Result<Fd> ListenLocal(const std::string& name) {
  SLACKLINE_ASSIGN_OR_RETURN(Fd fd, OpenSocket());
  const LocalAddress local = MakeLocalAddress(name);
  const auto* address = reinterpret_cast<const sockaddr*>(&local.address);
  if (bind(fd.get(), address, local.size) != 0 || listen(fd.get(), kListenBacklog) != 0) {
    return Err(ErrnoStatus(errno, "cannot listen at @" + name));
  }
  return fd;
}

int ConnectLocal(const std::string& name, Fd* socket) {
  Result<Fd> fd = OpenSocket();
  if (!fd) return EMFILE;
  const LocalAddress local = MakeLocalAddress(name);
  const auto* address = reinterpret_cast<const sockaddr*>(&local.address);
  if (connect(fd->get(), address, local.size) != 0) return errno;
  *socket = std::move(*fd);
  return 0;
}

Result<LocalPeer> PeerOf(const Fd& socket) {
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Err(ErrnoStatus(errno, "SO_PEERCRED"));
  }
  return LocalPeer{credentials.pid, credentials.uid};
}

int SendShmMessage(const Fd& socket, const ShmMessage& message, int descriptor) {
  iovec vector = {const_cast<ShmMessage*>(&message), sizeof message};  // sendmsg only reads.
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

Result<ShmReceived> ReceiveShmMessage(const Fd& socket) {
  // One byte more than a message, so that a longer one shows.
  std::array<std::byte, sizeof(ShmMessage) + 1> bytes;
  iovec vector = {bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control;
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  ShmReceived received;
  if (size < 0) {
    const bool nothing = errno == EAGAIN || errno == EINTR;
    received.what = nothing ? ShmReceived::What::kNothing : ShmReceived::What::kEnd;
    return received;
  }
  size_t descriptors = 0;
  received.descriptor = TakeDescriptor(header, &descriptors);
  if (size == 0 && descriptors == 0) {
    received.what = ShmReceived::What::kEnd;
    return received;
  }
  if (descriptors > 1) {
    return Err(InvalidArgument("a message with " + std::to_string(descriptors) + " descriptors"));
  }
  received.what = ShmReceived::What::kMessage;
  SLACKLINE_ASSIGN_OR_RETURN(
      received.message,
      ParseShmMessage(std::span(bytes).first(static_cast<size_t>(size)), descriptors == 1));
  return received;
}

}  // namespace slackline::transport
