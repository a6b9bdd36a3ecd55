// The costs of a pipeline arranged for building schedules: every stage has up to three kinds of work (F, I, W), and of
// each kind its device runs one per micro-batch, in micro-batch order. A schedule is then, for each device, just the
// order in which the kinds alternate.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

enum class Phase : uint8_t {
  kForward,
  kInput,   // I; the full B where the costs cannot be split
  kWeight,  // W; no stage has it where the costs cannot be split
};

// A kind of work: stage * kPhases + phase.
using WorkIndex = int32_t;
inline constexpr int32_t kPhases = 3;
inline constexpr int32_t kNoOutput = -1;

constexpr WorkIndex WorkOf(int32_t stage, Phase phase) { return stage * kPhases + static_cast<int32_t>(phase); }
constexpr int32_t StageOf(WorkIndex work) { return work / kPhases; }
constexpr Phase PhaseOf(WorkIndex work) { return static_cast<Phase>(work % kPhases); }

// [device][position]: the n-th entry of one kind is its micro-batch n.
using Sequences = std::vector<std::vector<WorkIndex>>;

// The way of one kind of output (activations or input gradients of a stage) to the device that waits for it.
struct OutputRoute {
  int32_t fifo = -1;     // -1: it is there at once
  bool ordered = true;   // false: several devices feed the FIFO
  int32_t consumer = 0;  // device that waits for it
  int64_t serialization_ns = 0;
  int64_t latency_ns = 0;

  int64_t delay_ns() const { return fifo < 0 ? 0 : serialization_ns + latency_ns; }
  int64_t spacing_ns() const { return fifo < 0 ? 0 : serialization_ns; }
};

struct Instance {
  int32_t devices = 0;
  int32_t stages = 0;
  int32_t micro_batches = 0;
  bool split = false;
  std::vector<int32_t> device_of;               // [stage]
  std::vector<std::vector<int32_t>> stages_of;  // [device], ascending

  std::vector<int64_t> duration_ns;     // [work]; 0 for W where the costs cannot be split
  std::vector<int64_t> memory_bytes;    // [work]: memory that its device gains by running it once
  std::vector<int64_t> room_bytes;      // [device]: capacity less static memory
  std::vector<int32_t> most_in_flight;  // [stage]: micro-batches between F and I
  std::vector<int32_t> input;           // [work]: index into routes of its input, or kNoOutput
  std::vector<int32_t> output;          // [work]: index into routes of its output for others, or kNoOutput
  std::vector<OutputRoute> routes;      // [stage]: activations; [stages + stage]: input gradients
  int32_t fifo_count = 0;

  // Index of one action, or of one output, in a table with an entry per micro-batch.
  int64_t Index(int32_t work_or_output, int32_t micro_batch) const {
    return int64_t{work_or_output} * micro_batches + micro_batch;
  }
  int64_t ActionCount() const { return int64_t{stages} * micro_batches * (split ? 3 : 2); }
  // All work of a device over one micro-batch.
  int64_t DeviceWorkNs(int32_t device) const;
};

// Messages are non-blocking whatever costs.comm says: schedules are made for no other mode. REQUIRES:
// ValidateCosts(costs).ok().
Instance MakeInstance(const PipelineCosts& costs);

// The schedule that runs `sequences`.
Schedule ToSchedule(const Instance& instance, const PipelineShape& shape, const Sequences& sequences);

// Turns `schedule` into sequences, a full backward as I and W if the costs can be split. False if its forwards are not
// in micro-batch order or it is lowered: it has no such form. REQUIRES: Validate(schedule).ok(), for this shape.
bool ToSequences(const Instance& instance, const Schedule& schedule, Sequences& sequences);

// True when a stage has more micro-batches in flight than it may.
bool RunsTooFarAhead(const Instance& instance, const Schedule& schedule);

// True when every device stays within its room, and every stage within its micro-batches in flight.
bool Fits(const Instance& instance, const Sequences& sequences);

}  // namespace geopipe
