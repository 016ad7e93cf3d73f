// Small helpers for messages that people read.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "common/time_source.h"

namespace slackline::server::coordinator {

// The arguments as one string, as operator<< prints them.
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "12.3 s".
std::string Seconds(TimeNs duration);
// At most `limit` bytes, control characters as '?', "..." where it was cut: for a peer's strings in
// our log lines.
std::string Printable(std::string_view text, size_t limit = 120);
// "1 server", "2 servers".
std::string Plural(uint64_t count, std::string_view noun);

}  // namespace slackline::server::coordinator
