#include "common/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "common/byte_order.h"

namespace slackline {
namespace {

using Json = nlohmann::json;

// The data is little-endian by definition and is mapped, not converted.
static_assert(std::endian::native == std::endian::little);

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignmentBytes = 8;  // Of the data's start, by padding the header with spaces.
constexpr size_t kMaxRank = 32;
constexpr int kMaxJsonDepth = 3;  // The object, a tensor's object, its lists.
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeRow {
  TensorDtype dtype;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<DtypeRow, 13> kDtypes = {{{TensorDtype::kBool, "BOOL", 1},
                                               {TensorDtype::kU8, "U8", 1},
                                               {TensorDtype::kI8, "I8", 1},
                                               {TensorDtype::kU16, "U16", 2},
                                               {TensorDtype::kI16, "I16", 2},
                                               {TensorDtype::kF16, "F16", 2},
                                               {TensorDtype::kBf16, "BF16", 2},
                                               {TensorDtype::kU32, "U32", 4},
                                               {TensorDtype::kI32, "I32", 4},
                                               {TensorDtype::kF32, "F32", 4},
                                               {TensorDtype::kU64, "U64", 8},
                                               {TensorDtype::kI64, "I64", 8},
                                               {TensorDtype::kF64, "F64", 8}}};

const DtypeRow& RowOf(TensorDtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

std::optional<TensorDtype> DtypeOfName(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

// Product of the shape times the element's bytes; nullopt on overflow.
std::optional<uint64_t> BytesOf(TensorDtype dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = TensorDtypeBytes(dtype);
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

Status TensorError(const std::string& name, std::string_view reason) {
  return DataLoss("tensor '" + name + "': " + std::string(reason));
}

// Whether brackets outside of strings nest deeper than any valid header's. Looked at before
// parsing, since the parser would spend memory on every level.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

// The JSON, refused when a name occurs twice: the parser would keep one of them silently.
Result<Json> ParseHeaderJson(std::string_view text) {
  if (NestsTooDeep(text)) return Err(DataLoss("the header nests too deep"));
  std::string duplicate;
  std::vector<std::set<std::string, std::less<>>> keys;  // Of the objects that are open.
  const auto on_event = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && duplicate.empty()) duplicate = "'" + key + "'";
    }
    return true;
  };
  Json json = Json::parse(text, on_event, /*allow_exceptions=*/false);
  if (!duplicate.empty()) return Err(DataLoss("the header has " + duplicate + " twice"));
  if (!json.is_object()) return Err(DataLoss("the header is not a JSON object"));
  return json;
}

Result<SafetensorsMetadata> ParseMetadata(const Json& json) {
  if (!json.is_object()) return Err(DataLoss("__metadata__ is not an object"));
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return Err(DataLoss("__metadata__ '" + key + "' is not a string"));
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

Result<std::vector<uint64_t>> ParseUnsignedList(const Json& object, const char* key,
                                                const std::string& name, size_t max_size) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array() || found->size() > max_size) {
    return Err(TensorError(name, std::string(key) + " is missing, not a list, or too long"));
  }
  std::vector<uint64_t> values;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned()) {
      return Err(TensorError(name, std::string(key) + " has an entry that is no whole number"));
    }
    values.push_back(value.get<uint64_t>());
  }
  return values;
}

// One tensor's object; its range is inside the data and fits its shape.
Result<TensorEntry> ParseEntry(const std::string& name, const Json& json, uint64_t data_bytes) {
  if (!json.is_object() || json.size() != 3) {
    return Err(TensorError(name, "expected an object of dtype, shape and data_offsets"));
  }
  const auto dtype_name = json.find("dtype");
  if (dtype_name == json.end() || !dtype_name->is_string()) {
    return Err(TensorError(name, "dtype is missing or not a string"));
  }
  const auto dtype = DtypeOfName(dtype_name->get_ref<const std::string&>());
  if (!dtype) {
    return Err(TensorError(name, "unknown dtype '" + dtype_name->get<std::string>() + "'"));
  }
  SLACKLINE_ASSIGN_OR_RETURN(auto shape, ParseUnsignedList(json, "shape", name, kMaxRank));
  SLACKLINE_ASSIGN_OR_RETURN(const auto range, ParseUnsignedList(json, "data_offsets", name, 2));
  if (range.size() != 2) return Err(TensorError(name, "data_offsets is not a pair"));
  if (range[0] > range[1] || range[1] > data_bytes) {
    return Err(TensorError(name, "data_offsets [" + std::to_string(range[0]) + ", " +
                                     std::to_string(range[1]) + "] are not inside the file's " +
                                     std::to_string(data_bytes) + " bytes of data"));
  }
  const auto expected = BytesOf(*dtype, shape);
  if (!expected || *expected != range[1] - range[0]) {
    return Err(
        TensorError(name, "shape needs " + (expected ? std::to_string(*expected) : "too many") +
                              " bytes, data_offsets give " + std::to_string(range[1] - range[0])));
  }
  return TensorEntry{name, *dtype, std::move(shape), range[0], range[1]};
}

// Sorted tensors cover the data from its start to its end, each byte once.
Status CheckCoverage(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t position = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != position) {
      return TensorError(tensor.name, "starts at byte " + std::to_string(tensor.begin) +
                                          " of the data, expected " + std::to_string(position) +
                                          ": tensors overlap or leave a hole");
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    return DataLoss("the tensors end at byte " + std::to_string(position) +
                    " of the data, the file at " + std::to_string(data_bytes));
  }
  return OkStatus();
}

// The length and the JSON, padded; InvalidArgument as Create says.
Result<std::string> MakeHeader(const std::vector<TensorDeclaration>& tensors,
                               const SafetensorsMetadata& metadata, uint64_t* data_bytes) {
  Json json = Json::object();
  if (!metadata.empty()) json[std::string(kMetadataKey)] = metadata;
  uint64_t position = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const auto bytes = BytesOf(tensor.dtype, tensor.shape);
    uint64_t end;
    if (!bytes || __builtin_add_overflow(position, *bytes, &end)) {
      return Err(InvalidArgument("tensor '" + tensor.name + "' is too large"));
    }
    if (tensor.name == kMetadataKey || json.contains(tensor.name) ||
        tensor.shape.size() > kMaxRank) {
      return Err(InvalidArgument("tensor '" + tensor.name +
                                 "': its name is taken or reserved, or it has more than " +
                                 std::to_string(kMaxRank) + " dimensions"));
    }
    json[tensor.name] = {{"dtype", TensorDtypeName(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {position, end}}};
    position = end;
  }
  *data_bytes = position;
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception&) {  // The library's way to say that a string is not UTF-8.
    return Err(InvalidArgument("a tensor's name or a metadata string is not UTF-8"));
  }
  text.append((kAlignmentBytes - text.size() % kAlignmentBytes) % kAlignmentBytes, ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return Err(InvalidArgument("the header would have " + std::to_string(text.size()) +
                               " bytes, the format allows " +
                               std::to_string(kMaxSafetensorsHeaderBytes)));
  }
  std::array<std::byte, kLengthBytes> length;
  StoreLe<uint64_t>(length.data(), text.size());
  return std::string(reinterpret_cast<const char*>(length.data()), length.size()) + text;
}

}  // namespace

std::string_view TensorDtypeName(TensorDtype dtype) { return RowOf(dtype).name; }
size_t TensorDtypeBytes(TensorDtype dtype) { return RowOf(dtype).bytes; }

Result<SafetensorsIndex> ParseSafetensors(ConstBytes file) {
  if (file.size() < kLengthBytes) {
    return Err(DataLoss("the file has " + std::to_string(file.size()) +
                        " bytes, too few for a safetensors header"));
  }
  const uint64_t header_bytes = LoadLe<uint64_t>(file.data());
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return Err(DataLoss("the header is said to have " + std::to_string(header_bytes) +
                        " bytes; the file has " + std::to_string(file.size()) +
                        ", the format allows " + std::to_string(kMaxSafetensorsHeaderBytes)));
  }
  SafetensorsIndex index;
  index.data_offset = kLengthBytes + header_bytes;
  const uint64_t data_bytes = file.size() - index.data_offset;
  const auto* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  SLACKLINE_ASSIGN_OR_RETURN(const Json json, ParseHeaderJson({text, header_bytes}));
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      SLACKLINE_ASSIGN_OR_RETURN(index.metadata, ParseMetadata(value));
      continue;
    }
    SLACKLINE_ASSIGN_OR_RETURN(auto entry, ParseEntry(name, value, data_bytes));
    index.tensors.push_back(std::move(entry));
  }
  std::sort(index.tensors.begin(), index.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckCoverage(index.tensors, data_bytes));
  return index;
}

SafetensorsReader::SafetensorsReader(MappedFile file, SafetensorsIndex index)
    : file_(std::move(file)), index_(std::move(index)) {
  for (size_t i = 0; i < index_.tensors.size(); ++i) by_name_.emplace(index_.tensors[i].name, i);
}

Result<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  auto index = ParseSafetensors(file.bytes());
  if (!index) return Err({index.error().code(), path + ": " + index.error().message()});
  return SafetensorsReader(std::move(file), std::move(*index));
}

const TensorEntry* SafetensorsReader::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &index_.tensors[found->second];
}

ConstBytes SafetensorsReader::Data(const TensorEntry& tensor) const {
  return file_.bytes().subspan(index_.data_offset + tensor.begin, tensor.bytes());
}

Status SafetensorsReader::CopyFloats(std::string_view name, std::span<float> out) const {
  const TensorEntry* tensor = Find(name);
  if (tensor == nullptr) return NotFound(path() + ": no tensor '" + std::string(name) + "'");
  if (tensor->dtype != TensorDtype::kF32 || tensor->bytes() != out.size_bytes()) {
    return InvalidArgument(path() + ": tensor '" + std::string(name) + "' is " +
                           std::string(TensorDtypeName(tensor->dtype)) + " of " +
                           std::to_string(tensor->count()) + " elements, expected F32 of " +
                           std::to_string(out.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), Data(*tensor).data(), out.size_bytes());
  return OkStatus();
}

SafetensorsWriter::SafetensorsWriter(std::string path, Fd fd, uint64_t data_bytes)
    : path_(std::move(path)), fd_(std::move(fd)), remaining_bytes_(data_bytes) {}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                    const std::vector<TensorDeclaration>& tensors,
                                                    const SafetensorsMetadata& metadata) {
  uint64_t data_bytes = 0;
  auto header = MakeHeader(tensors, metadata, &data_bytes);
  if (!header) return Err({header.error().code(), path + ": " + header.error().message()});
  SLACKLINE_ASSIGN_OR_RETURN(Fd fd, OpenForWriting(path));
  SafetensorsWriter writer(path, std::move(fd), data_bytes);
  SLACKLINE_RETURN_ERR_IF_ERROR(writer.Write(std::as_bytes(std::span(*header))));
  return writer;
}

Status SafetensorsWriter::Write(ConstBytes bytes) {
  SLACKLINE_RETURN_IF_ERROR(WriteAll(fd_, bytes, path_));
  hash_.Update(bytes);
  written_bytes_ += bytes.size();
  return OkStatus();
}

Status SafetensorsWriter::Append(ConstBytes bytes) {
  if (bytes.size() > remaining_bytes_) {
    return InvalidArgument(path_ + ": " + std::to_string(bytes.size()) +
                           " bytes appended, the declared tensors lack only " +
                           std::to_string(remaining_bytes_));
  }
  remaining_bytes_ -= bytes.size();
  return Write(bytes);
}

Result<FileDigest> SafetensorsWriter::Finish() {
  if (remaining_bytes_ != 0) {
    return Err(FailedPrecondition(path_ + ": finished with " + std::to_string(remaining_bytes_) +
                                  " bytes of declared tensors missing"));
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(SyncFile(fd_, path_));
  SLACKLINE_RETURN_ERR_IF_ERROR(fd_.Close(path_));
  return FileDigest{written_bytes_, hash_.Digest()};
}

}  // namespace slackline
