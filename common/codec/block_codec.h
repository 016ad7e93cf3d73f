// The codecs whose values share a scale by block: int8, int4, fp8 and onebit.
//
// Payload: the header, a FP32 scale for every block, then the codes of 8, 4 or 1 bits, packed.
// Threading: immutable. Errors: see Codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/codec/payload_header.h"
#include "common/codec/residual_codec.h"

namespace slackline {

class BlockCodec final : public ResidualCodec {
 public:
  // `block` is a power of two from kMinBlock to kMaxBlock, `stochastic` only for kInt8 and kInt4
  // (see MakeResidualCodec, which checks). `name` lives for ever.
  BlockCodec(CodecId id, std::string_view name, size_t block, bool stochastic);

  CodecId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  size_t EncodedBytes(size_t count) const override;
  EncodeStats EncodeResidual(const float* in, size_t count, float scale, const float* residual,
                             float* next_residual, const EncodeIdentity& identity,
                             std::byte* out) const override;
  void ClearSent(const std::byte* /*payload*/, size_t /*count*/, float* /*values*/) const override {
  }
  Status Validate(ConstBytes in, size_t count) const override;
  void Decode(const std::byte* in, size_t count, float scale, float* out) const override;
  void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const override;

 private:
  PayloadHeader Header(size_t count) const;
  size_t Blocks(size_t count) const { return (count + block_ - 1) / block_; }
  size_t CodeBytes(size_t count) const { return (count * bits_ + 7) / 8; }
  size_t CodesOffset(size_t count) const;
  void DecodeBlocks(const std::byte* in, size_t count, float scale, bool add, float* out) const;

  const CodecId id_;
  const std::string_view name_;
  const size_t block_;
  const bool stochastic_;
  const size_t bits_;  // Of a code.
};

}  // namespace slackline
