#include "common/codec/codec.h"

#include <array>
#include <sstream>

#include "common/codec/dense_kernels.h"

namespace slackline {
namespace {

using KernelsFunction = const DenseKernels& (*)();

// A codec whose values are all of one size and independent of each other.
class DenseCodec final : public Codec {
 public:
  constexpr DenseCodec(CodecId id, std::string_view name, size_t value_bytes,
                       KernelsFunction kernels)
      : id_(id), name_(name), value_bytes_(value_bytes), kernels_(kernels) {}

  CodecId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  size_t EncodedBytes(size_t count) const override { return count * value_bytes_; }

  EncodeStats Encode(const float* in, size_t count, float scale, std::byte* out) const override {
    return kernels_().encode(in, count, scale, out);
  }

  Status Validate(ConstBytes in, size_t count) const override {
    // Divides rather than multiplies: no count can make it overflow.
    if (in.size() % value_bytes_ != 0 || in.size() / value_bytes_ != count) {
      std::ostringstream message;
      message << name_ << " payload has " << in.size() << " bytes, expected " << value_bytes_
              << " for each of " << count << " values";
      return InvalidArgument(message.str());
    }
    const size_t index = kernels_().first_non_finite(in.data(), count);
    if (index == count) return OkStatus();
    std::ostringstream message;
    message << name_ << " payload has a value that is not finite at index " << index << " of "
            << count;
    return InvalidArgument(message.str());
  }

  void Decode(const std::byte* in, size_t count, float scale, float* out) const override {
    kernels_().decode(in, count, scale, out);
  }
  void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const override {
    kernels_().decode_add(in, count, scale, out);
  }

 private:
  const CodecId id_;
  const std::string_view name_;
  const size_t value_bytes_;
  const KernelsFunction kernels_;
};

const std::array<const Codec*, 3>& AllCodecs() {
  static const DenseCodec fp32(CodecId::kFp32, "fp32", 4, Fp32Kernels);
  static const DenseCodec fp16(CodecId::kFp16, "fp16", 2, Fp16Kernels);
  static const DenseCodec bf16(CodecId::kBf16, "bf16", 2, Bf16Kernels);
  static const std::array<const Codec*, 3> all = {&fp32, &fp16, &bf16};
  return all;
}

}  // namespace

const Codec* FindCodec(CodecId id) {
  for (const Codec* codec : AllCodecs()) {
    if (codec->id() == id) return codec;
  }
  return nullptr;
}

const Codec* FindCodec(std::string_view name) {
  for (const Codec* codec : AllCodecs()) {
    if (codec->name() == name) return codec;
  }
  return nullptr;
}

std::string_view CodecNames() { return "fp32, fp16, bf16"; }

}  // namespace slackline
