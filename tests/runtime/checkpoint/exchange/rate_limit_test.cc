#include "runtime/checkpoint/exchange/rate_limit.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST_CASE("a rate is kept on average, whatever the sizes") {
  RateLimit limit(1e6);
  int64_t now_ns = 5'000 * kMs;
  int64_t taken = 0;
  for (const int64_t bytes : {1, 64'000, 500, 30'000, 64'000}) {
    now_ns = limit.Take(now_ns, bytes);
    taken += bytes;
  }
  // The allowance for a late thread is given at the start.
  CHECK(now_ns == 5'000 * kMs - 100 * kMs + taken * 1000);
}

TEST_CASE("a late thread catches up, and a long rest does not become a burst") {
  RateLimit limit(1e6);
  int64_t now_ns = limit.Take(1'000 * kMs, 200'000);
  now_ns = limit.Take(now_ns, 1'000);
  CHECK(limit.Take(now_ns + 50 * kMs, 1'000) == now_ns + kMs);
  CHECK(limit.Take(now_ns + 60'000 * kMs, 200'000) == now_ns + 60'100 * kMs);
}

TEST_CASE("without a limit nothing is waited for") {
  RateLimit limit(0);
  CHECK(limit.Take(7, int64_t{1} << 50) == 7);
}

}  // namespace
}  // namespace geopipe
