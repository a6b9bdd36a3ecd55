#include "optimizer/model/capabilities.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Rows in the order of BackendKind.
constexpr std::array<Capabilities, kBackendKinds.size()> kTable{{
    {.backend = BackendKind::kCpu, .computes = true},
    {.backend = BackendKind::kCuda, .computes = true, .own_memory = true},
    {.backend = BackendKind::kModelled},
}};

}  // namespace

const Capabilities& CapabilitiesOf(BackendKind backend) { return kTable.at(static_cast<size_t>(backend)); }

absl::Status CheckCapabilities(const JobSpec& job, BackendKind backend) {
  if (CapabilitiesOf(backend).computes || job.checkpoint.path.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("checkpoint.path is {}; the {} backend computes nothing that could be kept: leave it out",
                  job.checkpoint.path, BackendKindName(backend)));
}

JobSpec JobOnBackend(JobSpec job, BackendKind backend) {
  job.own_memory = CapabilitiesOf(backend).own_memory;
  return job;
}

std::string WriteBackends(std::span<const RefusedBackend> refused) {
  std::string text;
  for (const Capabilities& row : kTable) {
    const auto found = std::ranges::find(refused, row.backend, &RefusedBackend::backend);
    std::string reason = found == refused.end() ? "" : fmt::format(": {}", found->reason);
    std::ranges::replace(reason, '\n', ' ');
    text += fmt::format("{}{}\n", BackendKindName(row.backend), reason);
  }
  return text;
}

absl::StatusOr<std::vector<RefusedBackend>> ParseBackends(std::string_view text) {
  std::array<std::optional<std::string>, kTable.size()> reasons;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t colon = std::min(line.find(": "), line.size());
    GP_ASSIGN_OR_RETURN(const BackendKind backend, ParseBackendKind(line.substr(0, colon)));
    std::optional<std::string>& reason = reasons.at(static_cast<size_t>(backend));
    if (reason.has_value()) {
      return absl::InvalidArgumentError(fmt::format("backend {} is told of twice", BackendKindName(backend)));
    }
    reason = colon == line.size() ? "" : std::string(line.substr(colon + 2));
    begin = end + 1;
  }
  std::vector<RefusedBackend> refused;
  for (const Capabilities& row : kTable) {
    const std::optional<std::string>& reason = reasons.at(static_cast<size_t>(row.backend));
    if (!reason.has_value()) {
      return absl::InvalidArgumentError(fmt::format("backend {} is not told of", BackendKindName(row.backend)));
    }
    if (!reason->empty()) {
      refused.push_back({row.backend, *reason});
    }
  }
  return refused;
}

}  // namespace geopipe
