#include "common/codec/block_codec.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <sstream>

#include "common/byte_order.h"
#include "common/codec/arithmetic.h"
#include "common/codec/block_kernels.h"

namespace slackline {
namespace {

constexpr size_t kScaleBytes = sizeof(uint32_t);

size_t BitsOf(CodecId id) {
  switch (id) {
    case CodecId::kInt8:
    case CodecId::kSharedScale8:
    case CodecId::kFp8E4M3:
    case CodecId::kFp8E5M2:
      return 8;
    case CodecId::kInt4:
      return 4;
    case CodecId::kOneBit:
      return 1;
    default:
      LOG(FATAL) << "codec " << static_cast<int>(id) << " has no blocks";
      return 0;
  }
}

// The largest code without its sign that is a finite value; 0x7F when all are.
uint8_t LargestCodeOf(CodecId id) {
  if (id == CodecId::kFp8E4M3) return E4M3::kLargestCode;
  return id == CodecId::kFp8E5M2 ? E5M2::kLargestCode : 0x7F;
}

}  // namespace

BlockCodec::BlockCodec(CodecId id, std::string_view name, size_t block, Rounding rounding)
    : id_(id), name_(name), block_(block), rounding_(rounding), bits_(BitsOf(id)) {
  CHECK(std::has_single_bit(block) && block >= kMinBlock && block <= kMaxBlock) << block;
}

const BlockFormatKernels& BlockCodec::Kernels() const {
  const BlockKernels& kernels = GetBlockKernels();
  const bool stochastic = rounding_ == Rounding::kStochastic;
  switch (id_) {
    case CodecId::kInt8:
      return stochastic ? kernels.int8_stochastic : kernels.int8;
    case CodecId::kInt4:
      return stochastic ? kernels.int4_stochastic : kernels.int4;
    case CodecId::kSharedScale8:
      return kernels.int8_limited;
    case CodecId::kFp8E4M3:
      return kernels.fp8_e4m3;
    case CodecId::kFp8E5M2:
      return kernels.fp8_e5m2;
    default:
      return kernels.onebit;
  }
}

PayloadHeader BlockCodec::Header(size_t count) const {
  return {.codec = id_,
          .shape = static_cast<uint8_t>(std::countr_zero(block_)),
          .count = static_cast<uint32_t>(count)};
}

size_t BlockCodec::CodesOffset(size_t count) const {
  return kPayloadHeaderBytes + Blocks(count) * kScaleBytes;
}

size_t BlockCodec::EncodedBytes(size_t count) const {
  return CodesOffset(count) + CodeBytes(count);
}

EncodeStats BlockCodec::EncodeResidual(const float* in, size_t count, float scale,
                                       const float* residual, float* next_residual,
                                       const EncodeIdentity& identity, std::byte* out) const {
  const uint64_t seed = rounding_ == Rounding::kStochastic ? identity.Seed() : 0;
  return EncodeBlocks(in, count, scale, residual, next_residual, seed, nullptr, out);
}

template <class Visit>
void BlockCodec::ForEachBlock(const float* in, size_t count, const float* residual,
                              float* next_residual, const Visit& visit) const {
  alignas(64) float tile[kMaxBlock];
  const size_t whole = count / block_ * block_;
  for (size_t i = 0; i < whole; i += block_) {
    visit(i / block_, block_, in + i, residual == nullptr ? nullptr : residual + i,
          next_residual == nullptr ? tile : next_residual + i);
  }
  if (whole == count) return;

  const size_t rest = count - whole;
  alignas(64) float padded[kMaxBlock];
  std::fill(std::copy_n(in + whole, rest, padded), padded + block_, 0.0f);
  const float* kept = nullptr;
  if (residual != nullptr) {
    std::fill(std::copy_n(residual + whole, rest, tile), tile + block_, 0.0f);
    kept = tile;
  }
  visit(whole / block_, rest, padded, kept, tile);
  if (next_residual != nullptr) std::copy_n(tile, rest, next_residual + whole);
}

EncodeStats BlockCodec::EncodeBlocks(const float* in, size_t count, float scale,
                                     const float* residual, float* next_residual, uint64_t seed,
                                     const float* largest, std::byte* out) const {
  CHECK_LE(count, kMaxCodedValues);
  StorePayloadHeader(Header(count), out);
  const BlockKernels& kernels = GetBlockKernels();
  const BlockFormatKernels& format = Kernels();
  std::byte* const scales = out + kPayloadHeaderBytes;
  std::byte* const codes = out + CodesOffset(count);
  const size_t block_bytes = CodeBytes(block_);
  EncodeStats stats;
  ForEachBlock(in, count, residual, next_residual,
               [&](size_t index, size_t n, const float* from, const float* kept, float* values) {
                 const float found = kernels.load(from, kept, block_, scale, values, &stats);
                 const BlockValues block = {.values = values,
                                            .block = block_,
                                            .count = n,
                                            .largest = largest == nullptr ? found : largest[index],
                                            .seed = seed,
                                            .first = static_cast<uint32_t>(index * block_)};
                 std::byte last[kMaxBlock];  // The codes of a short block end before its padding's.
                 std::byte* to = codes + index * block_bytes;
                 const float block_scale = format.encode(block, n == block_ ? to : last);
                 if (n != block_) std::copy_n(last, CodeBytes(n), to);
                 StoreLe<uint32_t>(scales + index * kScaleBytes,
                                   std::bit_cast<uint32_t>(block_scale));
               });
  return stats;
}

void BlockCodec::FindLargest(const float* in, size_t count, float scale, const float* residual,
                             float* largest) const {
  const BlockKernels& kernels = GetBlockKernels();
  EncodeStats not_counted;
  ForEachBlock(in, count, residual, nullptr,
               [&](size_t index, size_t /*n*/, const float* from, const float* kept, float* tile) {
                 largest[index] = kernels.load(from, kept, block_, scale, tile, &not_counted);
               });
}

Status BlockCodec::Validate(ConstBytes in, size_t count) const {
  std::ostringstream message;
  if (count > kMaxCodedValues) {
    message << name_ << " payload of " << count << " values, expected " << kMaxCodedValues
            << " at most";
    return InvalidArgument(message.str());
  }
  SLACKLINE_RETURN_IF_ERROR(CheckPayloadHeader(in, Header(count), EncodedBytes(count), name_));
  const auto refuse = [&](std::string_view what, size_t index) {
    message << name_ << " payload has " << what << " at index " << index << " of " << count;
    return InvalidArgument(message.str());
  };
  if (std::bit_cast<uint32_t>(PayloadScale(in.data())) != 0) {
    return refuse("a scale in the header, expected zero,", 0);
  }
  for (size_t block = 0; block < Blocks(count); ++block) {
    // As unsigned numbers: negative floats, infinities and NaN have larger bits than any scale.
    const auto bits = LoadLe<uint32_t>(&in[kPayloadHeaderBytes + block * kScaleBytes]);
    if (bits > std::bit_cast<uint32_t>(kLargestCoded)) {
      return refuse("a scale that is not finite, negative or too large", block * block_);
    }
  }
  if (const uint8_t limit = LargestCodeOf(id_); limit != 0x7F) {
    const size_t index = GetBlockKernels().first_above(&in[CodesOffset(count)], count, limit);
    if (index != count) return refuse("a value that is not finite", index);
  }
  // Unused bits of the last byte are zero, so that equal values have equal bytes.
  const size_t used = count * bits_ % 8;
  if (used != 0 && std::to_integer<uint32_t>(in.back()) >> used != 0) {
    return refuse("bits after the last value", count);
  }
  return OkStatus();
}

void BlockCodec::Decode(const std::byte* in, size_t count, float scale, float* out) const {
  DecodeBlocks(in, count, scale, false, out);
}

void BlockCodec::DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const {
  DecodeBlocks(in, count, scale, true, out);
}

void BlockCodec::DecodeBlocks(const std::byte* in, size_t count, float scale, bool add,
                              float* out) const {
  const BlockFormatKernels& format = Kernels();
  const auto decode = add ? format.decode_add : format.decode;
  const std::byte* scales = in + kPayloadHeaderBytes;
  const std::byte* codes = in + CodesOffset(count);
  const size_t block_bytes = CodeBytes(block_);
  const size_t whole = count / block_ * block_;
  const auto factor = [&](size_t block) {
    return std::bit_cast<float>(LoadLe<uint32_t>(scales + block * kScaleBytes)) * scale;
  };
  for (size_t i = 0; i < whole; i += block_, codes += block_bytes) {
    decode(codes, block_, factor(i / block_), out + i);
  }
  if (whole == count) return;

  const size_t rest = count - whole;
  std::byte last[kMaxBlock] = {};
  alignas(64) float tile[kMaxBlock];
  std::copy_n(codes, CodeBytes(rest), last);
  std::fill(std::copy_n(out + whole, rest, tile), tile + block_, 0.0f);
  decode(last, block_, factor(whole / block_), tile);
  std::copy_n(tile, rest, out + whole);
}

}  // namespace slackline
