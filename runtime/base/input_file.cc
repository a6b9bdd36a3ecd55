#include "runtime/base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/file_format.h"

namespace geopipe {
namespace {

absl::Status OpenError(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return OfNode(absl::NotFoundError(fmt::format("{}: no such file on this node", path)));
    case EACCES:
    case EPERM:
      return OfNode(absl::PermissionDeniedError(
          fmt::format("{}: not readable by user id {}; give it read permission", path, geteuid())));
    case ENXIO:
      return absl::FailedPreconditionError(fmt::format("{}: is a socket or a device; name a regular file", path));
    default:
      return OfNode(absl::FailedPreconditionError(fmt::format("{}: cannot be opened: {}", path, std::strerror(error))));
  }
}

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  // O_NONBLOCK keeps the opening of a named pipe from waiting for its writer.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    return OpenError(path, errno);
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) {
    return OpenError(path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: is {}; name a regular file", path, KindOfFile(status.st_mode)));
  }
  return InputFile(path, std::move(fd), status.st_size);
}

absl::Status InputFile::Read(int64_t offset, std::span<std::byte> out) const {
  GP_CHECK(offset >= 0 && offset + std::ssize(out) <= bytes_, "{} bytes at {} of {}", out.size(), offset, bytes_);
  while (!out.empty()) {
    const ssize_t got = pread(fd_.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return OfNode(
          absl::DataLossError(fmt::format("{}: {} bytes at {} cannot be read: {}; check the disk and restore the file",
                                          path_, out.size(), offset, std::strerror(errno))));
    }
    if (got == 0) {
      return absl::DataLossError(fmt::format(
          "{}: the file had {} bytes when it was opened, and ends at {} now; restore it", path_, bytes_, offset));
    }
    out = out.subspan(got);
    offset += got;
  }
  return absl::OkStatus();
}

}  // namespace geopipe
