// Per-action timings of one iteration on this worker's own clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/schedule/action.h"
#include "runtime/tensor/completion.h"

namespace geopipe {

// Of a compute action: when the device began it, and when it was done. Of a SEND: from when the payload was ready until
// the device could go on (in blocking mode, the acknowledgement). Of a RECV: from the message's arrival until the
// executor took it.
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
  void Record(const Action& action, const Completion& work);  // a compute action
  // A SEND or RECV of a message that is ready when `message` is; it is over then, or at `until_ns` if that is later.
  void RecordMessage(const Action& action, const Completion& message, int64_t until_ns);

  // When the first compute action began, monotonic; nullopt: none is known to have.
  std::optional<int64_t> begun_ns() const;

  struct Timings {
    int64_t begun_ns = 0;  // begun_ns()
    int64_t busy_ns = 0;   // sum over the compute actions
    std::vector<ActionRecord> actions;
  };
  // What was recorded since Begin, in order; nullopt if no compute action was. REQUIRES: all of it is over.
  std::optional<Timings> Take() const;

 private:
  struct Entry {
    Action action;
    Completion work;  // or the message
    int64_t until_ns = 0;
  };

  std::vector<Entry> entries_;
};

}  // namespace geopipe
