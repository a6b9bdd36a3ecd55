#include "runtime/base/thread_name.h"

#include <ctime>

namespace geopipe {

void NameThisThread(const std::string& name) {
  // Only a name that is too long could fail.
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

int64_t ThreadCpuNs(pthread_t thread) {
  clockid_t clock{};
  timespec time{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    return 0;
  }
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace geopipe
