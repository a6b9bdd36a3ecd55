// Timings of each action of one iteration, on this worker's own clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/schedule/action.h"
#include "runtime/tensor/completion.h"

namespace geopipe {

// One action's times. A compute action: when the device began it and when it was done. A SEND: from when the payload
// was ready until the device could go on (in blocking mode, the acknowledgement). A RECV: from the message's arrival
// until the executor took it.
struct ActionRecord {
  Action action;
  int64_t start_ns = 0;  // since the iteration's first compute action began; a first message arrived before it
  int64_t end_ns = 0;

  friend bool operator==(const ActionRecord&, const ActionRecord&) = default;
};

class StepRecorder {
 public:
  // Begins the next iteration, of at most `actions` actions.
  void Begin(size_t actions);
  void Record(const Action& action, const Completion& work);  // a compute action
  // Records a SEND or RECV, whose message is ready when `message` is; it ends then, or at `until_ns` if that is later.
  void RecordMessage(const Action& action, const Completion& message, int64_t until_ns);

  // Time at which the first compute action began, monotonic; nullopt: none is known to have begun.
  std::optional<int64_t> begun_ns() const;

  struct Timings {
    int64_t begun_ns = 0;  // begun_ns()
    int64_t busy_ns = 0;   // sum over the compute actions
    std::vector<ActionRecord> actions;
  };
  // True when all actions recorded since Begin are over.
  bool is_over() const;
  // These actions, in order; nullopt if none was a compute action. REQUIRES: is_over().
  std::optional<Timings> Take() const;
  // The first compute action that is not over; nullopt: all are.
  std::optional<Action> FirstUnderWay() const;

 private:
  struct Entry {
    Action action;
    Completion work;  // or the message
    int64_t until_ns = 0;
  };

  std::vector<Entry> entries_;
};

}  // namespace geopipe
