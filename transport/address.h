// Addresses of endpoints: "scheme://host:port", e.g. "tcp://10.0.0.2:4711", "tcp://[::1]:0" or
// "tcp://node7:4711". The control plane writes the same without a scheme.
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace slackline::transport {

// Names longer than this are not host names (RFC 1035: 253 characters).
inline constexpr size_t kMaxHostChars = 253;

struct Address {
  std::string scheme;  // Empty: none was written.
  std::string host;    // A name or a numeric address, IPv6 without its brackets.
  uint16_t port = 0;

  // "scheme://host:port", or "host:port" without a scheme; brackets around IPv6.
  std::string ToString() const;

  friend bool operator==(const Address&, const Address&) = default;
};

// Bound on the ways into one endpoint that an address may list.
inline constexpr size_t kMaxAlternatives = 8;

// "shm://...,tcp://...": an endpoint with several ways in lists them with commas between. Empty: a
// list that is empty, too long or has an empty item.
std::vector<std::string_view> SplitAlternatives(std::string_view text);

// Parses "scheme://host:port"; of several alternatives the one of `scheme`. InvalidArgument: says
// what was expected and found, also when there is only another scheme.
Result<Address> ParseAddress(std::string_view text, std::string_view scheme);

// Parses "host:port". InvalidArgument as above.
Result<Address> ParseHostPort(std::string_view text);

}  // namespace slackline::transport
