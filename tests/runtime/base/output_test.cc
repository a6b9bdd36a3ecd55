#include "runtime/base/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/base/log.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

// Sends standard error elsewhere for the length of a test.
class Elsewhere {
 public:
  explicit Elsewhere(const char* path) : old_(dup(STDERR_FILENO)) {
    const UniqueFd there(open(path, O_WRONLY));
    REQUIRE(dup2(there.get(), STDERR_FILENO) == STDERR_FILENO);
  }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;
  ~Elsewhere() { dup2(old_.get(), STDERR_FILENO); }

 private:
  UniqueFd old_;
};

TEST_CASE("neither a log line nor an error ends a program whose standard error is full") {
  const Elsewhere full("/dev/full");
  for (int i = 0; i < 3; ++i) {
    PrintErr("lost {}\n", i);
    LogWarning("lost {}", i);
  }
  CHECK(FlushOutput().ok());  // which is about standard output
}

}  // namespace
}  // namespace geopipe
