// The codecs with a residual, one value at a time in plain C++: the oracle that tests hold the SIMD
// kernels and the packing to, bit for bit. Not for the data path. Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/payload_header.h"

namespace slackline::reference {

// What a codec makes of values: the bytes of its payload, what they decode to (scale 1), what is
// left, and the counts of EncodeStats.
struct Encoded {
  std::vector<std::byte> payload;
  std::vector<float> decoded;
  std::vector<float> residual;
  EncodeStats stats;
};

// As ResidualCodec::EncodeResidual; `residual` is empty or as long as `in`. A seed means stochastic
// rounding.
Encoded EncodeByBlock(CodecId codec, size_t block, std::optional<uint64_t> seed,
                      std::span<const float> in, float scale, std::span<const float> residual);
Encoded EncodeTopK(size_t kept, ValueFormat format, std::span<const float> in, float scale,
                   std::span<const float> residual);
// `factor` is 1 with error feedback, else count / kept, and then there is no residual.
Encoded EncodeRandK(size_t kept, ValueFormat format, float factor, uint64_t seed,
                    std::span<const float> in, float scale, std::span<const float> residual);

}  // namespace slackline::reference
