#include "optimizer/model/plan/host_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/model/plan/plan_memory.h"

namespace geopipe {
namespace {

std::string Remedies(const JobSpec& job) {
  std::vector<std::string_view> remedies;
  if (job.recovery == Recovery::kMemory) {
    remedies.emplace_back("recovery: checkpoint keeps no states there");
  }
  if (job.parallelism.offload == Offload::kOptimizer) {
    remedies.emplace_back("leave parallelism.offload out");
  }
  remedies.emplace_back("spread the job over more nodes");
  return fmt::format("{}", fmt::join(remedies, ", or "));
}

}  // namespace

absl::Status CheckHostMemory(const JobSpec& job, const ClusterSpec& cluster, const Plan& plan,
                             const std::vector<int64_t>& in_flight) {
  std::vector<int64_t> of_rank(static_cast<size_t>(plan.grid.pipeline), 0);  // each of its devices
  const std::vector<StageMemory> memory = MemoryOfStages(NeedsOfPlan(job, plan), in_flight, plan.comm);
  for (size_t stage = 0; stage < memory.size(); ++stage) {
    of_rank[plan.stages[stage].pipeline_rank] += memory[stage].host_bytes;
  }
  std::map<std::pair<std::string_view, int32_t>, int64_t> of_node;
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    of_node[{plan.SiteOfRank(rank), plan.devices[rank].node}] += of_rank[plan.grid.At(rank).pipeline];
  }
  for (const auto& [place, bytes] : of_node) {
    const SiteSpec* site = cluster.FindSite(place.first);
    if (site == nullptr || site->host_memory_bytes == 0 || site->device.is_in_host_memory() ||
        bytes <= site->host_memory_bytes) {
      continue;
    }
    return absl::FailedPreconditionError(
        fmt::format("the job does not fit: its devices on node {} of site \"{}\" need {} of their host's memory, which "
                    "has {}, for messages, and for states that are offloaded, kept for recovery or copied for "
                    "checkpoints; {}",
                    place.second, place.first, HumanBytes(bytes), HumanBytes(site->host_memory_bytes), Remedies(job)));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
