// The backend of a job: which nodes can run it, and what it makes of their devices.
#include <algorithm>
#include <catch2/catch.hpp>
#include <span>
#include <string>
#include <vector>

#include "coordinator/cluster/allocation.h"
#include "coordinator/core/planning.h"
#include "tests/coordinator/core/federation.h"

namespace geopipe {
namespace {

TEST_CASE("a job whose backend a site cannot run is refused with site, node and reason") {
  Federation f;
  f.Register("north");
  f.no_cuda = "no library; install it";
  f.Register("east");
  RunOptions cuda;
  cuda.backend = BackendKind::kCuda;
  const auto apply = [&](const JobSpec& job, const RunOptions& run) {
    f.Step(ApplyJob{f.next_call++, job, run});
    return f.Last<ReplyToCall>().at(0).reply.status();
  };
  const std::string refusal = "site east cannot run backend cuda: node east/n0: no library; install it";
  CHECK(apply(Federation::TinyJob({"north", "east"}), cuda) == absl::FailedPreconditionError(refusal));
  CHECK(apply(Federation::TinyJob({"north"}), cuda).ok());
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);

  // One of several nodes is enough, and one that registers later keeps the job waiting.
  JobSpec second = Federation::TinyJob({"west"});
  second.name = "second";
  CHECK(apply(second, cuda).ok());
  f.Register("west");
  CHECK(f.CauseOf("second") == "waiting: site west cannot run backend cuda: node west/n0: no library; install it");
  f.no_cuda.clear();
  f.Register("west/n1");
  CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  CHECK(std::ranges::any_of(f.Last<SendToAgent>(), [&](const SendToAgent& send) {
    return send.session == f.sessions["west/n1"] && send.message.has_start_workers();
  }));
  CHECK(f.broken == "");
}

TEST_CASE("only nodes whose workers can run the backend give devices") {
  const auto offer = [](const std::string& site, const std::string& name, const std::string& refusal) {
    v1::NodeSpec node;
    node.set_site(site);
    node.set_node(name);
    node.set_devices(1);
    if (!refusal.empty()) {
      v1::RefusedBackend& refused = *node.add_refused_backends();
      refused.set_backend(v1::BACKEND_KIND_CUDA);
      refused.set_reason(refusal);
    }
    return NodeOffer{{site, name}, node, {0}, {}};
  };
  const std::vector<NodeOffer> offers{offer("east", "a", "no driver"), offer("east", "b", ""),
                                      offer("west", "a", "no library"), offer("west", "b", "no driver")};
  RunOptions cuda;
  cuda.backend = BackendKind::kCuda;
  const auto nodes = [&](const std::vector<std::string>& sites, const RunOptions& run) {
    return DecideAllocation(Federation::TinyJob(sites), run, offers).allocation->nodes().size();
  };
  CHECK(nodes({}, {}) == 4);
  CHECK(nodes({}, cuda) == 1);
  CHECK(nodes({"east"}, cuda) == 1);
  CHECK(CheckBackend(Federation::TinyJob({"east"}), cuda, offers).ok());
  CHECK(CheckBackend(Federation::TinyJob({}), cuda, offers).ok());
  CHECK(CheckBackend(Federation::TinyJob({"north"}), cuda, offers).ok());  // which has not registered
  CHECK(CheckBackend(Federation::TinyJob({"west"}), {}, offers).ok());
  const std::string refusal = "site west cannot run backend cuda: node west/a: no library";
  CHECK(CheckBackend(Federation::TinyJob({"east", "west"}), cuda, offers).message() == refusal);
  CHECK(DecideAllocation(Federation::TinyJob({"east", "west"}), cuda, offers).reason == "waiting: " + refusal);
  CHECK(CheckBackend(Federation::TinyJob({}), cuda, std::span(offers).last(2)).message() ==
        "no site can run backend cuda: node west/a: no library");
}

// Two sites of two GPUs that say what they can do, with nothing measured.
PlanningInput GpuInput() {
  PlanningInput input{.job = Federation::TinyJob({"north", "east"}), .run = {}, .cluster = {}};
  input.job.search.micro_batch_size = {1};
  input.job.search.schedule = ScheduleKind::kGeoPipe;
  input.job.parallelism.tensor = 0;
  input.job.parallelism.data = 0;
  input.run.backend = BackendKind::kCuda;
  for (const char* name : {"north", "east"}) {
    input.cluster.sites.push_back({.name = name,
                                   .devices_per_node = 2,
                                   .device = {.kind = "cuda",
                                              .memory_bytes = int64_t{64} << 30,
                                              .peak_flops = 1e9,
                                              .memory_bandwidth_bytes_per_s = 1e9,
                                              .intra_node_bandwidth_bytes_per_s = 1e12,
                                              .efficiency = 0.5}});
  }
  input.cluster.links = {{.site_a = "north", .site_b = "east", .latency_ns = 1'000'000, .bandwidth_bytes_per_s = 1e9}};
  return input;
}

TEST_CASE("GPUs are planned by their own figures: a reserve, operation by operation, degrees searched") {
  PlanningInput input = GpuInput();
  const PlanResult gpus = *PlanJob(input, {});
  CHECK(gpus.plan.pipeline_ranks[0].capacity_bytes == int64_t{60} << 30);  // less 2 GiB and 1/32
  input.cluster.links[0].latency_ns = 200'000'000;                         // a short pipeline is best
  const PlanResult close = *PlanJob(input, {});
  CHECK(close.plan.grid.tensor * close.plan.grid.data > 1);

  input = GpuInput();
  input.job.parallelism.tensor = input.job.parallelism.data = 1;
  const PlanResult by_default = *PlanJob(input, {});
  for (SiteSpec& site : input.cluster.sites) {
    site.device.roofline = Roofline::kOperation;
  }
  CHECK(PlanJob(input, {})->prediction.iteration_ns == by_default.prediction.iteration_ns);
  for (SiteSpec& site : input.cluster.sites) {
    site.device.roofline = Roofline::kBlock;
    site.device.reserve_bytes = 0;
  }
  const PlanResult by_block = *PlanJob(input, {});
  CHECK(by_block.prediction.iteration_ns != by_default.prediction.iteration_ns);
  CHECK(by_block.plan.pipeline_ranks[0].capacity_bytes == int64_t{64} << 30);

  // Processors in their place compute as processors do, whatever the figures say.
  input.run.backend = BackendKind::kCpu;
  const PlanResult processors = *PlanJob(input, {});
  for (SiteSpec& site : input.cluster.sites) {
    site.device.roofline = Roofline::kOperation;
    site.device.reserve_bytes = int64_t{4} << 30;
    site.device.attention = Attention::kDense;
  }
  const PlanResult others = *PlanJob(input, {});
  CHECK(others.prediction.iteration_ns == processors.prediction.iteration_ns);
  CHECK(others.plan.pipeline_ranks == processors.plan.pipeline_ranks);
}

TEST_CASE("the attention of GPUs is the one that they declare") {
  PlanningInput input = GpuInput();
  input.job.parallelism.tensor = input.job.parallelism.data = 1;
  const int64_t blocked_bytes = PlanJob(input, {})->plan.pipeline_ranks[0].peak_bytes;
  for (SiteSpec& site : input.cluster.sites) {
    site.device.attention = Attention::kDense;
  }
  CHECK(PlanJob(input, {})->plan.pipeline_ranks[0].peak_bytes != blocked_bytes);
}

TEST_CASE("states kept for recovery take the memory of processors' devices, and of GPUs' hosts") {
  PlanningInput input = GpuInput();
  input.job.parallelism.tensor = input.job.parallelism.data = 1;
  const auto peak_bytes = [&](BackendKind backend, Recovery recovery) {
    input.run.backend = backend;
    input.job.recovery = recovery;
    return PlanJob(input, {})->plan.pipeline_ranks[0].peak_bytes;
  };
  CHECK(peak_bytes(BackendKind::kCuda, Recovery::kMemory) == peak_bytes(BackendKind::kCuda, Recovery::kCheckpoint));
  CHECK(peak_bytes(BackendKind::kCpu, Recovery::kMemory) > peak_bytes(BackendKind::kCpu, Recovery::kCheckpoint));

  input.run.backend = BackendKind::kCuda;
  input.job.recovery = Recovery::kMemory;
  input.cluster.sites[0].host_memory_bytes = 1;
  CHECK_THAT(std::string(PlanJob(input, {}).status().message()),
             Catch::StartsWith("the job does not fit: its devices on node 0 of site \"north\" need"));
}

TEST_CASE("the least host memory that alike nodes tell is planned with, and none where one tells none") {
  v1::NodeSpec node;
  node.set_node("a");
  node.set_devices(2);
  node.mutable_device()->set_kind("cuda");
  node.mutable_device()->set_memory_bytes(1);
  node.mutable_device()->set_efficiency(0.5);
  node.set_host_memory_bytes(700);
  v1::NodeSpec other = node;
  other.set_node("b");
  other.set_host_memory_bytes(699);
  Allocation allocation{{{"east", {{node, {0, 1}}, {other, {0, 1}}}}}};
  REQUIRE(ClusterOf(allocation)->cluster.sites.size() == 1);
  CHECK(ClusterOf(allocation)->cluster.sites[0].host_memory_bytes == 699);
  allocation.sites[0].nodes[1].spec.clear_host_memory_bytes();
  CHECK(ClusterOf(allocation)->cluster.sites[0].host_memory_bytes == 0);
}

}  // namespace
}  // namespace geopipe
