#include "runtime/weights/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/input_file.h"

namespace geopipe {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  GP_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.bytes() == 0) {
    return MappedFile(path, {});
  }
  const auto size = static_cast<size_t>(file.bytes());
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (address == MAP_FAILED) {
    return OfNode(absl::ResourceExhaustedError(
        fmt::format("{}: {} bytes cannot be mapped: {}; raise vm.max_map_count or the address-space limit", path, size,
                    std::strerror(errno))));
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
