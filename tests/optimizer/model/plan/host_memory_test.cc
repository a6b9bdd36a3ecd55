#include "optimizer/model/plan/host_memory.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Llama-2 7B on two nodes of site a, a stage on each, and one of site b with the other two stages.
struct ThreeNodes {
  JobSpec job;
  Plan plan;
  ClusterSpec cluster;

  ThreeNodes() {
    job.parallelism.tensor = 1;
    job.parallelism.data = 1;
    job.model = *ModelPreset("llama-2-7b");
    job.recovery = Recovery::kMemory;
    plan.micro_batch_size = 1;
    plan.sequence_length = 512;
    plan.micro_batches = 4;
    plan.delta_n = {0};
    const std::vector<LayerRange> layers = SplitLayers(job.model, 4);
    for (const auto& [site, node] : {std::pair("a", 0), {"a", 1}, {"b", 0}, {"b", 0}}) {
      plan.Append({.site = site}, layers[plan.stages.size()]);
      plan.devices.back().node = node;
    }
    for (const char* name : {"a", "b"}) {
      cluster.sites.push_back({.name = name, .nodes = 2, .device = {.kind = "h100", .memory_bytes = 80 * kGiB}});
    }
  }
  // Bytes of the states that are kept of one stage.
  int64_t Kept(size_t stage) const { return 24 * ParameterCountPerRank(job.model, plan.stages[stage].layers, 1); }
  std::string Check() const {
    return std::string(CheckHostMemory(JobOnCluster(job, cluster), cluster, plan, InFlightOfPlan(plan)).message());
  }
  // Bytes besides states that a stage takes of its host.
  int64_t Pinned(size_t stage) const {
    JobSpec without = JobOnCluster(job, cluster);
    without.recovery = Recovery::kCheckpoint;
    return MemoryOfPlan(without, plan)[stage].host_bytes;
  }
};

TEST_CASE("states that are kept for recovery have to fit beside each other into the memory of a node's host") {
  ThreeNodes f;
  CHECK(f.Check().empty());  // nobody says what the hosts have
  f.cluster.sites[0].host_memory_bytes = std::max(f.Kept(0) + f.Pinned(0), f.Kept(1) + f.Pinned(1));
  f.cluster.sites[1].host_memory_bytes = f.Kept(2) + f.Pinned(2) + f.Kept(3) + f.Pinned(3);
  CHECK(f.Check().empty());
  f.cluster.sites[1].host_memory_bytes -= 1;
  CHECK(
      f.Check() ==
      "the job does not fit: its devices on node 0 of site \"b\" need 75.6 GiB of their host's memory, which has 75.6 "
      "GiB, for messages, and for states that are offloaded, kept for recovery or copied for checkpoints; recovery: "
      "checkpoint keeps no states there, or spread the job over more nodes");
  f.job.recovery = Recovery::kCheckpoint;
  CHECK(f.Check().empty());
}

TEST_CASE("so have offloaded states, and devices in the host's memory have nothing beside it") {
  ThreeNodes f;
  f.job.parallelism.offload = Offload::kOptimizer;
  f.cluster.sites[0].host_memory_bytes = kGiB;
  CHECK_THAT(f.Check(),
             Catch::Contains("on node 0 of site \"a\"") &&
                 Catch::EndsWith("keeps no states there, or leave parallelism.offload out, or spread the job "
                                 "over more nodes"));
  for (SiteSpec& site : f.cluster.sites) {
    site.device.kind = kHostDevice;
  }
  CHECK(f.Check().empty());
}

}  // namespace
}  // namespace geopipe
