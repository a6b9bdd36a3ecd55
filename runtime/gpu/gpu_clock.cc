#include "runtime/gpu/gpu_clock.h"

#include <algorithm>

namespace geopipe {
namespace {

constexpr int64_t kMoveNs = 1'000'000'000;
constexpr int64_t kMaxDriftOf = 5000;  // one part in so many

}  // namespace

void GpuClock::Note(const Event& event, int64_t elapsed_ns, int64_t seen_ns) {
  const int64_t late_ns = seen_ns - HostNs(elapsed_ns);
  if (!soonest_.has_value() || late_ns < soonest_->late_ns) {
    soonest_ = Sight{.event = event, .elapsed_ns = elapsed_ns, .late_ns = late_ns};
  }
  if (elapsed_ns < kMoveNs) {
    return;
  }
  // An event is seen when it is over, not before; hence a negative delay is the map's error. A positive one is the
  // host's, but for drift.
  anchor_ns_ = HostNs(soonest_->elapsed_ns) + std::min(soonest_->late_ns, elapsed_ns / kMaxDriftOf);
  anchor_ = soonest_->event;
  soonest_.reset();
}

}  // namespace geopipe
