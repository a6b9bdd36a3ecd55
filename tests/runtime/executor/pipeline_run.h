// Runs a pipeline of executors over toy engines, one thread per rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/executor/executor.h"
#include "tests/runtime/executor/toy_engine.h"
#include "tests/support/in_process_transport.h"

namespace geopipe {

struct PipelineOptions {
  ToyModel model;
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int32_t ranks = 1;     // each with the stages that the kind's layout gives it
  int32_t per_rank = 2;  // where that is looped
  int32_t delta_n = 0;   // at every boundary
  bool norms = true;
  CommMode comm = CommMode::kNonBlocking;
  int64_t start_iteration = 0;
  int64_t end_iteration = 6;
  int64_t progress_deadline_ns = 60'000'000'000;
  std::atomic<bool>* stop = nullptr;
  int64_t evaluate_every = 0;  // iterations, and after the last; 0: nothing is evaluated
  int64_t passes = 1;          // of each evaluation
  std::function<void(std::span<const std::unique_ptr<ToyEngine>>, InProcessNetwork&)> prepare;
};

struct PipelineRun {
  std::vector<absl::Status> statuses;                     // per rank
  std::vector<std::vector<IterationStats>> reports;       // per rank
  std::vector<std::vector<EvaluationStats>> evaluations;  // per rank
  // Greatest number of activations of each boundary between ranks that were sent and not taken at once, and the slots.
  std::vector<std::pair<int64_t, int64_t>> outstanding;
  std::vector<int64_t> greatest_in_flight;  // per stage
  int64_t throttled = 0;
  Schedule schedule;

  std::vector<double> losses() const;  // of the last stage's rank, in iteration order
};

// Lowers the schedule, makes the channels, runs all ranks to their end.
PipelineRun RunPipeline(const PipelineOptions& options);

// Layers of a toy model on a stage, as even as possible, larger ones first.
LayerRange ToyLayers(const ToyModel& model, int32_t stage, int32_t stages);

}  // namespace geopipe
