#include "optimizer/model/capabilities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <vector>

namespace geopipe {
namespace {

// Rows in the order of BackendKind.
constexpr std::array<Capabilities, 3> kTable{{
    {.backend = BackendKind::kCpu, .built = true, .computes = true},
    {.backend = BackendKind::kCuda, .computes = true},
    {.backend = BackendKind::kModelled, .built = true},
}};

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
  if (CapabilitiesOf(backend).computes || job.checkpoint.path.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("checkpoint.path is {}; the {} backend computes nothing that could be kept: leave it out",
                  job.checkpoint.path, BackendKindName(backend)));
}

}  // namespace geopipe
