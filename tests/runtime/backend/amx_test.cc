#include <catch2/catch.hpp>
#include <csignal>

#include "runtime/backend/cpu_amx.h"

namespace geopipe {
namespace {

TEST_CASE("work in a child process succeeds as it returns, and a fault there ends the child alone") {
  CHECK(cpu::SucceedsInChild([] { return true; }));
  CHECK_FALSE(cpu::SucceedsInChild([] { return false; }));
  // A handler of this process would hang in the child.
  const auto before = std::signal(SIGILL, [](int) {
    while (true) {
    }
  });
  CHECK_FALSE(cpu::SucceedsInChild([]() -> bool {
    std::raise(SIGILL);
    return true;
  }));
  std::signal(SIGILL, before);
}

}  // namespace
}  // namespace geopipe
