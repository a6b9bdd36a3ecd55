// A regular file that is read at any place. Reading never maps it, so that a file that is cut short and a disk that
// fails are errors of the read, where a mapping would end the process by SIGBUS.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// Move-only. Any thread may read.
class InputFile {
 public:
  // NotFound, PermissionDenied, FailedPrecondition (not a regular file): each names the path. Never waits, whatever
  // stands there.
  static absl::StatusOr<InputFile> Open(const std::string& path);

  // The bytes [offset, offset + out.size()). DataLoss: the system cannot read them, or the file has become shorter;
  // names path, place and remedy. REQUIRES: they were in the file when it was opened.
  absl::Status Read(int64_t offset, std::span<std::byte> out) const;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // when it was opened
  int fd() const { return fd_.get(); }

 private:
  InputFile(std::string path, UniqueFd fd, int64_t bytes) : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::string path_;
  UniqueFd fd_;
  int64_t bytes_;
};

}  // namespace geopipe
