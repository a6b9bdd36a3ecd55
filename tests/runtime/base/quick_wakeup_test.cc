#include "runtime/base/quick_wakeup.h"

#include <sched.h>

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

}  // namespace
}  // namespace geopipe
