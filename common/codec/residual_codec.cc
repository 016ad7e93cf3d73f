#include "common/codec/residual_codec.h"

#include <bit>
#include <sstream>

#include "common/codec/block_codec.h"
#include "common/codec/topk_codec.h"

namespace slackline {
namespace {

Result<std::unique_ptr<const ResidualCodec>> MakeBlockCodec(CodecId id, std::string_view name,
                                                            size_t block) {
  if (!std::has_single_bit(block) || block < kMinBlock || block > kMaxBlock) {
    std::ostringstream message;
    message << name << " block is " << block << ", expected a power of two from " << kMinBlock
            << " to " << kMaxBlock;
    return Err(InvalidArgument(message.str()));
  }
  return std::make_unique<const BlockCodec>(id, name, block);
}

}  // namespace

Result<std::unique_ptr<const ResidualCodec>> MakeResidualCodec(
    const ResidualCodecOptions& options) {
  const auto block_or = [&](size_t otherwise) {
    return options.block == 0 ? otherwise : options.block;
  };
  if (options.name == "int8") return MakeBlockCodec(CodecId::kInt8, "int8", block_or(256));
  if (options.name == "int4") return MakeBlockCodec(CodecId::kInt4, "int4", block_or(256));
  if (options.name == "onebit") return MakeBlockCodec(CodecId::kOneBit, "onebit", block_or(1024));
  std::ostringstream message;
  if (options.name != "topk") {
    message << "codec '" << options.name << "' is unknown, expected one of "
            << ResidualCodecNames();
    return Err(InvalidArgument(message.str()));
  }
  // Not (in range), so that NaN is refused too.
  if (!(options.fraction > 0 && options.fraction <= 1)) {
    message << "topk fraction is " << options.fraction << ", expected above 0 and at most 1";
    return Err(InvalidArgument(message.str()));
  }
  if (options.block != 0) {
    message << "topk block is " << options.block << ", expected 0: topk has no blocks";
    return Err(InvalidArgument(message.str()));
  }
  return std::make_unique<const TopKCodec>(options.fraction);
}

std::string_view ResidualCodecNames() { return "int8, int4, onebit, topk"; }

}  // namespace slackline
