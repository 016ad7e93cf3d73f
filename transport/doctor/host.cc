#include "transport/doctor/host.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace slackline::transport {
namespace {

constexpr size_t kMaxFileBytes = 64u << 10;

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

bool Host::Exists(const std::string& path) const {
  std::error_code ignored;  // What cannot be looked at is not there for us.
  return std::filesystem::exists(Path(path), ignored);
}

std::optional<std::string> Host::Text(const std::string& path) const {
  std::ifstream file(Path(path), std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::string Host::Line(const std::string& path) const {
  const std::string text = Text(path).value_or("");
  return std::string(Trim(std::string_view(text).substr(0, text.find('\n'))));
}

std::vector<std::string> Host::Names(const std::string& directory) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(Path(directory), error), end;
       !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const long long x = NumberOr(a, -1), y = NumberOr(b, -1);
    return x != y ? x < y : a < b;
  });
  return names;
}

std::string Host::Field(const std::string& path, std::string_view key) const {
  const std::string text = Text(path).value_or("");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.starts_with(key)) return std::string(Trim(line.substr(key.size())));
    begin = end + 1;
  }
  return {};
}

long long NumberOr(std::string_view text, long long otherwise) {
  text = Trim(text);
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} ? number : otherwise;
}

}  // namespace slackline::transport
