#include "runtime/base/shutdown.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

namespace geopipe {
namespace {

TEST_CASE("SIGINT, SIGTERM and SIGHUP are waited for instead of deadly") {
  (void)std::signal(SIGCHLD, SIG_IGN);  // as the parent may have left it
  auto shutdown = ShutdownSignal::Install();
  REQUIRE(shutdown.ok());
  CHECK((*shutdown)->Wait(0) == 0);
  CHECK(std::signal(SIGCHLD, SIG_DFL) == SIG_DFL);
  REQUIRE(kill(getpid(), SIGHUP) == 0);
  CHECK((*shutdown)->Wait(60'000'000'000) == SIGHUP);
  REQUIRE(kill(getpid(), SIGINT) == 0);
  CHECK((*shutdown)->Wait(60'000'000'000) == SIGINT);
  (*shutdown)->Request();
  CHECK((*shutdown)->Wait(60'000'000'000) == SIGTERM);
  CHECK((*shutdown)->Wait(0) == 0);
}

}  // namespace
}  // namespace geopipe
