// Jobs and clusters that the planner's tests share.
#pragma once

#include <cstdint>

#include "optimizer/base/check.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/groups/node_groups.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/sweep.h"

namespace geopipe::test {

inline constexpr int64_t kGiB = int64_t{1} << 30;
inline constexpr int64_t kMillisecond = 1'000'000;

// Three regions of 3, 2 and 3 nodes with 8 devices of 64 GiB each.
inline ClusterSpec ThreeRegions(int64_t memory_bytes = 64 * kGiB) {
  const DeviceSpec device{.kind = "npu-64gb",
                          .memory_bytes = memory_bytes,
                          .peak_flops = 320e12,
                          .memory_bandwidth_bytes_per_s = 1.6e12,
                          .intra_node_bandwidth_bytes_per_s = 196e9,
                          .efficiency = 0.5};
  ClusterSpec cluster;
  cluster.sites = {{"north", 3, 8, device}, {"east", 2, 8, device}, {"west", 3, 8, device}};
  cluster.links = {{"north", "east", 5 * kMillisecond, 50e9}, {"east", "west", 8 * kMillisecond, 50e9}};
  return cluster;
}

// North and west with two nodes like three regions' and one of four slower devices each, over a network.
inline ClusterSpec RegionsOfGroups() {
  const ClusterSpec regions = ThreeRegions();
  ClusterSpec cluster;
  for (const std::string name : {"north", "west"}) {
    SiteSpec fast = regions.sites[0];
    fast.name = name + "/fast";
    fast.nodes = 2;
    fast.network = {.bandwidth_bytes_per_s = 25e9, .latency_ns = 10'000};
    SiteSpec slow = fast;
    slow.name = name + "/slow";
    slow.nodes = 1;
    slow.devices_per_node = 4;
    slow.device.peak_flops *= 0.7;
    cluster.sites.push_back(fast);
    cluster.sites.push_back(slow);
  }
  cluster.links = LinksOfGroups(cluster.sites, {{"north", "west", 5 * kMillisecond, 50e9}});
  return cluster;
}

// Llama-2 13B in the paper's shape: tensor 8 inside a node, 8 stages over the three regions.
inline JobSpec Llama13bJob() {
  JobSpec job;
  job.name = "llama-2-13b";
  auto model = ModelPreset("llama-2-13b");
  GP_CHECK(model.ok());
  job.model = *model;
  job.training.iterations = 1000;
  job.training.tokens_per_iteration = 1 << 20;
  job.precision = Precision::kBf16;
  job.parallelism.tensor = 8;
  job.parallelism.data = 1;
  job.parallelism.pipeline = 8;
  job.parallelism.sequence_parallel = true;
  job.parallelism.layers = LayerSplit::kEven;
  job.search.micro_batch_size = {1, 2, 4};
  job.search.sequence_length = {2048, 4096};
  job.placement.sites = {"north", "east", "west"};
  return job;
}

// Searched by genome alone.
inline PlanRequest PaperRequest() {
  PlanRequest request;
  request.refine = false;
  request.job = Llama13bJob();
  request.cluster = ThreeRegions();
  return request;
}

// The sweep of that job over these figures.
inline SweepRequest PaperSweep(std::vector<SweepAxis> axes) {
  SweepRequest request;
  request.base = PaperRequest();
  request.axes = std::move(axes);
  request.schedules = {"geopipe"};
  return request;
}

}  // namespace geopipe::test
