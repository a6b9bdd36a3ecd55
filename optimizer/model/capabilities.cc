#include "optimizer/model/capabilities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// In the order of BackendKind.
constexpr std::array<Capabilities, 3> kTable{{
    {.backend = BackendKind::kCpu,
     .built = true,
     .computes = true,
     .bf16 = true,
     .recomputes = true,
     .max_tensor = kAny,
     .max_data = kAny},
    {.backend = BackendKind::kCuda, .computes = true, .bf16 = true},
    {.backend = BackendKind::kModelled,
     .built = true,
     .bf16 = true,
     .recomputes = true,
     .max_tensor = kAny,
     .max_data = kAny},
}};

struct Requirement {
  std::string_view key;
  std::string value;
  std::string supported;
  bool met = false;
};

// What the job asks of a backend.
std::array<Requirement, 5> RequirementsOf(const JobSpec& job, const Capabilities& able) {
  const ParallelismSpec& parallelism = job.parallelism;
  const Recompute recompute = parallelism.recompute.value_or(Recompute::kNone);
  return {{{"precision", "bf16", "fp32", job.precision == Precision::kFp32 || able.bf16},
           {"parallelism.tensor", fmt::to_string(parallelism.tensor), fmt::to_string(able.max_tensor),
            parallelism.tensor <= able.max_tensor},
           {"parallelism.data", fmt::to_string(parallelism.data), fmt::to_string(able.max_data),
            parallelism.data <= able.max_data},
           {"parallelism.recompute", "on", "none", recompute == Recompute::kNone || able.recomputes},
           {"checkpoint.path", job.checkpoint.path, "none", job.checkpoint.path.empty() || able.computes}}};
}

}  // namespace

const Capabilities& CapabilitiesOf(BackendKind backend) { return kTable.at(static_cast<size_t>(backend)); }

absl::Status CheckBuilt(BackendKind backend) {
  if (CapabilitiesOf(backend).built) {
    return absl::OkStatus();
  }
  std::vector<std::string_view> built;
  for (const Capabilities& row : kTable) {
    if (row.built) {
      built.push_back(BackendKindName(row.backend));
    }
  }
  return absl::InvalidArgumentError(fmt::format("backend is {}, which is not part of this build; use {}",
                                                BackendKindName(backend), fmt::join(built, " or ")));
}

absl::Status CheckCapabilities(const JobSpec& job, BackendKind backend) {
  const std::array<Requirement, 5> requirements = RequirementsOf(job, CapabilitiesOf(backend));
  const std::array<Requirement, 5> rehearsed = RequirementsOf(job, CapabilitiesOf(BackendKind::kModelled));
  for (size_t i = 0; i < requirements.size(); ++i) {
    if (!requirements[i].met) {
      return absl::InvalidArgumentError(
          fmt::format("{} is {}; the {} backend supports {} only: use that{}", requirements[i].key,
                      requirements[i].value, BackendKindName(backend), requirements[i].supported,
                      rehearsed[i].met ? ", or rehearse the job with --backend modelled" : ""));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
