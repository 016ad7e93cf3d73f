// Files with the durability and the error messages that checkpoints need.
//
// Every error names the path. A full disk is ResourceExhausted and says how much is free.
// Threading: functions may be called from any thread; an object belongs to one thread at a time,
// but a MappedFile's bytes may be read by all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"
#include "common/types.h"

namespace slackline {

// Owns a file descriptor; -1 is none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor up.
  int Release() { return std::exchange(fd_, -1); }
  // Closes and drops any error, as a destructor must.
  void Reset();
  // Closes and reports: some file systems deliver a write's error only here.
  Status Close(std::string_view path);

 private:
  int fd_ = -1;
};

Result<Fd> OpenForReading(const std::string& path);
// Creates or truncates, mode 0644.
Result<Fd> OpenForWriting(const std::string& path);

// The whole file, in memory. ResourceExhausted: it is larger than `max_bytes`.
Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Writes all bytes at the descriptor's position. `path` is for the message.
Status WriteAll(const Fd& fd, ConstBytes bytes, std::string_view path);
// Data and metadata to the device.
Status SyncFile(const Fd& fd, std::string_view path);
// A directory's entries to the device: after it, what was created or renamed there stays.
Status SyncDirectory(const std::string& path);

// Replaces `path` in one step: readers, and whoever comes after a crash at any moment, see the old
// bytes or the new ones, whole. Writes path + ".tmp" (one writer at a time), fsyncs, renames,
// fsyncs the directory.
Status WriteFileAtomically(const std::string& path, std::string_view bytes);
// rename(2), then fsync of the directory that holds `to`. Replaces a file; a directory only if it
// is empty.
Status RenameDurably(const std::string& from, const std::string& to);

// Creates the directory and its parents; one that exists is fine.
Status CreateDirectories(const std::string& path);

// Bytes that an unprivileged process may still write on the file system of `path`.
Result<uint64_t> FreeBytes(const std::string& path);

struct FileDigest {
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;  // XXH3-64 of the whole file.
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};
// Reads the file once, in pieces.
Result<FileDigest> HashFile(const std::string& path);

// A file mapped read-only. Its bytes are a snapshot only as long as nobody truncates the file:
// touching a page past a new end raises SIGBUS, so map files that are replaced by rename, never
// rewritten in place.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Page-aligned; valid as long as this object. Empty for an empty file.
  ConstBytes bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  void Unmap();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace slackline
