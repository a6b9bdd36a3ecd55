// Latest starts: when each forward and each input gradient must start at the latest for the iteration to end by a
// target, by necessary conditions. Later actions on the same device count as work, those elsewhere as the way through
// the pipeline, and memory couples them: a device that holds at most k activations cannot start the forward of
// micro-batch j + k before the input gradient of j has ended, and one that can postpone at most d weight gradients must
// run the others before its last input gradient.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/scheduler/instance.h"

namespace geopipe {

class Deadlines {
 public:
  // REQUIRES: `instance` outlives this.
  explicit Deadlines(const Instance& instance);

  // Computes the latest starts. `earlier_ns` ([work], F and I; may be negative): how much sooner than necessary each
  // action of a kind shall start, which adds up along all actions that lead to it. Linear in the number of actions.
  void Compute(int64_t target_ns, std::span<const int64_t> earlier_ns);

  // Latest start of an F or I. REQUIRES: Compute was called. May be negative: then the target cannot be met.
  int64_t LatestStartNs(WorkIndex work, int32_t micro_batch) const {
    return latest_start_ns_[instance_.Index(work, micro_batch)];
  }

 private:
  // Limits that are alike for all micro-batches of a stage.
  struct Stage {
    int64_t way_out_ns = 0;          // after I: the least until the iteration ends
    int64_t device_work_ns = 0;      // per micro-batch, on its device: all that must follow the start of F
    int64_t device_backward_ns = 0;  // per micro-batch, on its device: all that must follow the start of I
    int32_t held = 0;                // the most activations at once (micro_batches: no limit)
    int32_t deferred = 0;            // the most weight gradients that can be left after the last I
    int64_t release_ns = 0;          // after an I that makes room for an F: work before the F may start
  };

  void LimitByMemory(int32_t stage);
  void ComputeInput(int32_t stage, int32_t micro_batch, int64_t target_ns, int64_t earlier_ns);
  void ComputeForward(int32_t stage, int32_t micro_batch, int64_t target_ns, int64_t earlier_ns);
  int64_t LatestEntry(int32_t output, int64_t latest_start_ns);
  int64_t& LatestStart(int32_t stage, Phase phase, int32_t micro_batch) {
    return latest_start_ns_[instance_.Index(WorkOf(stage, phase), micro_batch)];
  }
  int64_t Duration(int32_t stage, Phase phase) const { return instance_.duration_ns[WorkOf(stage, phase)]; }

  const Instance& instance_;
  std::vector<Stage> stages_;
  std::vector<int64_t> latest_start_ns_;  // [work][micro-batch]
  std::vector<int64_t> latest_entry_ns_;  // [output]: of the earliest micro-batch so far
};

}  // namespace geopipe
