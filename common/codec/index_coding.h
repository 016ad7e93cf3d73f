// Ascending indices in few bits, in a size that is known before: the code of Elias and Fano
// (Elias, "Efficient storage and retrieval by content and address of static files", JACM 1974).
//
// Of `kept` indices below `count`, each leaves its low `bits` bits in one array, packed, and the
// rest in another as gaps in unary: index i sets bit (index >> bits) + i. That takes about 2.5 +
// log2(count / kept) bits an index, a seventh less than byte-wise variable integers at 1 %.
// Threading: values of one thread. Nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace slackline {

// Where the two arrays of a coded list lie and how they are read. 0 <= kept <= count <= 2^28.
struct IndexLayout {
  IndexLayout(size_t count, size_t kept);

  size_t count;
  size_t kept;
  uint32_t low_bits;  // floor(log2(count / kept)).
  size_t low_bytes;   // Of the packed low bits, which come first.
  size_t high_bits;   // Of the unary gaps.
  size_t bytes;       // Of both.
};

class IndexWriter {
 public:
  // `out` holds layout.bytes bytes, which this zeroes.
  IndexWriter(const IndexLayout& layout, std::byte* out);
  // To be called `kept` times with ascending indices below `count`.
  void Add(uint32_t index);

 private:
  const IndexLayout layout_;
  std::byte* const low_;
  std::byte* const high_;
  size_t added_ = 0;
};

class IndexReader {
 public:
  // Any layout.bytes bytes; nothing outside them is read.
  IndexReader(const IndexLayout& layout, const std::byte* in);
  // The next index; false after `kept` of them, or when the bits end before. Of bytes that
  // IndicesAreValid() refuses, indices come in any order and beyond `count`.
  bool Next(uint32_t* index);

 private:
  const IndexLayout layout_;
  const std::byte* const low_;
  const std::byte* const high_;
  size_t read_ = 0;
  size_t next_byte_ = 0;  // Of high_.
  uint32_t rest_ = 0;     // Bits of the byte before that are not read yet.
};

// Whether the bytes are `kept` ascending indices below `count`, and unused bits zero. If not,
// *position is the first that is wrong (`kept`: bits are left over).
bool IndicesAreValid(const IndexLayout& layout, const std::byte* in, size_t* position);

}  // namespace slackline
