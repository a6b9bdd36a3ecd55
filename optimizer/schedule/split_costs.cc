#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/split_backward.h"

namespace geopipe {
namespace {

// Greatest total duration: an iteration never lasts longer than the sum of all its durations, so no time overflows.
constexpr double kMaxTotalNs = 4e18;
// Most activations that W may need.
constexpr int64_t kMaxKeptUnits = kActivationUnits * kActivationUnits;

class Resolver {
 public:
  Resolver(std::string_view generator, const PipelineShape& shape, const ScheduleCosts& costs)
      : generator_(generator), shape_(shape), costs_(costs) {}

  absl::StatusOr<SplitCosts> Run(int64_t least_cap) {
    const bool no_times = costs_.forward_ns.empty() && costs_.input_grad_ns.empty() && costs_.weight_grad_ns.empty();
    if (!no_times && costs_.weight_grad_ns.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "schedule {} splits the backward, but the costs give no weight gradient time (weight_grad_s)", generator_));
    }
    const int64_t stages = shape_.stages;
    const int64_t time_ns = no_times ? 1 : -1;
    GP_RETURN_IF_ERROR(Fill("forward_ns", costs_.forward_ns, stages, time_ns, split_.forward_ns));
    GP_RETURN_IF_ERROR(Fill("input_grad_ns", costs_.input_grad_ns, stages, time_ns, split_.input_grad_ns));
    GP_RETURN_IF_ERROR(Fill("weight_grad_ns", costs_.weight_grad_ns, stages, time_ns, split_.weight_grad_ns));
    GP_RETURN_IF_ERROR(Fill("latency_ns", costs_.latency_ns, stages - 1, 0, split_.latency_ns));
    GP_RETURN_IF_ERROR(Fill("serialization_ns", costs_.serialization_ns, stages - 1, 0, split_.serialization_ns));
    GP_RETURN_IF_ERROR(CheckTotalTime());
    GP_RETURN_IF_ERROR(FillKept());
    GP_RETURN_IF_ERROR(FillCaps(least_cap));
    return std::move(split_);
  }

 private:
  // `fallback` below 0: the values must be given.
  absl::Status Fill(std::string_view field, std::span<const int64_t> values, int64_t count, int64_t fallback,
                    std::vector<int64_t>& filled) const {
    if (values.empty() && fallback >= 0) {
      filled.assign(static_cast<size_t>(count), fallback);
      return absl::OkStatus();
    }
    if (std::ssize(values) != count) {
      return absl::InvalidArgumentError(
          fmt::format("schedule {}: {} has {} entries: it needs {}", generator_, field, values.size(), count));
    }
    if (const auto negative = std::ranges::find_if(values, [](int64_t value) { return value < 0; });
        negative != values.end()) {
      return absl::InvalidArgumentError(fmt::format("schedule {}: {}[{}] is {}: it must not be negative", generator_,
                                                    field, negative - values.begin(), *negative));
    }
    filled.assign(values.begin(), values.end());
    return absl::OkStatus();
  }

  absl::Status CheckTotalTime() const {
    double per_micro_batch_ns = 0;
    for (const std::vector<int64_t>* const times :
         {&split_.forward_ns, &split_.input_grad_ns, &split_.weight_grad_ns, &split_.latency_ns, &split_.latency_ns,
          &split_.serialization_ns, &split_.serialization_ns}) {
      for (const int64_t time_ns : *times) {
        per_micro_batch_ns += static_cast<double>(time_ns);
      }
    }
    if (per_micro_batch_ns * shape_.micro_batches > kMaxTotalNs) {
      return absl::InvalidArgumentError(
          fmt::format("schedule {}: all durations of an iteration add up to {:.3g} s: they must stay below {:.3g} s",
                      generator_, per_micro_batch_ns * shape_.micro_batches * 1e-9, kMaxTotalNs * 1e-9));
    }
    return absl::OkStatus();
  }

  absl::Status FillKept() {
    split_.kept_units.assign(static_cast<size_t>(shape_.stages), kActivationUnits / 2);
    if (costs_.activation_bytes.empty() && costs_.wgrad_bytes.empty()) {
      return absl::OkStatus();
    }
    std::vector<int64_t> activation_bytes;
    std::vector<int64_t> wgrad_bytes;
    GP_RETURN_IF_ERROR(Fill("activation_bytes", costs_.activation_bytes, shape_.stages, -1, activation_bytes));
    GP_RETURN_IF_ERROR(Fill("wgrad_bytes", costs_.wgrad_bytes, shape_.stages, -1, wgrad_bytes));
    for (size_t stage = 0; stage < activation_bytes.size(); ++stage) {
      const __int128 activation = std::max<int64_t>(1, activation_bytes[stage]);
      const __int128 units =
          (static_cast<__int128>(wgrad_bytes[stage]) * kActivationUnits + activation - 1) / activation;
      split_.kept_units[stage] =
          std::max(split_.kept_units[stage], static_cast<int64_t>(std::min<__int128>(units, kMaxKeptUnits)));
    }
    return absl::OkStatus();
  }

  absl::Status FillCaps(int64_t least_cap) {
    constexpr int64_t kMaxCap = std::numeric_limits<int64_t>::max() / (2 * kActivationUnits);
    GP_RETURN_IF_ERROR(Fill("activation_cap", costs_.activation_cap, shape_.devices, kMaxCap, split_.cap_units));
    for (size_t device = 0; device < split_.cap_units.size(); ++device) {
      int64_t& cap = split_.cap_units[device];
      if (cap < least_cap) {
        return absl::InvalidArgumentError(fmt::format("schedule {}: activation_cap[{}] is {}: it must be at least {}",
                                                      generator_, device, cap, least_cap));
      }
      cap = std::min(cap, kMaxCap) * kActivationUnits;
    }
    return absl::OkStatus();
  }

  std::string_view generator_;
  const PipelineShape& shape_;
  const ScheduleCosts& costs_;
  SplitCosts split_;
};

}  // namespace

absl::StatusOr<SplitCosts> ResolveCosts(std::string_view generator, const PipelineShape& shape,
                                        const ScheduleCosts& costs, int64_t least_cap) {
  return Resolver(generator, shape, costs).Run(least_cap);
}

void ForgetCrossings(SplitCosts& costs) {
  std::ranges::fill(costs.latency_ns, 0);
  std::ranges::fill(costs.serialization_ns, 0);
}

void CountWhole(SplitCosts& costs) {
  for (int64_t& units : costs.kept_units) {
    units = std::max(units, kActivationUnits);
  }
}

}  // namespace geopipe
