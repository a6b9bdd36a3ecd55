#include "runtime/base/system_time.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

namespace geopipe {

absl::Status CheckSystemTime(int64_t unix_now_ns) {
  constexpr int64_t kFirstDay2020 = 1'577'836'800;  // in seconds since 1970
  const std::time_t now = unix_now_ns / 1'000'000'000;
  return now >= kFirstDay2020
             ? absl::OkStatus()
             : absl::FailedPreconditionError(fmt::format(
                   "this machine's clock says {:%Y-%m-%d %H:%M:%S} UTC; set it (timedatectl, chrony) and start again",
                   fmt::gmtime(now)));
}

}  // namespace geopipe
