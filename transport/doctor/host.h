// The files in which Linux tells about itself (/proc, /sys, /dev), below a root that a test may
// choose.
// Threading: values.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace slackline::transport {

class Host {
 public:
  // "" is this host; a test gives a directory with files of the same names.
  explicit Host(std::string root = "") : root_(std::move(root)) {}

  std::string Path(const std::string& path) const { return root_ + path; }
  bool Exists(const std::string& path) const;
  // The whole file, at most 64 KiB of it; nothing if it cannot be read (a GID slot that is not
  // filled, say).
  std::optional<std::string> Text(const std::string& path) const;
  // Its first line without surrounding blanks; empty if it cannot be read.
  std::string Line(const std::string& path) const;
  // Names in a directory, sorted, numbers by value; empty if there is none.
  std::vector<std::string> Names(const std::string& directory) const;
  // The rest of the line that begins with `key`, without blanks around it; empty if there is none.
  std::string Field(const std::string& path, std::string_view key) const;

  // True: the files are those of this host, so that asking the system itself fits with them.
  bool real() const { return root_.empty(); }

 private:
  std::string root_;
};

// The whole number at the text's beginning; `otherwise` if there is none.
long long NumberOr(std::string_view text, long long otherwise);

}  // namespace slackline::transport
