#include "runtime/executor/step_recorder.h"

#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {

void StepRecorder::Begin(size_t actions) {
  origin_ns_.reset();
  busy_ns_ = 0;
  records_.clear();
  records_.reserve(actions);
}

void StepRecorder::Record(const Action& action, int64_t start_ns, int64_t end_ns, int64_t busy_ns) {
  origin_ns_ = origin_ns_.value_or(start_ns);
  busy_ns_ += busy_ns;
  records_.push_back({action, start_ns, end_ns});
}

void StepRecorder::RecordMessage(const Action& action, int64_t start_ns, int64_t end_ns) {
  records_.push_back({action, start_ns, end_ns});
}

std::vector<ActionRecord> StepRecorder::Take() {
  GP_CHECK(origin_ns_.has_value() || records_.empty(), "messages without a compute action");
  for (ActionRecord& record : records_) {
    record.start_ns -= *origin_ns_;
    record.end_ns -= *origin_ns_;
  }
  return std::exchange(records_, {});
}

}  // namespace geopipe
