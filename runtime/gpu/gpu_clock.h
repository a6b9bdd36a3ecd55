// Maps a GPU's time to the host's. The two clocks drift apart by some millionths, and a device tells only the time
// between two events: so the map hangs on an event whose host time is known, and moves on to a new one every second.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace geopipe {

// Times are of the monotonic clock. One thread.
class GpuClock {
 public:
  using Event = std::shared_ptr<const void>;

  // Hangs the map on an event, of which the host saw at `seen_ns` that it was over.
  GpuClock(Event anchor, int64_t seen_ns) : anchor_(std::move(anchor)), anchor_ns_(seen_ns) {}

  // The event from which device time counts.
  const Event& anchor() const { return anchor_; }
  // Host time of a point on the device, `elapsed_ns` behind the anchor.
  int64_t HostNs(int64_t elapsed_ns) const { return anchor_ns_ + elapsed_ns; }

  // Notes that the host saw at `seen_ns` that an event was over, `elapsed_ns` behind the anchor on the device. Moves
  // the anchor once a second: to the event that the host saw soonest, and by no more than clocks drift in that time.
  void Note(const Event& event, int64_t elapsed_ns, int64_t seen_ns);

 private:
  struct Sight {
    Event event;
    int64_t elapsed_ns = 0;
    int64_t late_ns = 0;  // seen so much later than the map has it
  };

  Event anchor_;
  int64_t anchor_ns_;
  std::optional<Sight> soonest_;  // since the anchor moved
};

}  // namespace geopipe
