#include "transport/address.h"

#include <algorithm>
#include <charconv>

namespace slackline::transport {
namespace {

bool IsHostCharacter(char c, bool bracketed) {
  const bool alphanumeric =
      (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (alphanumeric || c == '.') return true;
  return bracketed ? (c == ':' || c == '%') : (c == '-' || c == '_');
}

Status NotAnAddress(std::string_view text, std::string_view expected) {
  constexpr size_t kMaxShown = 80;  // What a log line should hold of a stranger's text.
  std::string shown(text.substr(0, kMaxShown));
  if (text.size() > kMaxShown) shown += "...";
  return InvalidArgument("'" + shown + "' is not an address: expected " + std::string(expected));
}

// Splits "host:port" or "[v6]:port" and checks both parts; `text` and `expected` are for messages.
Result<Address> ParseParts(std::string_view rest, std::string_view text,
                           std::string_view expected) {
  const bool bracketed = rest.starts_with('[');
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return Err(NotAnAddress(text, expected));
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  if (bracketed) {
    if (host.size() < 2 || !host.ends_with(']')) return Err(NotAnAddress(text, expected));
    host = host.substr(1, host.size() - 2);
  }
  const bool host_ok =
      !host.empty() && host.size() <= kMaxHostChars &&
      std::all_of(host.begin(), host.end(), [&](char c) { return IsHostCharacter(c, bracketed); });
  if (!host_ok) return Err(NotAnAddress(text, expected));

  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc{} || end != port.data() + port.size()) {
    return Err(NotAnAddress(text, std::string(expected) + " with a port from 0 to 65535"));
  }
  return Address{.scheme = {}, .host = std::string(host), .port = number};
}

}  // namespace

std::string Address::ToString() const {
  std::string text = scheme.empty() ? std::string() : scheme + "://";
  const bool v6 = host.find(':') != std::string::npos;
  text += v6 ? "[" + host + "]" : host;
  return text + ":" + std::to_string(port);
}

std::vector<std::string_view> SplitAlternatives(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    if (end == start || parts.size() == kMaxAlternatives) return {};
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

Result<Address> ParseAddress(std::string_view text, std::string_view scheme) {
  const std::string prefix = std::string(scheme) + "://";
  const std::string expected = prefix + "host:port";
  for (const std::string_view part : SplitAlternatives(text)) {
    if (!part.starts_with(prefix)) continue;
    SLACKLINE_ASSIGN_OR_RETURN(Address address,
                               ParseParts(part.substr(prefix.size()), text, expected));
    address.scheme = scheme;
    return address;
  }
  return Err(NotAnAddress(text, expected));
}

Result<Address> ParseHostPort(std::string_view text) { return ParseParts(text, text, "host:port"); }

}  // namespace slackline::transport
