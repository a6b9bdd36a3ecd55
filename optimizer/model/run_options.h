// Options of one submission of a job: choices of the person at the command line that are not part of the job.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

enum class BackendKind : uint8_t { kCpu, kCuda, kModelled };
inline constexpr std::array kBackendKinds{BackendKind::kCpu, BackendKind::kCuda, BackendKind::kModelled};

// "cpu", "cuda", "modelled".
std::string_view BackendKindName(BackendKind kind);
absl::StatusOr<BackendKind> ParseBackendKind(std::string_view name);

// Makes a paced or modelled stage slower than its plan assumes, to rehearse a wrong prediction.
struct StageSlowdown {
  int32_t stage = 0;
  double factor = 1;

  friend bool operator==(const StageSlowdown&, const StageSlowdown&) = default;
};

struct RunOptions {
  std::optional<ScheduleKind> schedule;  // absent: as the job's search says
  CommMode comm = CommMode::kNonBlocking;
  std::vector<int32_t> delta_n;  // empty: searched; one number stands for all crossings
  BackendKind backend = BackendKind::kCpu;
  bool pace = false;                            // actions last as long as the costs say (the plan's, or explicit_costs)
  std::optional<PipelineCosts> explicit_costs;  // from a case file: replaces model and profile
  int64_t stop_after_iterations = 0;            // 0: the job's own count
  std::optional<StageSlowdown> slowdown;
  bool resume = false;       // from the newest checkpoint below the job's checkpoint.path
  std::string schedule_csv;  // not empty: the schedule (optimizer/schedule/csv.h); schedule and delta_n say nothing

  friend bool operator==(const RunOptions&, const RunOptions&) = default;
};

// True when devices keep a time of their own (paced and modelled runs): actions begin when they could, not when a
// thread wakes.
inline bool KeepsDeviceTime(const RunOptions& run) { return run.pace || run.backend == BackendKind::kModelled; }

}  // namespace geopipe
