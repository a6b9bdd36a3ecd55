#include "optimizer/model/pipeline_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Greatest total duration: an iteration never lasts longer than the sum of all its durations, so no time overflows.
constexpr double kMaxTotalNs = 4e18;
constexpr double kMaxTotalBytes = 4e18;

// Checks that there is one entry per `per`, none negative.
absl::Status CheckVector(std::string_view field, std::span<const int64_t> values, int32_t count, std::string_view per) {
  if (std::ssize(values) != count) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} entries: it needs {}, one per {}", field, values.size(), count, per));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) {
      return absl::InvalidArgumentError(fmt::format("{}[{}] is {}: it must not be negative", field, i, values[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBoundary(size_t index, const BoundaryCost& boundary) {
  if (boundary.message_bytes < 0 || boundary.latency_ns < 0 || boundary.serialization_ns < 0 ||
      boundary.acknowledgement_ns < 0 || boundary.overhead_ns < 0) {
    return absl::InvalidArgumentError(fmt::format(
        "boundaries[{}] has message_bytes {}, latency_ns {}, serialization_ns {}, acknowledgement_ns {}, overhead_ns "
        "{}: none may be negative",
        index, boundary.message_bytes, boundary.latency_ns, boundary.serialization_ns, boundary.acknowledgement_ns,
        boundary.overhead_ns));
  }
  const bool acknowledges = boundary.acknowledgement_ns != 0 && boundary.overhead_ns == 0;
  if (!boundary.crosses &&
      (!boundary.link.empty() || boundary.latency_ns != 0 || boundary.serialization_ns != 0 || acknowledges)) {
    return absl::InvalidArgumentError(
        fmt::format("boundaries[{}] has no link but link '{}', latency_ns {}, serialization_ns {}: a boundary without "
                    "a link costs nothing",
                    index, boundary.link, boundary.latency_ns, boundary.serialization_ns));
  }
  return absl::OkStatus();
}

// True when one bandwidth gives both serializations, each rounded to whole nanoseconds, of messages rounded to whole
// bytes.
bool SameBandwidth(const BoundaryCost& a, const BoundaryCost& b) {
  if (a.message_bytes == b.message_bytes) {
    return a.serialization_ns == b.serialization_ns;
  }
  const __int128 difference = static_cast<__int128>(a.serialization_ns) * b.message_bytes -
                              static_cast<__int128>(b.serialization_ns) * a.message_bytes;
  const __int128 rounding =
      static_cast<__int128>(a.serialization_ns) + b.serialization_ns + a.message_bytes + b.message_bytes + 1;
  return 2 * (difference < 0 ? -difference : difference) <= rounding;
}

absl::Status CheckBoundaries(const PipelineCosts& costs) {
  if (std::ssize(costs.boundaries) != costs.shape.stages - 1) {
    return absl::InvalidArgumentError(fmt::format("boundaries has {} entries: it needs {}, one between two stages",
                                                  costs.boundaries.size(), costs.shape.stages - 1));
  }
  std::map<std::string_view, size_t> first_of_link;
  for (size_t i = 0; i < costs.boundaries.size(); ++i) {
    const BoundaryCost& boundary = costs.boundaries[i];
    GP_RETURN_IF_ERROR(CheckBoundary(i, boundary));
    if (boundary.link.empty()) {
      continue;
    }
    const size_t first = first_of_link.try_emplace(boundary.link, i).first->second;
    const BoundaryCost& other = costs.boundaries[first];
    if (boundary.latency_ns != other.latency_ns || !SameBandwidth(boundary, other)) {
      return absl::InvalidArgumentError(fmt::format(
          "boundaries[{}] and boundaries[{}] share link '{}' but differ: latency_ns {} and {}, serialization_ns {} and "
          "{} for {} and {} bytes; a shared link has one latency and one bandwidth",
          first, i, boundary.link, other.latency_ns, boundary.latency_ns, other.serialization_ns,
          boundary.serialization_ns, other.message_bytes, boundary.message_bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const MemoryCosts& memory, const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(CheckVector("memory.capacity_bytes", memory.capacity_bytes, shape.devices, "device"));
  GP_RETURN_IF_ERROR(CheckVector("memory.static_bytes", memory.static_bytes, shape.devices, "device"));
  GP_RETURN_IF_ERROR(CheckVector("memory.activation_bytes", memory.activation_bytes, shape.stages, "stage"));
  GP_RETURN_IF_ERROR(CheckVector("memory.wgrad_bytes", memory.wgrad_bytes, shape.stages, "stage"));
  double total_bytes = 0;
  for (const int64_t bytes : memory.static_bytes) {
    total_bytes += static_cast<double>(bytes);
  }
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    total_bytes += static_cast<double>(shape.micro_batches) * (static_cast<double>(memory.activation_bytes[stage]) +
                                                               static_cast<double>(memory.wgrad_bytes[stage]));
  }
  if (total_bytes > kMaxTotalBytes) {
    return absl::InvalidArgumentError(
        fmt::format("memory adds up to {:.3g} bytes over all micro-batches: it must stay below {:.3g}", total_bytes,
                    kMaxTotalBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckTotalTime(const PipelineCosts& costs) {
  double per_micro_batch_ns = 0;
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    per_micro_batch_ns +=
        static_cast<double>(costs.forward_ns[stage]) + static_cast<double>(costs.input_grad_ns[stage]);
    per_micro_batch_ns += costs.weight_grad_ns.empty() ? 0.0 : static_cast<double>(costs.weight_grad_ns[stage]);
  }
  for (const BoundaryCost& boundary : costs.boundaries) {
    per_micro_batch_ns +=
        2.0 * (static_cast<double>(boundary.latency_ns) + static_cast<double>(boundary.serialization_ns) +
               static_cast<double>(boundary.acknowledgement_ns) + static_cast<double>(boundary.overhead_ns));
  }
  const double total_ns = per_micro_batch_ns * costs.shape.micro_batches + static_cast<double>(costs.epilogue_ns);
  if (total_ns > kMaxTotalNs) {
    return absl::InvalidArgumentError(fmt::format(
        "all durations of an iteration add up to {:.3g} s: they must stay below {:.3g} s to be counted in nanoseconds",
        total_ns * 1e-9, kMaxTotalNs * 1e-9));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SecondsToNs(double seconds) {
  GP_CHECK(std::isfinite(seconds) && seconds >= 0 && seconds < 9e9, "{} s", seconds);
  const double ns = seconds * 1e9;
  const double whole = std::floor(ns);
  // The fraction is exact; adding a half first could round up a value just below a half.
  return static_cast<int64_t>(whole) + (ns - whole >= 0.5 ? 1 : 0);
}

absl::Status ValidateCosts(const PipelineCosts& costs) {
  GP_RETURN_IF_ERROR(ValidateShape(costs.shape));
  const int32_t stages = costs.shape.stages;
  GP_RETURN_IF_ERROR(CheckVector("forward_ns", costs.forward_ns, stages, "stage"));
  GP_RETURN_IF_ERROR(CheckVector("input_grad_ns", costs.input_grad_ns, stages, "stage"));
  if (!costs.weight_grad_ns.empty()) {
    GP_RETURN_IF_ERROR(CheckVector("weight_grad_ns", costs.weight_grad_ns, stages, "stage"));
  }
  if (costs.epilogue_ns < 0) {
    return absl::InvalidArgumentError(fmt::format("epilogue_ns is {}: it must not be negative", costs.epilogue_ns));
  }
  GP_RETURN_IF_ERROR(CheckBoundaries(costs));
  if (costs.memory.has_value()) {
    GP_RETURN_IF_ERROR(CheckMemory(*costs.memory, costs.shape));
  }
  return CheckTotalTime(costs);
}

ScheduleCosts ScheduleCostsOf(const PipelineCosts& costs) {
  ScheduleCosts schedule_costs{.forward_ns = costs.forward_ns,
                               .input_grad_ns = costs.input_grad_ns,
                               .weight_grad_ns = costs.weight_grad_ns,
                               .latency_ns = {},
                               .serialization_ns = {},
                               .activation_bytes = {},
                               .wgrad_bytes = {},
                               .activation_cap = {}};
  for (const BoundaryCost& boundary : costs.boundaries) {
    schedule_costs.latency_ns.push_back(boundary.latency_ns + boundary.overhead_ns);
    schedule_costs.serialization_ns.push_back(boundary.serialization_ns);
  }
  if (costs.memory.has_value() && std::ranges::any_of(costs.memory->activation_bytes, std::identity())) {
    schedule_costs.activation_bytes = costs.memory->activation_bytes;
    schedule_costs.wgrad_bytes = costs.memory->wgrad_bytes;
  }
  return schedule_costs;
}

}  // namespace geopipe
