#include "common/codec/payload_header.h"

#include <bit>
#include <sstream>

#include "common/byte_order.h"

namespace slackline {
namespace {

namespace at {
constexpr size_t kCodec = 0;
constexpr size_t kVersion = 1;
constexpr size_t kShape = 2;
constexpr size_t kValues = 3;
constexpr size_t kCount = 4;
constexpr size_t kKept = 8;
constexpr size_t kScale = 12;
}  // namespace at

Status Mismatch(std::string_view codec, std::string_view field, uint64_t found, uint64_t expected) {
  std::ostringstream message;
  message << codec << " payload has " << field << " " << found << ", expected " << expected;
  return InvalidArgument(message.str());
}

}  // namespace

void StorePayloadHeader(const PayloadHeader& header, std::byte* out) {
  StoreLe<uint8_t>(out + at::kCodec, static_cast<uint8_t>(header.codec));
  StoreLe<uint8_t>(out + at::kVersion, kPayloadVersion);
  StoreLe<uint8_t>(out + at::kShape, header.shape);
  StoreLe<uint8_t>(out + at::kValues, static_cast<uint8_t>(header.values));
  StoreLe<uint32_t>(out + at::kCount, header.count);
  StoreLe<uint32_t>(out + at::kKept, header.kept);
  StoreLe<uint32_t>(out + at::kScale, std::bit_cast<uint32_t>(header.scale));
}

float PayloadScale(const std::byte* in) {
  return std::bit_cast<float>(LoadLe<uint32_t>(in + at::kScale));
}

Status CheckPayloadHeader(ConstBytes in, const PayloadHeader& expected, size_t bytes,
                          std::string_view codec_name) {
  if (in.size() != bytes) return Mismatch(codec_name, "size", in.size(), bytes);
  const struct {
    std::string_view name;
    uint64_t found;
    uint64_t expected;
  } fields[] = {
      {"codec", LoadLe<uint8_t>(&in[at::kCodec]), static_cast<uint8_t>(expected.codec)},
      {"version", LoadLe<uint8_t>(&in[at::kVersion]), kPayloadVersion},
      {"shape", LoadLe<uint8_t>(&in[at::kShape]), expected.shape},
      {"value format", LoadLe<uint8_t>(&in[at::kValues]), static_cast<uint8_t>(expected.values)},
      {"count", LoadLe<uint32_t>(&in[at::kCount]), expected.count},
      {"kept values", LoadLe<uint32_t>(&in[at::kKept]), expected.kept},
  };
  for (const auto& field : fields) {
    if (field.found != field.expected) {
      return Mismatch(codec_name, field.name, field.found, field.expected);
    }
  }
  return OkStatus();
}

}  // namespace slackline
