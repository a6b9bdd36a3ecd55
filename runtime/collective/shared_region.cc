#include "runtime/collective/shared_region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

// The file is sealed: shrinking it would kill every rank that reads the lost pages (SIGBUS).
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Size of one page for the whole, one for each rank, and the slots.
int64_t RegionBytes(int32_t ranks) {
  return kSharedRankHeaderBytes + ranks * (kSharedRankHeaderBytes + kSharedSlots * kSharedSlotBytes);
}

absl::Status NoMemory(int64_t bytes, int error_number) {
  return OfNode(absl::ResourceExhaustedError(
      fmt::format("no {} bytes of memory for the collective operations of a group ({}); free some, or give the "
                  "worker's container more",
                  bytes, std::strerror(error_number))));
}

}  // namespace

absl::StatusOr<std::pair<SharedRegion, UniqueFd>> SharedRegion::Create(int32_t ranks) {
  const int64_t bytes = RegionBytes(ranks);
  UniqueFd file(memfd_create("geopipe-collective", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) {
    return ErrnoStatus(errno, "cannot make a file in memory for the collective operations of a group");
  }
  if (const int error = posix_fallocate(file.get(), 0, bytes); error != 0) {
    return NoMemory(bytes, error);
  }
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "cannot seal a file in memory");
  }
  GP_ASSIGN_OR_RETURN(SharedRegion region, MapFile(file.get(), bytes, ranks));
  return std::pair(std::move(region), std::move(file));
}

absl::StatusOr<SharedRegion> SharedRegion::Map(const UniqueFd& file, int32_t ranks) {
  const int64_t bytes = RegionBytes(ranks);
  struct stat info {};
  if (fstat(file.get(), &info) != 0 || info.st_size != bytes || fcntl(file.get(), F_GET_SEALS) != kSeals) {
    return absl::FailedPreconditionError(fmt::format(
        "the first rank of a group shares {} bytes where {} belong for {} ranks; run the same version of the "
        "worker everywhere",
        info.st_size, bytes, ranks));
  }
  return MapFile(file.get(), bytes, ranks);
}

absl::StatusOr<SharedRegion> SharedRegion::MapFile(int file, int64_t bytes, int32_t ranks) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) {
    return NoMemory(bytes, errno);
  }
  return SharedRegion(static_cast<std::byte*>(memory), bytes, ranks);
}

SharedRegion::~SharedRegion() {
  if (memory_ != nullptr) {
    munmap(memory_, static_cast<size_t>(bytes_));
  }
}

}  // namespace geopipe
