// XXH3-64: the checksum of wire headers, payloads, control frames and files. It finds damage, not
// forgery.
// Threading: values and pure functions; a StreamHash belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/types.h"

namespace slackline {

uint64_t Hash64(ConstBytes bytes);

// Hashes bytes that arrive in pieces; Digest() equals Hash64 of all of them so far.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(StreamHash&&) noexcept;
  StreamHash& operator=(StreamHash&&) noexcept;

  void Update(ConstBytes bytes);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hexadecimal digits, the way manifests show a hash.
std::string HashToHex(uint64_t hash);
// The inverse; nullopt unless `text` is exactly 16 hexadecimal digits (either case).
std::optional<uint64_t> HashFromHex(std::string_view text);

}  // namespace slackline
