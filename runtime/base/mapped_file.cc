#include "runtime/base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

absl::Status OpenError(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(fmt::format("{}: no such file on this node", path));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          fmt::format("{}: not readable by user id {}; give it read permission", path, geteuid()));
    default:
      return absl::FailedPreconditionError(fmt::format("{}: cannot be opened: {}", path, std::strerror(error)));
  }
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return OpenError(path, errno);
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{}: not a regular file; name a file", path));
  }
  if (status.st_size == 0) {
    return MappedFile(path, {});
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: {} bytes cannot be mapped: {}; raise vm.max_map_count or the address-space limit", path, size,
                    std::strerror(errno)));
  }
  return MappedFile(path, std::span(static_cast<const std::byte*>(address), size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace geopipe
