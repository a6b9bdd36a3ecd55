#include "runtime/gpu/gpu_events.h"

namespace geopipe {

GpuEvents::~GpuEvents() {
  if (port_.runtime.use_device(ordinal_) != kGpOk) {
    return;  // a lost device has taken its events along
  }
  for (const GpEvent event : idle_) {
    (void)port_.runtime.event_destroy(event);
  }
}

GpResult GpuEvents::Take(std::shared_ptr<const void>* event) {
  GpEvent taken = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      taken = idle_.back();
      idle_.pop_back();
    }
  }
  if (taken == nullptr) {
    if (const GpResult result = port_.runtime.event_create(/*is_timed=*/1, &taken); result != kGpOk) {
      return result;
    }
  }
  *event = std::shared_ptr<const void>(taken, [pool = shared_from_this()](const void* given) {
    const std::lock_guard lock(pool->mutex_);
    pool->idle_.push_back(const_cast<void*>(given));
  });
  return kGpOk;
}

}  // namespace geopipe
