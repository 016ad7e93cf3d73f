#include "common/hash.h"

#define XXH_STATIC_LINKING_ONLY  // The state's definition, so that it can be a member.
#include <xxhash.h>

namespace slackline {

struct StreamHash::State {
  XXH3_state_t xxh3;
};

uint64_t Hash64(ConstBytes bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

StreamHash::StreamHash() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh3);
  XXH3_64bits_reset(&state_->xxh3);
}
StreamHash::~StreamHash() = default;
StreamHash::StreamHash(StreamHash&&) noexcept = default;
StreamHash& StreamHash::operator=(StreamHash&&) noexcept = default;

void StreamHash::Update(ConstBytes bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

uint64_t StreamHash::Digest() const { return XXH3_64bits_digest(&state_->xxh3); }

std::string HashToHex(uint64_t hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < 16; ++i) text[15 - i] = kDigits[(hash >> (4 * i)) & 0xF];
  return text;
}

std::optional<uint64_t> HashFromHex(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t hash = 0;
  for (const char c : text) {
    uint64_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint64_t>(c - 'A' + 10);
    } else {
      return std::nullopt;
    }
    hash = (hash << 4) | digit;
  }
  return hash;
}

}  // namespace slackline
