// The reasons for a plan's iteration time: the limit of each stage, the sources of the bubble, and changes that would
// help. All of it is measured in simulations of this plan; none is a rule of thumb.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/plan/report/idle_causes.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// The limit that keeps a stage from getting through its steady phase faster.
enum class StageLimit : uint8_t {
  kCompute,   // it works nearly all of the time (kBusyEnough)
  kLink,      // the way over a crossing and back takes longer than the work that is there meanwhile; index: boundary
  kStage,     // another stage, which has no time to lose; index: that one
  kHold,      // its own blocking sends hold it; index: boundary
  kMemory,    // one more ΔN would pay (kWorthwhile) and this stage has no room for it; index: boundary
  kNoSteady,  // it has no steady phase: all of its waiting is warm-up and drain
};

// A stage that is busy for at least this share of its steady phase is bound by its compute.
inline constexpr double kBusyEnough = 0.98;
// A change that saves at least this share of the iteration is worthwhile.
inline constexpr double kWorthwhile = 0.001;

struct StageExplanation {
  StageLimit limit = StageLimit::kCompute;
  int32_t index = 0;
  int64_t work_ns = 0;  // forward and backward of one micro-batch
  // Parts of the iteration in which the stage is idle.
  double warm_up = 0;
  double steady = 0;
  double drain = 0;
  double limit_part = 0;  // of `steady`, by the limit's cause
  // Memory: the largest of "model states", "workspace", "transport buffers" and "activations".
  std::string_view largest_memory;
  int64_t largest_memory_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t capacity_bytes = 0;
  int64_t room_micro_batches = 0;  // whose activations would fit besides
};

// A part of the bubble, as `ratio` of all devices' time; together they make up the bubble.
struct BubblePart {
  IdleCause cause = IdleCause::kWarmUp;
  int32_t index = 0;  // boundary or stage
  double ratio = 0;
};

// A change, and its effect alone on the iteration of this very plan.
struct Remedy {
  enum class Kind : uint8_t {
    kBandwidth,    // a crossing (all that share its link) of twice the bandwidth
    kLatency,      // of half the latency
    kNoDelay,      // all crossings without latency and of boundless bandwidth: the most that links could do
    kDeltaN,       // one more ΔN at a crossing, at all of them when `boundary` is -1
    kFasterStage,  // the slowest stage in nine tenths of its time
    kEvenStages,   // the same work, evenly spread over the stages
  };
  Kind kind = Kind::kBandwidth;
  int32_t boundary = -1;
  int32_t stage = -1;  // kFasterStage; kDeltaN: the stage that lacks most memory for it, -1: memory suffices
  int64_t lacking_bytes = 0;
  int64_t iteration_ns = 0;
  double gain = 0;  // part of the iteration that it saves; below 0: it costs
};

struct PlanExplanation {
  std::vector<StageExplanation> stages;  // per pipeline rank, over all stages that it runs
  std::vector<BubblePart> bubble;        // the greatest first
  std::vector<Remedy> remedies;  // those worth while, the greatest gain first; such as lack memory are among them
};

// `simulated` is the recorded simulation of the result's schedule under its costs. Errors are Simulate's.
absl::StatusOr<PlanExplanation> ExplainPlan(const JobSpec& job, const PlanResult& result,
                                            const SimulationResult& simulated);

}  // namespace geopipe
