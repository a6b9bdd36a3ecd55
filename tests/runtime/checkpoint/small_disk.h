// A disk of a few KiB, to be full or read-only: a tmpfs in a mount namespace of this process.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "runtime/base/unique_fd.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

namespace geopipe {

class SmallDisk {
 public:
  explicit SmallDisk(int64_t kib) {
    const std::string options = fmt::format("size={}k", kib);
    mounted_ = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               mount("none", path().c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) {
      Skip(fmt::format("a tmpfs cannot be mounted here ({}); run this as root", std::strerror(errno)));
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) {
      umount2(path().c_str(), MNT_DETACH);
    }
  }

  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

  // Takes all that is free.
  void Fill() const {
    const UniqueFd fd(open((path() + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    REQUIRE(fd.valid());
    const std::array<char, 4096> block{};
    while (write(fd.get(), block.data(), block.size()) > 0) {
    }
    REQUIRE(errno == ENOSPC);
  }
  void Free() const { REQUIRE(std::filesystem::remove(path() + "/filler")); }
  void MakeReadOnly() const { REQUIRE(mount("none", path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0); }

 private:
  TempDir folder_;
  bool mounted_ = false;
};

}  // namespace geopipe
