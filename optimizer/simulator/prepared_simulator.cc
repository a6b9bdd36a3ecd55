#include "optimizer/simulator/prepared_simulator.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/dependencies.h"
#include "optimizer/simulator/engine.h"

namespace geopipe {
namespace {

// Names the first action that the engine refuses.
absl::Status CheckActions(const Schedule& schedule, const PipelineCosts& costs) {
  const PipelineShape& shape = schedule.shape;
  const bool can_split = !costs.weight_grad_ns.empty();
  for (size_t device = 0; device < schedule.devices.size(); ++device) {
    for (const Action& action : schedule.devices[device]) {
      // One comparison per bound: negative numbers wrap to large ones.
      if (static_cast<uint32_t>(action.stage) >= static_cast<uint32_t>(shape.stages) ||
          static_cast<uint32_t>(action.micro_batch) >= static_cast<uint32_t>(shape.micro_batches) ||
          shape.placement[action.stage] != static_cast<int32_t>(device)) {
        return absl::InvalidArgumentError(
            fmt::format("action {} on device {} does not belong there: {} stages, {} micro-batches", ToString(action),
                        device, shape.stages, shape.micro_batches));
      }
      if (!can_split && (action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kWeightGradient)) {
        return absl::InvalidArgumentError(
            fmt::format("action {} splits the backward, but the costs give no weight gradient time (weight_grad_s)",
                        ToString(action)));
      }
    }
  }
  return absl::OkStatus();
}

double BubbleRatio(std::span<const int64_t> busy_ns, int64_t iteration_ns) {
  if (iteration_ns == 0) {
    return 0;
  }
  double sum_ns = 0;
  for (const int64_t device_busy_ns : busy_ns) {
    sum_ns += static_cast<double>(device_busy_ns);
  }
  return 1 - sum_ns / (static_cast<double>(busy_ns.size()) * static_cast<double>(iteration_ns));
}

absl::Status WhyNotFinished(const Schedule& schedule, const PipelineCosts& costs, const Engine& engine) {
  GP_RETURN_IF_ERROR(CheckActions(schedule, costs));
  std::vector<int64_t> positions;
  for (const Engine::DeviceOutcome& outcome : engine.outcomes()) {
    positions.push_back(outcome.position);
  }
  return absl::FailedPreconditionError(DescribeDeadlock(schedule, positions));
}

}  // namespace

PreparedSimulator::PreparedSimulator(const PipelineCosts& costs)
    : costs_(costs), engine_(MakeEngine(costs)), busy_ns_(static_cast<size_t>(costs.shape.devices)) {
  if (costs.memory.has_value()) {
    peak_bytes_.resize(busy_ns_.size());
  }
}

PreparedSimulator::PreparedSimulator(PreparedSimulator&&) noexcept = default;
PreparedSimulator& PreparedSimulator::operator=(PreparedSimulator&&) noexcept = default;
PreparedSimulator::~PreparedSimulator() = default;

absl::StatusOr<PreparedSimulator::Outcome> PreparedSimulator::Run(const Schedule& schedule) {
  return RunAndRecord(schedule, nullptr);
}

absl::StatusOr<SimulationResult> PreparedSimulator::Simulate(const Schedule& schedule,
                                                             const SimulationOptions& options) {
  SimulationResult result;
  GP_ASSIGN_OR_RETURN(const Outcome outcome, RunAndRecord(schedule, options.record_timeline ? &result : nullptr));
  result.iteration_ns = outcome.iteration_ns;
  result.bubble_ratio = outcome.bubble_ratio;
  result.fits = outcome.fits;
  result.busy_ns = busy_ns_;
  result.peak_bytes = peak_bytes_;
  return result;
}

absl::StatusOr<PreparedSimulator::Outcome> PreparedSimulator::RunAndRecord(const Schedule& schedule,
                                                                           SimulationResult* record) {
  GP_CHECK(schedule.shape == costs_.shape, "the schedule and the costs are for different pipelines");
  GP_CHECK(std::ssize(schedule.devices) == schedule.shape.devices, "{} lists for {} devices", schedule.devices.size(),
           schedule.shape.devices);
  if (engine_->Run(schedule, record) != Engine::End::kFinished) {
    return WhyNotFinished(schedule, costs_, *engine_);
  }
  Outcome outcome{.busy_ns = busy_ns_, .peak_bytes = peak_bytes_};
  const std::span<const Engine::DeviceOutcome> devices = engine_->outcomes();
  for (size_t device = 0; device < devices.size(); ++device) {
    outcome.iteration_ns = std::max(outcome.iteration_ns, devices[device].last_end_ns);
    busy_ns_[device] = devices[device].busy_ns;
    if (costs_.memory.has_value()) {
      peak_bytes_[device] = costs_.memory->static_bytes[device] + devices[device].peak_bytes;
      outcome.fits = outcome.fits && peak_bytes_[device] <= costs_.memory->capacity_bytes[device];
    }
  }
  outcome.iteration_ns += costs_.epilogue_ns;
  outcome.bubble_ratio = BubbleRatio(busy_ns_, outcome.iteration_ns);
  return outcome;
}

}  // namespace geopipe
