// A program in the place of the worker: says by which name it runs and what lies beside it, and lives until it is
// killed.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/base/files.h"

int main(int /*argc*/, char** argv) {
  const absl::StatusOr<std::string> sibling = geopipe::SiblingProgram("sibling");
  fmt::print("{} beside {}\n", argv[0], sibling.value_or("nothing"));
  std::fflush(stdout);
  while (true) {
    pause();
  }
}
