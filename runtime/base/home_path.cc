#include "runtime/base/home_path.h"

#include <fmt/format.h>

#include <cstdlib>

namespace geopipe {

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

}  // namespace geopipe
