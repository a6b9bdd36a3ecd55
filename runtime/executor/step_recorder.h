// Per-action timings of one iteration on this worker's own clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/schedule/action.h"

namespace geopipe {

struct ActionRecord {
  Action action;
  int64_t start_ns = 0;  // since the iteration's first compute action began
  int64_t end_ns = 0;

  friend bool operator==(const ActionRecord&, const ActionRecord&) = default;
};

class StepRecorder {
 public:
  // The next iteration, of at most `actions` compute actions.
  void Begin(size_t actions);
  // A compute action; the first one's start is the origin of all.
  void Record(const Action& action, int64_t start_ns, int64_t end_ns);

  // Monotonic start of the first action; nullopt before it has been recorded.
  std::optional<int64_t> origin_ns() const { return origin_ns_; }
  // Sum of the recorded durations.
  int64_t busy_ns() const { return busy_ns_; }
  // What was recorded since Begin. The recorder is empty afterwards.
  std::vector<ActionRecord> Take();

 private:
  std::optional<int64_t> origin_ns_;
  int64_t busy_ns_ = 0;
  std::vector<ActionRecord> records_;
};

}  // namespace geopipe
