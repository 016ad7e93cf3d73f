// How a job's chunks travel in one direction: which codec each part of a chunk has, at both ends
// the same, out of the job and the shard map alone.
//
// With a dense codec (fp32, fp16, bf16) a chunk is its values end to end. With one that has a
// residual, every tensor's part of the chunk is encoded for itself, and tensors with fewer than
// `min_elements` elements (biases, norms), where there is little to save and much to lose, travel
// as fp16; neighbouring ones are one part. Parts lie one behind the other, padded to 4 bytes.
// Threading: immutable. Nothing but Create and the constructors allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/residual_codec.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline {

struct CodecRule {
  std::string name = "fp32";  // Of a dense codec, or one of ResidualCodecNames().
  size_t block = 0;           // As ResidualCodecOptions; not used by topk and randk.
  double fraction = 0.01;     // topk, randk; at last.
  bool stochastic = false;    // int8, int4.
  bool int8_values = false;   // topk, randk.
  // topk, randk: clocks in which the fraction falls to its last value, by fours from 1/4 (Lin et
  // al., "Deep gradient compression", ICLR 2018, section 3.3), each for as many clocks.
  Clock warmup_clocks = 0;
  uint64_t min_elements = 0;
};

class CodecPlan {
 public:
  // InvalidArgument names the setting, its value and what was expected.
  static Result<CodecPlan> Create(const CodecRule& rule);

  // The codec of all values; null: it is coded(), or fp16 for small tensors.
  const Codec* dense() const { return dense_; }
  const ResidualCodec& coded(size_t stage) const { return *stages_[stage]; }
  // Of the warm-up; 1 when there is none.
  size_t stage_count() const { return dense_ != nullptr ? 1 : stages_.size(); }
  size_t StageOf(Clock clock) const;
  bool IsSmall(uint64_t tensor_elements) const { return tensor_elements < min_elements_; }

 private:
  const Codec* dense_ = nullptr;
  std::vector<std::unique_ptr<const ResidualCodec>> stages_;
  Clock stage_clocks_ = 0;
  uint64_t min_elements_ = 0;
};

// A tensor's part of a chunk.
struct TensorPart {
  size_t count = 0;              // Elements of it in the chunk.
  uint64_t tensor_elements = 0;  // Of the whole tensor.
};

// Why a payload is refused.
struct PayloadFault {
  enum class Kind : uint8_t { kNone, kMalformed, kNotFinite } kind = Kind::kNone;
  size_t element = 0;   // Of the chunk, where it begins.
  std::string message;  // kMalformed: what was found and what was expected.
};

// The codec of one chunk. `clock` is the push's, and matters to a fraction that warms up. A loss
// scale stands inside the values of dense parts; coded ones carry scales of their own.
class ChunkCodec {
 public:
  ChunkCodec() = default;
  // `parts` tile the chunk in order. The plan must outlive this.
  ChunkCodec(const CodecPlan& plan, const std::vector<TensorPart>& parts);

  // The number in a message's header.
  CodecId id() const { return id_; }
  size_t count() const { return count_; }
  // If the payload is nothing but values of one dense codec; else null.
  const Codec* dense() const { return parts_.size() == 1 ? parts_.front().dense : nullptr; }
  size_t EncodedBytes(Clock clock = 0) const { return bytes_[plan_->StageOf(clock)]; }
  size_t MaxEncodedBytes() const;

  // Encodes `in`, which holds the gradient times loss_scale; `out` holds EncodedBytes(clock) bytes,
  // aligned to 4. The identity's part is set here. Where the plan has a residual, `residual` is
  // `count` floats, without loss scale: what earlier pushes dropped goes along, and what this one
  // drops is there afterwards. So the residual belongs to what `out` holds from here on; TakeBack
  // undoes that.
  EncodeStats Encode(const float* in, float loss_scale, EncodeIdentity identity, float* residual,
                     std::byte* out) const;
  // The same with momentum at the worker (common/codec/momentum.h): `velocity` is `count` floats
  // like the residual, which must be there. A push that is taken back leaves the velocity as it is.
  EncodeStats EncodeWithMomentum(const float* in, float loss_scale, float momentum,
                                 const EncodeIdentity& identity, float* residual, float* velocity,
                                 std::byte* out) const;
  // A push of these bytes was given up: what it carried is added to the residual.
  void TakeBack(const std::byte* payload, float loss_scale, Clock clock, float* residual) const;

  // Checks a peer's bytes whole: size, form, and that every value is finite once the loss scale is
  // taken out.
  PayloadFault Validate(ConstBytes in, float loss_scale, Clock clock) const;
  // Of valid bytes, without the loss scale; out[i] is set, or added to.
  void Decode(const std::byte* in, float loss_scale, Clock clock, float* out) const;
  void DecodeAdd(const std::byte* in, float loss_scale, Clock clock, float* out) const;

 private:
  struct Part {
    size_t offset = 0;  // In the chunk.
    size_t count = 0;
    const Codec* dense = nullptr;  // Null: the plan's coded().
  };
  // Encodes in * in_scale; where `velocity` is not null, zeroes it where a value was sent.
  EncodeStats EncodeParts(const float* in, float in_scale, float loss_scale,
                          EncodeIdentity identity, float* residual, float* velocity,
                          std::byte* out) const;
  const Codec& CodecOf(const Part& part, size_t stage) const;
  size_t PartBytes(const Part& part, size_t stage) const;  // With the padding behind it.
  // Calls visit(part, codec, offset in bytes) for every part.
  template <typename Visit>
  void ForEach(Clock clock, Visit visit) const;

  const CodecPlan* plan_ = nullptr;
  CodecId id_ = CodecId::kNone;
  size_t count_ = 0;
  std::vector<Part> parts_;
  std::vector<size_t> bytes_;  // By stage.
};

}  // namespace slackline
