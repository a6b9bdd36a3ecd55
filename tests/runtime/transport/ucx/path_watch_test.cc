#include "runtime/transport/ucx/path_watch.h"

#include <catch2/catch.hpp>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int64_t kLimitNs = 10'000 * kMs;  // of a handshake

TEST_CASE("a connection that speaks is not asked, and one that is silent is asked again and again") {
  PathWatch watch;
  watch.Start(0);
  CHECK_FALSE(watch.TakeAsk(399 * kMs));
  watch.Heard(399 * kMs);
  CHECK_FALSE(watch.TakeAsk(798 * kMs));
  CHECK(watch.TakeAsk(799 * kMs));
  CHECK_FALSE(watch.TakeAsk(1198 * kMs));
  CHECK(watch.TakeAsk(1199 * kMs));
}

TEST_CASE("silence begins with what was heard last and ends with the next word") {
  PathWatch watch;
  watch.Start(0);
  watch.Heard(100 * kMs);
  CHECK_FALSE(watch.Silent(1099 * kMs, 1000 * kMs));
  CHECK(watch.Silent(1100 * kMs, 1000 * kMs));
  watch.Heard(1101 * kMs);
  CHECK_FALSE(watch.Silent(1102 * kMs, 1000 * kMs));
}

TEST_CASE("the watch's next time lies ahead, whatever the time") {
  PathWatch watch;
  watch.Start(0);
  int64_t wakes = 0;
  for (int64_t now_ns = 0; now_ns < 10'000 * kMs; ++wakes) {
    watch.TakeAsk(now_ns);
    const int64_t next_ns = watch.NextTimeNs(now_ns, 1000 * kMs);
    REQUIRE(next_ns > now_ns);
    REQUIRE(next_ns - now_ns <= PathWatch::kAskAfterNs);
    now_ns = next_ns;
  }
  CHECK(wakes <= 27);  // every 400 ms, and once at the end of patience
}

TEST_CASE("attempts follow each other quickly, each with time for two handshakes") {
  RedialPolicy policy;
  CHECK(policy.StaggerNs(kLimitNs) == kLimitNs);  // nobody knows yet how long one takes
  policy.OnUp(0, 400 * kMs, false);
  CHECK(policy.StaggerNs(kLimitNs) == 150 * kMs);
  CHECK(policy.PatienceNs() == 1000 * kMs);
  policy.OnUp(0, 4000 * kMs, false);
  CHECK(policy.StaggerNs(kLimitNs) * RedialPolicy::kMaxAttempts >= 7999 * kMs);
  CHECK(policy.PatienceNs() == 4400 * kMs);
}

TEST_CASE("a path that was slow and not cut is given more time, up to a bound") {
  RedialPolicy policy;
  policy.OnUp(0, 100 * kMs, false);
  for (const int64_t patience_ms : {2000, 4000, 8000, 16000, 16000}) {
    policy.OnAttempt();
    policy.OnUp(0, 100 * kMs, true);
    CHECK(policy.PatienceNs() == patience_ms * kMs);
  }
  SECTION("a cut, where attempts fail, shows that silence means what it says") {
    policy.OnAttempt();
    policy.OnAttempt();
    policy.OnUp(kMs, 100 * kMs, true);
    CHECK(policy.PatienceNs() == 1000 * kMs);
  }
  SECTION("so does a long time without") {
    policy.OnAttempt();
    policy.OnUp(RedialPolicy::kCalmNs, 100 * kMs, false);
    CHECK(policy.PatienceNs() == 1000 * kMs);
  }
}

}  // namespace
}  // namespace geopipe
