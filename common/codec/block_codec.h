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

struct BlockFormatKernels;

class BlockCodec final : public ResidualCodec {
 public:
  enum class Rounding : uint8_t { kNearest, kStochastic };
  // `block` is a power of two from kMinBlock to kMaxBlock, kStochastic only for kInt8 and kInt4
  // (see MakeResidualCodec, which checks). `name` lives for ever.
  BlockCodec(CodecId id, std::string_view name, size_t block, Rounding rounding);

  CodecId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  size_t EncodedBytes(size_t count) const override;
  EncodeStats EncodeResidual(const float* in, size_t count, float scale, const float* residual,
                             float* next_residual, const EncodeIdentity& identity,
                             std::byte* out) const override;
  // The same with a seed, and with the largest magnitude of each block given unless `largest` is
  // null: for kSharedScale8, which cuts off what is above.
  EncodeStats EncodeBlocks(const float* in, size_t count, float scale, const float* residual,
                           float* next_residual, uint64_t seed, const float* largest,
                           std::byte* out) const;
  // The largest magnitude of each block, one a block, as EncodeBlocks finds it.
  void FindLargest(const float* in, size_t count, float scale, const float* residual,
                   float* largest) const;
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
  const BlockFormatKernels& Kernels() const;
  // Calls visit(block index, real values, values, residual or null, place for what is lost) with
  // whole blocks: a short last one is padded with zeros.
  template <class Visit>
  void ForEachBlock(const float* in, size_t count, const float* residual, float* next_residual,
                    const Visit& visit) const;
  void DecodeBlocks(const std::byte* in, size_t count, float scale, bool add, float* out) const;

  const CodecId id_;
  const std::string_view name_;
  const size_t block_;
  const Rounding rounding_;
  const size_t bits_;  // Of a code.
};

}  // namespace slackline
