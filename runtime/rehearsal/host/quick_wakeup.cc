#include "runtime/rehearsal/host/quick_wakeup.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace geopipe {
namespace {

constexpr uint64_t kSliceNs = 100'000;  // the least that the kernel takes
constexpr int32_t kNice = -10;

// Calls the system directly: the C library of Debian 12 has no function for this.
bool SetAttributes(const sched_attr& attributes) { return syscall(SYS_sched_setattr, 0, &attributes, 0U) == 0; }

}  // namespace

void PreciseTimers() { prctl(PR_SET_TIMERSLACK, 1UL); }

bool PreferQuickWakeup() {
  PreciseTimers();
  sched_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.sched_policy = SCHED_NORMAL;
  attributes.sched_runtime = kSliceNs;
  attributes.sched_nice = kNice;
  if (SetAttributes(attributes)) {
    return true;
  }
  attributes.sched_nice = getpriority(PRIO_PROCESS, 0);  // as it is
  return SetAttributes(attributes);
}

}  // namespace geopipe
