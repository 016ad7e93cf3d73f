#include "common/codec/residual_codec.h"

#include <array>
#include <bit>
#include <sstream>

#include "common/codec/block_codec.h"
#include "common/codec/randk_codec.h"
#include "common/codec/topk_codec.h"
#include "common/random.h"

namespace slackline {
namespace {

struct Kind {
  std::string_view name;
  CodecId id;
  size_t block;  // The default; 0 for codecs without blocks.
  bool may_be_stochastic;
};

constexpr std::array<Kind, 7> kKinds = {{
    {"int8", CodecId::kInt8, 256, true},
    {"int4", CodecId::kInt4, 256, true},
    {"fp8_e4m3", CodecId::kFp8E4M3, 256, false},
    {"fp8_e5m2", CodecId::kFp8E5M2, 256, false},
    {"onebit", CodecId::kOneBit, 1024, false},
    {"topk", CodecId::kTopK, 0, false},
    {"randk", CodecId::kRandK, 0, false},
}};

// Why the options do not fit the kind; OK if they do.
Status Check(const Kind& kind, const ResidualCodecOptions& options) {
  std::ostringstream message;
  message << kind.name;
  const bool selects = kind.block == 0;
  if (options.stochastic && !kind.may_be_stochastic) {
    message << " has no stochastic rounding, expected it with int8 or int4 only";
  } else if (options.int8_values && !selects) {
    message << " has no values of their own format, expected that with topk or randk only";
  } else if (!selects && options.block != 0 &&
             (!std::has_single_bit(options.block) || options.block < kMinBlock ||
              options.block > kMaxBlock)) {
    message << " block is " << options.block << ", expected a power of two from " << kMinBlock
            << " to " << kMaxBlock;
  } else if (selects && !(options.fraction > 0 && options.fraction <= 1)) {  // NaN too.
    message << " fraction is " << options.fraction << ", expected above 0 and at most 1";
  } else if (selects && options.block != 0) {
    message << " block is " << options.block << ", expected 0: " << kind.name << " has no blocks";
  } else {
    return OkStatus();
  }
  return InvalidArgument(message.str());
}

}  // namespace

uint64_t EncodeIdentity::Seed() const { return Mix64(SharedSeed() ^ Mix64(worker + 1)); }

uint64_t EncodeIdentity::SharedSeed() const {
  return Mix64(Mix64(static_cast<uint64_t>(clock)) + (uint64_t{part} << 32 | chunk));
}

Result<std::unique_ptr<const ResidualCodec>> MakeResidualCodec(
    const ResidualCodecOptions& options) {
  for (const Kind& kind : kKinds) {
    if (kind.name != options.name) continue;
    SLACKLINE_RETURN_ERR_IF_ERROR(Check(kind, options));
    const ValueFormat values = options.int8_values ? ValueFormat::kInt8 : ValueFormat::kFp16;
    std::unique_ptr<const ResidualCodec> codec;
    if (kind.id == CodecId::kTopK) {
      codec = std::make_unique<const TopKCodec>(options.fraction, values);
    } else if (kind.id == CodecId::kRandK) {
      codec = std::make_unique<const RandKCodec>(options.fraction, values, options.error_feedback);
    } else {
      const size_t block = options.block == 0 ? kind.block : options.block;
      const auto rounding =
          options.stochastic ? BlockCodec::Rounding::kStochastic : BlockCodec::Rounding::kNearest;
      codec = std::make_unique<const BlockCodec>(kind.id, kind.name, block, rounding);
    }
    return codec;
  }
  std::ostringstream message;
  message << "codec '" << options.name << "' is unknown, expected one of " << ResidualCodecNames();
  return Err(InvalidArgument(message.str()));
}

std::string_view ResidualCodecNames() {
  return "int8, int4, fp8_e4m3, fp8_e5m2, onebit, topk, randk";
}

}  // namespace slackline
