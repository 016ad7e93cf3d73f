#include "common/codec/index_coding.h"

#include <bit>
#include <cstring>

namespace slackline {
namespace {

// Bits [bit, bit + width) of an array, least significant first; width <= 28.
uint32_t ReadBits(const std::byte* in, size_t bit, uint32_t width) {
  uint64_t value = 0;
  const size_t first = bit / 8;
  const size_t end = (bit + width + 7) / 8;
  for (size_t i = first; i < end; ++i) {
    value |= std::to_integer<uint64_t>(in[i]) << (8 * (i - first));
  }
  return static_cast<uint32_t>(value >> (bit % 8)) & ((1u << width) - 1);
}

// The array's bits are zero there.
void WriteBits(std::byte* out, size_t bit, uint32_t width, uint32_t value) {
  uint64_t shifted = static_cast<uint64_t>(value) << (bit % 8);
  for (size_t i = bit / 8; i < (bit + width + 7) / 8; ++i, shifted >>= 8) {
    out[i] |= static_cast<std::byte>(shifted & 0xFF);
  }
}

bool BitsAreZeroFrom(const std::byte* in, size_t bit) {
  return bit % 8 == 0 || std::to_integer<uint32_t>(in[bit / 8]) >> (bit % 8) == 0;
}

}  // namespace

IndexLayout::IndexLayout(size_t count, size_t kept)
    : count(count),
      kept(kept),
      low_bits(kept == 0 ? 0 : static_cast<uint32_t>(std::bit_width(count / kept)) - 1),
      low_bytes((kept * low_bits + 7) / 8),
      high_bits(kept == 0 ? 0 : kept + ((count - 1) >> low_bits)),
      bytes(low_bytes + (high_bits + 7) / 8) {}

IndexWriter::IndexWriter(const IndexLayout& layout, std::byte* out)
    : layout_(layout), low_(out), high_(out + layout.low_bytes) {
  if (layout.bytes != 0) std::memset(out, 0, layout.bytes);
}

void IndexWriter::Add(uint32_t index) {
  const uint32_t low = index & ((1u << layout_.low_bits) - 1);
  WriteBits(low_, added_ * layout_.low_bits, layout_.low_bits, low);
  WriteBits(high_, (index >> layout_.low_bits) + added_, 1, 1);
  ++added_;
}

IndexReader::IndexReader(const IndexLayout& layout, const std::byte* in)
    : layout_(layout), low_(in), high_(in + layout.low_bytes) {}

bool IndexReader::Next(uint32_t* index) {
  if (read_ == layout_.kept) return false;
  while (rest_ == 0) {
    if (next_byte_ == (layout_.high_bits + 7) / 8) return false;
    rest_ = std::to_integer<uint32_t>(high_[next_byte_++]);
  }
  const size_t bit = 8 * (next_byte_ - 1) + static_cast<size_t>(std::countr_zero(rest_));
  rest_ &= rest_ - 1;
  // Each bit lies at or after the one before it, so that a bit's position covers what was read.
  const auto high = static_cast<uint32_t>(bit - read_);
  *index = high << layout_.low_bits | ReadBits(low_, read_ * layout_.low_bits, layout_.low_bits);
  ++read_;
  return true;
}

bool IndicesAreValid(const IndexLayout& layout, const std::byte* in, size_t* position) {
  IndexReader reader(layout, in);
  uint32_t index = 0;
  uint32_t least = 0;
  for (*position = 0; *position < layout.kept; ++*position) {
    if (!reader.Next(&index) || index < least || index >= layout.count) return false;
    least = index + 1;
  }
  // The last index may leave whole bytes, and the low bits a part of one.
  size_t set = 0;
  for (size_t i = layout.low_bytes; i < layout.bytes; ++i) {
    set += static_cast<size_t>(std::popcount(std::to_integer<uint32_t>(in[i])));
  }
  return set == layout.kept && BitsAreZeroFrom(in, layout.kept * layout.low_bits);
}

}  // namespace slackline
