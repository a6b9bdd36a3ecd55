// A pipeline in which only some stages occupy their devices: the others let every micro-batch through as soon as it
// comes, one after the other, and have all the memory they want. Every schedule of the whole pipeline is one of the
// reduced pipeline that ends no later, so a bound on all schedules of the reduced one holds for the whole one.
//
// Links are private to their boundaries, which makes nothing later either, apart from the cost that sharing them has in
// any case (link_lines.h). Micro-batches are alike, so the n-th action of a kind that a stage starts may as well be
// that of micro-batch n: the n-th that arrives is there no later. A full backward is I followed at once by W: it holds
// no less memory for no shorter, if W needs no more than an activation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/link_lines.h"
#include "optimizer/simulator/shortest_path.h"

namespace geopipe {

// The way from the end of an action to the arrival of its output at the next kept stage.
struct ReducedWay {
  int64_t occupies_ns = 0;  // at least between two that leave it
  int64_t travels_ns = 0;   // after that
  int32_t link = 0;         // ways with the same number share it
};

struct ReducedStage {
  int32_t stage = 0;              // of the whole pipeline
  int64_t work_ns[kPhases] = {};  // F, I (full B where the costs cannot be split), W (or 0)
  int64_t activation_bytes = 0;
  int64_t kept_bytes = 0;  // between I and W; no more than the activation
  int64_t room_bytes = 0;
  ReducedWay up;    // F to the next kept stage; from the last one through all stages above it and back
  ReducedWay down;  // I to the kept stage before; the first one has no such way
  // Limits that follow from memory.
  int32_t held = 0;        // the most micro-batches in flight
  int32_t deferred = 0;    // the most W that can be left after the last I has started, its own included
  int64_t release_ns = 0;  // after an I that makes room for an F: work before the F may start

  // [micro-batch]: from the start of the iteration to the start of an action, at least.
  std::vector<int64_t> forward_release_ns;
  std::vector<int64_t> input_release_ns;
  // [micro-batch]: from the start of an action to the end of the iteration, at least.
  std::vector<int64_t> forward_tail_ns;
  std::vector<int64_t> input_tail_ns;
};

struct ReducedPipeline {
  int32_t micro_batches = 0;
  bool split = false;
  std::vector<ReducedStage> stages;
  int32_t links = 0;
};

class Reducer {
 public:
  // REQUIRES: ValidateCosts(costs).ok(); one stage per device; OneMicroBatchFits(costs) if it has memory; `costs`
  // outlives this.
  explicit Reducer(const PipelineCosts& costs);

  // REQUIRES: `stages` ascending, not empty.
  ReducedPipeline Reduce(std::span<const int32_t> stages) const;

 private:
  const PipelineCosts& costs_;
  const std::vector<StagePath> paths_;
  const std::vector<LinkLines> lines_;
};

// Lets the boundaries of a pipeline with all stages share links as `instance` says. A search result is then closer to
// the truth, but no longer a bound: partial schedules are not made in order of time.
void ShareLinks(const Instance& instance, ReducedPipeline& pipeline);

// A bound on the end of the iteration by the tails alone.
int64_t RootBoundNs(const ReducedPipeline& pipeline);

// A bound by releases and tails together: on each device, the actions one at a time, each released no earlier and
// followed by its tail, in the best order if they could be interrupted (Jackson's preemptive schedule).
int64_t WindowBoundNs(const ReducedPipeline& pipeline);

}  // namespace geopipe
