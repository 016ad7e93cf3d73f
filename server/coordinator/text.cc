#include "server/coordinator/text.h"

#include <cstdio>

namespace slackline::server::coordinator {

std::string Seconds(TimeNs duration) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.1f s",
                static_cast<double>(duration) / static_cast<double>(kNsPerSecond));
  return buffer;
}

std::string Printable(std::string_view text, size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  if (text.size() > limit) out += "...";
  return out;
}

std::string Plural(uint64_t count, std::string_view noun) {
  return Text(count, ' ', noun, count == 1 ? "" : "s");
}

}  // namespace slackline::server::coordinator
