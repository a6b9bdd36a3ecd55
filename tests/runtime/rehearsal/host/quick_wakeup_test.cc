#include "runtime/rehearsal/host/quick_wakeup.h"

#include <sched.h>
#include <sys/prctl.h>

#include <catch2/catch.hpp>
#include <thread>

namespace geopipe {
namespace {

TEST_CASE("a thread may ask to be run at once, and stays an ordinary thread") {
  bool granted = false;
  int policy = -1;
  std::thread thread([&] {
    granted = PreferQuickWakeup();
    policy = sched_getscheduler(0);
  });
  thread.join();
  CHECK(granted);
  CHECK(policy == SCHED_OTHER);
  CHECK(sched_getscheduler(0) == SCHED_OTHER);
}

TEST_CASE("precise timers are the calling thread's alone") {
  int slack_ns = 0;
  std::thread thread([&] {
    PreciseTimers();
    slack_ns = prctl(PR_GET_TIMERSLACK);
  });
  thread.join();
  CHECK(slack_ns == 1);
  CHECK(prctl(PR_GET_TIMERSLACK) > 1);
}

}  // namespace
}  // namespace geopipe
