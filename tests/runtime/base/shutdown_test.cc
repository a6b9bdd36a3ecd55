#include "runtime/base/shutdown.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

namespace geopipe {
namespace {

TEST_CASE("SIGINT and SIGTERM are waited for instead of deadly") {
  auto shutdown = ShutdownSignal::Install();
  REQUIRE(shutdown.ok());
  CHECK((*shutdown)->Wait(0) == 0);
  REQUIRE(kill(getpid(), SIGINT) == 0);
  CHECK((*shutdown)->Wait(60'000'000'000) == SIGINT);
  (*shutdown)->Request();
  CHECK((*shutdown)->Wait(60'000'000'000) == SIGTERM);
  CHECK((*shutdown)->Wait(0) == 0);
}

}  // namespace
}  // namespace geopipe
