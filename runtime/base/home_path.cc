#include "runtime/base/home_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace geopipe {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// RFC 3986.
bool IsSchemeLetter(char c) { return IsLetter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.'; }

}  // namespace

absl::StatusOr<std::string> ExpandHome(std::string_view path) {
  if (!path.starts_with('~')) {
    return std::string(path);
  }
  if (path.size() > 1 && path[1] != '/') {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' begins with ~ and a name, which is not looked up; write the whole path, or ./{} for a file of that name",
        path, path));
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') {
    return absl::InvalidArgumentError(
        fmt::format("'{}' begins with ~, and HOME names no folder; write the whole path", path));
  }
  return fmt::format("{}{}", home, path.substr(1));
}

absl::Status RefuseHome(std::string_view path) {
  return path.starts_with('~') ? absl::InvalidArgumentError(fmt::format(
                                     "'{}' begins with ~, which means nothing to a daemon; write the whole path", path))
                               : absl::OkStatus();
}

absl::Status CheckIsPath(std::string_view path) {
  const size_t scheme = path.find("://");
  if (scheme != std::string_view::npos && scheme > 0 && std::ranges::all_of(path.substr(0, scheme), &IsSchemeLetter)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is an address, and only files are read and written; mount or copy what is there, and write its path",
        path));
  }
  for (size_t dollar = path.find('$'); dollar != std::string_view::npos; dollar = path.find('$', dollar + 1)) {
    const char next = dollar + 1 < path.size() ? path[dollar + 1] : ' ';
    if (next == '{' || next == '_' || IsLetter(next)) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' has a variable, and variables are not expanded in a file; write the whole path", path));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
