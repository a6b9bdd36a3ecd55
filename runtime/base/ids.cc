#include "runtime/base/ids.h"

#include <sys/random.h>

#include <cerrno>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

void FillRandom(char* data, size_t count) {
  size_t filled = 0;
  while (filled < count) {
    const ssize_t got = getrandom(data + filled, count - filled, 0);
    GP_CHECK(got > 0 || (got < 0 && errno == EINTR), "getrandom failed, errno {}", errno);
    filled += got > 0 ? static_cast<size_t>(got) : 0;
  }
}

}  // namespace

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) {
    FillRandom(reinterpret_cast<char*>(&id), sizeof(id));
  }
  return id;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  FillRandom(bytes.data(), count);
  return bytes;
}

}  // namespace geopipe
