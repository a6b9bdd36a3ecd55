#include "runtime/rehearsal/link/link_pacer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "optimizer/base/trouble.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

constexpr uint64_t kPacerMagic = 0x3152434150504700;  // "\0GPPACR1"

absl::Status CannotUse(const std::string& path) {
  return OfNode(absl::UnavailableError(
      fmt::format("the pacer file {} of a shaped link cannot be used: {}", path, std::strerror(errno))));
}

// Limit that no link's queue reaches.
constexpr int64_t kMaxBacklogNs = int64_t{3600} * 1'000'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<LinkPacer>> LinkPacer::Open(const std::string& path) {
  std::unique_ptr<LinkPacer> pacer(new LinkPacer);
  if (path.empty()) {
    pacer->own_ = std::make_unique<Shared>();
    pacer->shared_ = pacer->own_.get();
    return pacer;
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return CannotUse(path);
  }
  // Two processes may grow the file to the same size; that does no harm.
  struct stat info {};
  const bool sized = fstat(fd, &info) == 0 &&
                     (info.st_size == sizeof(Shared) || (info.st_size == 0 && ftruncate(fd, sizeof(Shared)) == 0));
  void* mapped = sized ? mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int error = errno;
  close(fd);
  if (!sized && info.st_size != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} bytes and is not a pacer file; name another path", path, info.st_size));
  }
  if (mapped == MAP_FAILED) {
    errno = error;
    return CannotUse(path);
  }
  pacer->shared_ = static_cast<Shared*>(mapped);
  uint64_t magic = 0;
  if (!pacer->shared_->magic.compare_exchange_strong(magic, kPacerMagic) && magic != kPacerMagic) {
    return absl::InvalidArgumentError(fmt::format("{} is not a pacer file; name another path", path));
  }
  // A file that outlived a reboot holds a time of another life of the monotonic clock.
  int64_t free_ns = pacer->shared_->next_free_ns.load();
  if (free_ns > Clock::Real().NowNs() + kMaxBacklogNs) {
    pacer->shared_->next_free_ns.compare_exchange_strong(free_ns, 0);
  }
  return pacer;
}

LinkPacer::~LinkPacer() {
  if (own_ == nullptr && shared_ != nullptr) {
    munmap(shared_, sizeof(Shared));
  }
}

int64_t LinkPacer::Occupy(int64_t earliest_ns, int64_t duration_ns) {
  int64_t free_ns = shared_->next_free_ns.load();
  int64_t after_ns = 0;
  do {
    after_ns = std::max(free_ns, earliest_ns) + duration_ns;
  } while (!shared_->next_free_ns.compare_exchange_weak(free_ns, after_ns));
  return after_ns;
}

}  // namespace geopipe
