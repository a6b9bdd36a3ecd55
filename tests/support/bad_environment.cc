#include "tests/support/bad_environment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/files.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {

absl::StatusOr<std::unique_ptr<BadEnvironment>> BadEnvironment::Create(
    const std::filesystem::path& path, const std::vector<std::filesystem::path>& disks) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid() || ftruncate(file.get(), sizeof(BadEnvironmentPage)) != 0) {
    return ErrnoStatus(errno, path.string());
  }
  void* memory = mmap(nullptr, sizeof(BadEnvironmentPage), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, path.string());
  }
  auto* const page = static_cast<BadEnvironmentPage*>(memory);
  std::unique_ptr<BadEnvironment> environment(new BadEnvironment(path.string(), page));
  for (size_t i = 0; i < disks.size() && i < BadEnvironmentPage::kMaxDisks; ++i) {
    struct stat status {};
    if (stat(disks[i].c_str(), &status) != 0) {
      return ErrnoStatus(errno, disks[i].string());
    }
    page->disks[i] = status.st_dev;
  }
  return environment;
}

BadEnvironment::~BadEnvironment() {
  End();
  munmap(page_, sizeof(BadEnvironmentPage));
}

std::vector<std::pair<std::string, std::string>> BadEnvironment::Variables() const {
  return {{"LD_PRELOAD", GEOPIPE_BAD_ENVIRONMENT}, {BadEnvironmentPage::kVariable, path_}};
}

void BadEnvironment::Begin(Lack lack, int64_t until_ns) { page_->until_ns[static_cast<size_t>(lack)] = until_ns; }

void BadEnvironment::End() {
  for (std::atomic<int64_t>& until_ns : page_->until_ns) {
    until_ns = 0;
  }
}

int64_t BadEnvironment::failed(Lack lack) const { return page_->failed[static_cast<size_t>(lack)]; }

}  // namespace geopipe
