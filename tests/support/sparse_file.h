// Files that are large and take no room on the disk.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace geopipe {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// Makes the file, or changes its length; what is added is zero. Returns its path.
inline std::string Resize(const std::string& path, int64_t bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(fd.valid());
  REQUIRE(ftruncate(fd.get(), bytes) == 0);
  return path;
}
inline std::string Resize(const TempDir& dir, const std::string& name, int64_t bytes) {
  return Resize(dir.path() + "/" + name, bytes);
}

// Overwrites bytes of a file.
inline void Poke(const std::string& path, int64_t offset, std::string_view bytes) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(fd.valid());
  REQUIRE(pwrite(fd.get(), bytes.data(), bytes.size(), offset) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace geopipe
