#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/skip.h"

int main(int argc, char** argv) {
  // Catch2 returns the number of failures, which must not happen to be kSkipReturnCode.
  const bool failed = Catch::Session().run(argc, argv) != 0;
  return failed ? 1 : geopipe::AnySkipped() ? geopipe::kSkipReturnCode : 0;
}
