// Reads one file of a checkpoint, or parts of it. It uses read calls, not a mapping: a bad sector or a file that
// shrinks is then an error, where a mapping would end the process.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// Move-only; any thread may read.
class CheckpointFile {
 public:
  // NotFound: there is none on this node. Other codes: it cannot be opened, or is not a regular file. Each names the
  // path.
  static absl::StatusOr<CheckpointFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Size when it was opened.
  int64_t bytes() const { return bytes_; }

  // Fills `bytes` from `offset` on. DataLoss: the file ends before that, or the disk fails.
  absl::Status ReadAt(int64_t offset, std::span<std::byte> bytes) const;

  // CRC-32C of `count` bytes from `offset` on, read a piece at a time. Errors as ReadAt.
  absl::StatusOr<uint32_t> Checksum(int64_t offset, int64_t count) const;

 private:
  CheckpointFile(std::string path, UniqueFd fd, int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::string path_;
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

}  // namespace geopipe
