#include "runtime/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/crc32c.h"

namespace geopipe {

absl::StatusOr<CheckpointFile> CheckpointFile::Open(const std::string& path) {
  // O_NONBLOCK: a pipe of this name is refused below rather than waited for.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && (errno == ENOENT || errno == ENOTDIR)) {
    return absl::NotFoundError(fmt::format("{}: is not on this node; copy the file from the node that wrote it", path));
  }
  if (!fd.valid()) {
    return OfNode(absl::Status(
        absl::ErrnoToStatusCode(errno),
        fmt::format("{}: cannot be read: {}; check its permissions and the disk", path, std::strerror(errno))));
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: is not a regular file; put the checkpoint's file in its place", path));
  }
  return CheckpointFile(path, std::move(fd), static_cast<int64_t>(info.st_size));
}

absl::Status CheckpointFile::ReadAt(int64_t offset, std::span<std::byte> bytes) const {
  const int64_t wanted_end = offset + static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_.get(), bytes.data(), bytes.size(), offset);
    if (got < 0 && errno != EINTR) {
      return OfNode(absl::DataLossError(fmt::format("{}: cannot be read at byte {}: {}; check the disk (dmesg)", path_,
                                                    offset, std::strerror(errno))));
    }
    if (got == 0) {
      return absl::DataLossError(
          fmt::format("{}: ends at byte {} where {} are needed; copy the file again or choose another checkpoint",
                      path_, offset, wanted_end));
    }
    const size_t count = got < 0 ? 0 : static_cast<size_t>(got);
    bytes = bytes.subspan(count);
    offset += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> CheckpointFile::Checksum(int64_t offset, int64_t count) const {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(count, kPieceBytes)));
  uint32_t crc = 0;
  while (count > 0) {
    const std::span<std::byte> next = std::span(piece).first(static_cast<size_t>(std::min(count, kPieceBytes)));
    GP_RETURN_IF_ERROR(ReadAt(offset, next));
    crc = Crc32c(next, crc);
    offset += static_cast<int64_t>(next.size());
    count -= static_cast<int64_t>(next.size());
  }
  return crc;
}

}  // namespace geopipe
