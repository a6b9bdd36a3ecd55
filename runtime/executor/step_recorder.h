// Per-action timings of one iteration on this worker's own clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/schedule/action.h"

namespace geopipe {

// Of a compute action: when it was begun, and when it was done. Of a SEND: from handing the message over until the
// executor went on (in blocking mode, until the acknowledgement). Of a RECV: from the message's arrival until the
// executor took it. Where a device's time is kept, actions end as the device does (though not before the thread has
// begun), messages leave when it had made them and arrive when they were due.
struct ActionRecord {
  Action action;
  int64_t start_ns = 0;  // since the iteration's first compute action began; a first message arrived before it
  int64_t end_ns = 0;

  friend bool operator==(const ActionRecord&, const ActionRecord&) = default;
};

class StepRecorder {
 public:
  // The next iteration, of at most `actions` actions.
  void Begin(size_t actions);
  // A compute action that kept the device busy for `busy_ns`; the first one's start is the origin of all.
  void Record(const Action& action, int64_t start_ns, int64_t end_ns, int64_t busy_ns);

  // A SEND or RECV.
  void RecordMessage(const Action& action, int64_t start_ns, int64_t end_ns);

  // Monotonic start of the first action; nullopt before it has been recorded.
  std::optional<int64_t> origin_ns() const { return origin_ns_; }
  // Sum over the compute actions.
  int64_t busy_ns() const { return busy_ns_; }
  // What was recorded since Begin, in order. The recorder is empty afterwards. REQUIRES: a compute action was recorded,
  // or nothing.
  std::vector<ActionRecord> Take();

 private:
  std::optional<int64_t> origin_ns_;
  int64_t busy_ns_ = 0;
  std::vector<ActionRecord> records_;  // monotonic times
};

}  // namespace geopipe
