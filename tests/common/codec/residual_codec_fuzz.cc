// Any bytes are refused or decode to finite values, within the count, by every codec. The first two
// bytes of an input choose the codec and the count; the rest is the payload.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/residual_codec.h"
#include "common/codec/shared_scale_codec.h"
#include "tests/testing/fuzz_expect.h"

namespace {

using slackline::testing::FuzzExpect;

std::unique_ptr<const slackline::ResidualCodec> Make(slackline::ResidualCodecOptions options) {
  auto codec = slackline::MakeResidualCodec(options);
  FuzzExpect(codec.has_value(), "the options of the target are good");
  return std::move(*codec);
}

const slackline::Codec& ChooseCodec(uint8_t choice) {
  static const auto int8 = Make({.name = "int8", .block = 32});
  static const auto int4 = Make({.name = "int4", .block = 32});
  static const auto onebit = Make({.name = "onebit", .block = 64});
  static const auto sparse = Make({.name = "topk", .fraction = 0.1});
  static const auto all = Make({.name = "topk", .fraction = 1});
  static const auto e4m3 = Make({.name = "fp8_e4m3", .block = 32});
  static const auto e5m2 = Make({.name = "fp8_e5m2", .block = 32});
  static const auto topk_int8 = Make({.name = "topk", .fraction = 0.1, .int8_values = true});
  static const auto randk = Make({.name = "randk", .fraction = 0.2});
  static const slackline::SharedScaleCodec shared(32);
  static const auto randk_int8 = Make({.name = "randk", .fraction = 1, .int8_values = true});
  const std::array<const slackline::Codec*, 14> codecs = {
      int8.get(),
      int4.get(),
      onebit.get(),
      sparse.get(),
      all.get(),
      slackline::FindCodec(slackline::CodecId::kFp32),
      slackline::FindCodec(slackline::CodecId::kFp16),
      slackline::FindCodec(slackline::CodecId::kBf16),
      e4m3.get(),
      e5m2.get(),
      topk_int8.get(),
      randk.get(),
      randk_int8.get(),
      &shared};
  return *codecs[choice % codecs.size()];
}

void DecodeAndCheck(const slackline::Codec& codec, std::span<const uint8_t> bytes, size_t count) {
  // A copy of the exact size, aligned as payloads are: reading past its end is seen.
  const std::vector<std::byte> payload(std::as_bytes(bytes).begin(), std::as_bytes(bytes).end());
  const slackline::Status status = codec.Validate(payload, count);
  if (!status.ok()) {
    FuzzExpect(status.code() == slackline::StatusCode::kInvalidArgument, "a refusal's code");
    FuzzExpect(!status.message().empty(), "a refusal says why");
    return;
  }
  FuzzExpect(payload.size() == codec.EncodedBytes(count), "the size is the expected one");
  std::vector<float> decoded(count);
  std::vector<float> added(count);
  codec.Decode(payload.data(), count, 1, decoded.data());
  codec.DecodeAdd(payload.data(), count, 1, added.data());
  for (size_t i = 0; i < count; ++i) {
    FuzzExpect(std::isfinite(decoded[i]), "decoded values are finite");
    FuzzExpect(decoded[i] == added[i], "adding to zero is decoding");
  }
}

// Any floats are encoded to what the codec itself accepts.
void EncodeAndCheck(const slackline::Codec& codec, std::span<const uint8_t> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    std::copy_n(bytes.data() + i * sizeof(float), sizeof(float),
                reinterpret_cast<uint8_t*>(&values[i]));
  }
  std::vector<std::byte> payload(codec.EncodedBytes(values.size()));
  codec.Encode(values.data(), values.size(), 1, payload.data());
  FuzzExpect(codec.Validate(payload, values.size()).ok(), "what was encoded is valid");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const slackline::Codec& codec = ChooseCodec(data[0]);
  const std::span<const uint8_t> rest(data + 2, size - 2);
  DecodeAndCheck(codec, rest, data[1]);
  EncodeAndCheck(codec, rest);
  return 0;
}
