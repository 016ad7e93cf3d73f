// Little-endian loads and stores at byte offsets: what wire and file formats are written with, the
// same on every host. Callers have checked that the bytes are there (a fixed-extent span, or a
// length that was compared); nothing is checked twice here.
// Threading: pure functions.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace slackline {

// The integer's bytes, least significant first. Compilers turn the loop into one move.
template <std::unsigned_integral T>
constexpr void StoreLe(std::byte* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out[i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
  }
}

template <std::unsigned_integral T>
constexpr T LoadLe(const std::byte* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(in[i]) << (8 * i)));
  }
  return value;
}

}  // namespace slackline
