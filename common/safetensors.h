// safetensors files: what checkpoints, merged models and data sets of tensors are stored in.
//
// The format is Hugging Face's: u64 little-endian header bytes, a JSON object that gives each
// tensor's dtype, shape and byte range in the data, and the data, without holes. The reader trusts
// nothing: bad bytes are DataLoss with the path, the tensor and the reason, never a crash.
// Threading: a reader may be used from any thread at once; a writer belongs to one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/file.h"
#include "common/hash.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline {

// The format's own limit on its header.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

enum class TensorDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};

// "F32", as the header spells it, and bytes an element.
std::string_view TensorDtypeName(TensorDtype dtype);
size_t TensorDtypeBytes(TensorDtype dtype);

using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

// A tensor to be written.
struct TensorDeclaration {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<uint64_t> shape;  // Empty: a scalar.
};

// A tensor in a file; its byte range lies inside the data and fits its shape.
struct TensorEntry {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // Bytes from the start of the data.
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
  uint64_t count() const { return bytes() / TensorDtypeBytes(dtype); }
};

// What a valid header says.
struct SafetensorsIndex {
  uint64_t data_offset = 0;          // Bytes from the start of the file.
  std::vector<TensorEntry> tensors;  // In the order of their data.
  SafetensorsMetadata metadata;
};

// Checks and reads the header of a whole file in memory: unique names, known dtypes, byte ranges
// that fit their shapes and cover the data without overlap or hole. DataLoss says what is wrong.
Result<SafetensorsIndex> ParseSafetensors(ConstBytes file);

class SafetensorsReader {
 public:
  // Maps the file (see MappedFile for what that needs).
  static Result<SafetensorsReader> Open(const std::string& path);

  const std::vector<TensorEntry>& tensors() const { return index_.tensors; }
  const SafetensorsMetadata& metadata() const { return index_.metadata; }
  const std::string& path() const { return file_.path(); }
  // Null when there is no such tensor. The pointer lives as long as the reader stays in place.
  const TensorEntry* Find(std::string_view name) const;
  // The tensor's bytes in the mapping; not aligned to the element in files of other writers.
  ConstBytes Data(const TensorEntry& tensor) const;
  // Copies an F32 tensor of exactly out.size() elements. NotFound; InvalidArgument: another dtype
  // or size.
  Status CopyFloats(std::string_view name, std::span<float> out) const;

 private:
  SafetensorsReader(MappedFile file, SafetensorsIndex index);

  MappedFile file_;
  SafetensorsIndex index_;
  std::map<std::string, size_t, std::less<>> by_name_;  // Into index_.tensors.
};

// Writes a file from front to back, holding no tensor in memory. A file that was not finished is
// refused by the reader. For a replacement in one step write under another name and RenameDurably.
class SafetensorsWriter {
 public:
  // Creates or truncates the file and writes the header. InvalidArgument: a name twice, reserved or
  // not UTF-8, or sizes that overflow.
  static Result<SafetensorsWriter> Create(const std::string& path,
                                          const std::vector<TensorDeclaration>& tensors,
                                          const SafetensorsMetadata& metadata);

  // The next bytes of the data: the tensors in the order of their declaration, in pieces of any
  // size. InvalidArgument: more than was declared. After an error the file is unusable.
  Status Append(ConstBytes bytes);
  // Fsyncs and closes; size and hash of the whole file. FailedPrecondition: bytes are missing.
  // The directory is the caller's to sync. Call once.
  Result<FileDigest> Finish();

 private:
  SafetensorsWriter(std::string path, Fd fd, uint64_t data_bytes);
  Status Write(ConstBytes bytes);

  std::string path_;
  Fd fd_;
  StreamHash hash_;
  uint64_t written_bytes_ = 0;    // Of the file.
  uint64_t remaining_bytes_ = 0;  // Of the data.
};

}  // namespace slackline
