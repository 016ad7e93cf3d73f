// The 16 bytes in front of the payload of every ResidualCodec: what the bytes are, checked against
// what the receiver expects. The layout is written down in docs/wire_format.md.
// Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline {

inline constexpr size_t kPayloadHeaderBytes = 16;
inline constexpr uint8_t kPayloadVersion = 1;

// What the values that a selecting codec sends are coded as.
enum class ValueFormat : uint8_t { kFp16 = 0, kInt8 = 1 };

struct PayloadHeader {
  CodecId codec = CodecId::kNone;
  uint8_t shape = 0;  // By block: log2 of the block. topk: low bits of an index.
  ValueFormat values = ValueFormat::kFp16;  // topk, randk. Others: 0.
  uint32_t count = 0;                       // Values behind the payload.
  uint32_t kept = 0;                        // topk, randk: values in the payload. Others: 0.
  float scale = 0;                          // topk, randk: of their values. Others: 0.
};

// `out` holds kPayloadHeaderBytes bytes.
void StorePayloadHeader(const PayloadHeader& header, std::byte* out);

// The scale field. `in` holds a header.
float PayloadScale(const std::byte* in);

// Whether `in` has exactly `bytes` bytes (>= kPayloadHeaderBytes) and begins with `expected`; the
// scale is not compared. InvalidArgument names the field, what it is and what was expected.
Status CheckPayloadHeader(ConstBytes in, const PayloadHeader& expected, size_t bytes,
                          std::string_view codec_name);

}  // namespace slackline
