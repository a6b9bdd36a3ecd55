#include "coordinator/core/run/profiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/transformer.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {
namespace {

struct BatchShape {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
};

std::vector<BatchShape> BatchShapes(const JobSpec& job) {
  const int64_t data = std::max<int64_t>(1, job.parallelism.data);
  std::vector<BatchShape> shapes;
  for (const int64_t s : job.search.sequence_length) {
    for (const int64_t b : job.search.micro_batch_size) {
      if (job.training.tokens_per_iteration % (b * s * data) == 0) {
        shapes.push_back({b, s});
      }
    }
  }
  return shapes;
}

int64_t LargestMessageBytes(const JobSpec& job, const RunOptions& run) {
  int64_t largest = 0;
  if (run.explicit_costs.has_value()) {
    for (const BoundaryCost& boundary : run.explicit_costs->boundaries) {
      largest = std::max(largest, boundary.message_bytes);
    }
  } else {
    for (const BatchShape& batch : BatchShapes(job)) {
      const ExecutionConfig config =
          MakeExecutionConfig(job, batch.micro_batch_size, batch.sequence_length, Recompute::kNone);
      largest = std::max(largest, BoundaryMessageBytes(job.model, config));
    }
  }
  return std::min(largest, kMaxProfiledMessageBytes);
}

}  // namespace

bool StandForDevices(const RunOptions& run, const Allocation& allocation) {
  const auto is_described = [](const AllocatedNode& node) {
    const v1::DeviceSpec& device = node.spec.device();
    return device.kind() != kHostDevice && device.peak_flops() > 0 && device.memory_bandwidth_bytes_per_s() > 0;
  };
  return run.pace && std::ranges::all_of(allocation.sites, [&](const AllocatedSite& site) {
           return std::ranges::all_of(site.nodes, is_described);
         });
}

std::vector<ProfileCandidate> ProfileCandidates(const JobSpec& job, const RunOptions& run, size_t workers,
                                                bool stand_for_devices) {
  const bool skip_compute =
      !CapabilitiesOf(run.backend).computes || run.explicit_costs.has_value() || stand_for_devices;
  const int64_t message_bytes = workers < 2 ? 0 : LargestMessageBytes(job, run);
  std::vector<ProfileCandidate> candidates;
  if (skip_compute) {
    if (message_bytes > 0 || !job.checkpoint.path.empty()) {
      candidates.push_back({.skip_compute = true});
    }
  } else {
    for (const BatchShape& batch : BatchShapes(job)) {
      candidates.push_back({.micro_batch_size = batch.micro_batch_size, .sequence_length = batch.sequence_length});
    }
  }
  if (!candidates.empty()) {
    candidates.front().message_bytes = message_bytes;
  }
  return candidates;
}

absl::StatusOr<Measurement> MeasurementOf(const v1::ProfileReport& report) {
  Measurement measurement;
  if (report.has_entry()) {
    GP_ASSIGN_OR_RETURN(measurement.entry, FromProto(report.entry()));
  }
  if (report.has_message()) {
    GP_ASSIGN_OR_RETURN(measurement.message, FromProto(report.message()));
  }
  return measurement;
}

ProfileRounds::ProfileRounds(std::vector<ProfileCandidate> candidates, std::vector<WorkerKey> workers)
    : candidates_(std::move(candidates)), workers_(std::move(workers)), missing_(workers_.begin(), workers_.end()) {}

absl::Status ProfileRounds::CheckMeasurement(const WorkerKey& worker, const Measurement& measurement) const {
  const ProfileCandidate& asked = candidate();
  const std::string from = fmt::format("worker {} answered profiling round {} with", DisplayName(worker), round_);
  if (measurement.entry.has_value() == asked.skip_compute ||
      measurement.message.has_value() != (asked.message_bytes > 0)) {
    return absl::InvalidArgumentError(fmt::format("{} other parts than it was asked for", from));
  }
  if (measurement.entry.has_value()) {
    const ProfileEntry& entry = *measurement.entry;
    if (WorkerKey{entry.site, entry.node, entry.device} != worker || entry.micro_batch_size != asked.micro_batch_size ||
        entry.sequence_length != asked.sequence_length) {
      return absl::InvalidArgumentError(
          fmt::format("{} a measurement of {} at micro_batch_size {}, sequence_length {}; {} and {} were asked for",
                      from, DisplayName(WorkerKey{entry.site, entry.node, entry.device}), entry.micro_batch_size,
                      entry.sequence_length, asked.micro_batch_size, asked.sequence_length));
    }
  }
  if (measurement.message.has_value()) {
    const WorkerKey measured{measurement.message->site, measurement.message->node, measurement.message->device};
    if (measured != worker) {
      return absl::InvalidArgumentError(fmt::format("{} messages of {}", from, DisplayName(measured)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ProfileRounds::OnReport(const WorkerKey& worker, int32_t round, const Measurement& measurement) {
  if (done() || round != round_ || !missing_.contains(worker)) {
    return false;
  }
  GP_RETURN_IF_ERROR(CheckMeasurement(worker, measurement));
  if (measurement.entry.has_value()) {
    profile_.entries.push_back(*measurement.entry);
  }
  if (measurement.message.has_value()) {
    profile_.messages.push_back(*measurement.message);
  }
  missing_.erase(worker);
  if (!missing_.empty()) {
    return false;
  }
  ++round_;
  if (!done()) {
    missing_.insert(workers_.begin(), workers_.end());
  }
  return true;
}

}  // namespace geopipe
