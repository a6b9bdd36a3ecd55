// A device's timed events, which are made once and used again.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe {

// Thread-safe. Lives as long as an event of it is held.
class GpuEvents : public std::enable_shared_from_this<GpuEvents> {
 public:
  GpuEvents(const GpPort& port, int32_t ordinal) : port_(port), ordinal_(ordinal) {}
  GpuEvents(const GpuEvents&) = delete;
  GpuEvents& operator=(const GpuEvents&) = delete;
  ~GpuEvents();

  // Takes an event, never recorded or recorded for others, into *event; it comes back when no copy of it is held. The
  // result is event_create's. REQUIRES: the device is the calling thread's current one.
  GpResult Take(std::shared_ptr<const void>* event);

 private:
  const GpPort& port_;
  const int32_t ordinal_;
  std::mutex mutex_;
  std::vector<GpEvent> idle_;
};

// The event as the port has it.
inline GpEvent EventOf(const std::shared_ptr<const void>& event) { return const_cast<void*>(event.get()); }

}  // namespace geopipe
