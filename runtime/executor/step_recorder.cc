#include "runtime/executor/step_recorder.h"

#include <utility>

namespace geopipe {

void StepRecorder::Begin(size_t actions) {
  origin_ns_.reset();
  busy_ns_ = 0;
  records_.clear();
  records_.reserve(actions);
}

void StepRecorder::Record(const Action& action, int64_t start_ns, int64_t end_ns) {
  const int64_t origin_ns = origin_ns_.value_or(start_ns);
  origin_ns_ = origin_ns;
  busy_ns_ += end_ns - start_ns;
  records_.push_back({action, start_ns - origin_ns, end_ns - origin_ns});
}

std::vector<ActionRecord> StepRecorder::Take() { return std::exchange(records_, {}); }

}  // namespace geopipe
