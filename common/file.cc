#include "common/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "common/hash.h"

namespace slackline {
namespace {

// The largest single write(2): the kernel moves no more than 2 GiB less a page at once.
constexpr size_t kMaxWriteBytes = size_t{1} << 30;
constexpr size_t kHashPieceBytes = size_t{1} << 20;

Status PathError(int error_number, std::string_view action, std::string_view path) {
  return ErrnoStatus(error_number, std::string(action) + " " + std::string(path));
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

Result<Fd> Open(const std::string& path, int flags, std::string_view action) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return Err(PathError(errno, action, path));
  return Fd(fd);
}

// Up to `size` bytes; fewer only at the file's end.
Result<size_t> ReadSome(const Fd& fd, std::byte* out, size_t size, std::string_view path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = read(fd.get(), out + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Err(PathError(errno, "reading", path));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

// Says how much is free, as the reader of "no space left" asks that next.
Status WriteError(int error_number, const Fd& fd, std::string_view path) {
  Status status = PathError(error_number, "writing", path);
  if (error_number != ENOSPC && error_number != EDQUOT) return status;
  struct statvfs info {};
  std::string advice = "; free some space there or choose another directory";
  if (fstatvfs(fd.get(), &info) == 0) {
    const uint64_t free_mib = uint64_t{info.f_bavail} * info.f_frsize >> 20;
    advice = "; its file system has " + std::to_string(free_mib) + " MiB free" + advice;
  }
  return {status.code(), status.message() + advice};
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::Reset() {
  if (valid()) close(Release());
}

Status Fd::Close(std::string_view path) {
  if (!valid()) return OkStatus();
  // Linux frees the descriptor even when close() fails or is interrupted: never again.
  if (close(Release()) != 0 && errno != EINTR) return PathError(errno, "closing", path);
  return OkStatus();
}

Result<Fd> OpenForReading(const std::string& path) { return Open(path, O_RDONLY, "opening"); }

Result<Fd> OpenForWriting(const std::string& path) {
  return Open(path, O_WRONLY | O_CREAT | O_TRUNC, "creating");
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  SLACKLINE_ASSIGN_OR_RETURN(const Fd fd, OpenForReading(path));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Err(PathError(errno, "reading", path));
  const Status too_large = ResourceExhausted(path + ": the file is larger than the " +
                                             std::to_string(max_bytes) + " bytes expected");
  std::string text;
  // The stated size is a first guess only: a file in /proc says 0, others may grow meanwhile.
  size_t guess = std::max<size_t>(static_cast<size_t>(info.st_size), 4096) + 1;
  for (;;) {
    if (S_ISREG(info.st_mode) && static_cast<size_t>(info.st_size) > max_bytes) {
      return Err(too_large);
    }
    const size_t before = text.size();
    text.resize(before + guess);
    SLACKLINE_ASSIGN_OR_RETURN(
        const size_t got,
        ReadSome(fd, reinterpret_cast<std::byte*>(text.data()) + before, guess, path));
    text.resize(before + got);
    if (text.size() > max_bytes) return Err(too_large);
    if (got < guess) return text;
    guess = text.size();
  }
}

Status WriteAll(const Fd& fd, ConstBytes bytes, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(errno, fd, path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status SyncFile(const Fd& fd, std::string_view path) {
  // Not repeated after an error: the kernel may have dropped the dirty pages with the first one.
  if (fsync(fd.get()) != 0) return WriteError(errno, fd, path);
  return OkStatus();
}

Status SyncDirectory(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Fd fd,
                                    Open(path, O_RDONLY | O_DIRECTORY, "opening directory"));
  return SyncFile(fd, path);
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp";
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(Fd fd, OpenForWriting(temporary));
  Status status = WriteAll(fd, std::as_bytes(std::span(bytes)), temporary);
  if (status.ok()) status = SyncFile(fd, temporary);
  if (status.ok()) status = fd.Close(temporary);
  if (status.ok()) status = RenameDurably(temporary, path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

Status RenameDurably(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    return PathError(errno, "renaming " + from + " to", to);
  }
  return SyncDirectory(ParentOf(to));
}

Status CreateDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return PathError(error.value(), "creating directory", path);
  return OkStatus();
}

Result<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0)
    return Err(PathError(errno, "asking for free space", path));
  return uint64_t{info.f_bavail} * info.f_frsize;
}

Result<FileDigest> HashFile(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN(const Fd fd, OpenForReading(path));
  std::vector<std::byte> piece(kHashPieceBytes);
  StreamHash hash;
  FileDigest digest;
  for (;;) {
    SLACKLINE_ASSIGN_OR_RETURN(const size_t got, ReadSome(fd, piece.data(), piece.size(), path));
    hash.Update({piece.data(), got});
    digest.bytes += got;
    if (got < piece.size()) break;
  }
  digest.xxh3 = hash.Digest();
  return digest;
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN(const Fd fd, OpenForReading(path));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Err(PathError(errno, "reading", path));
  if (!S_ISREG(info.st_mode)) return Err(InvalidArgument(path + ": not a regular file"));
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Err(PathError(errno, "mapping", path));
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::~MappedFile() { Unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void MappedFile::Unmap() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace slackline
