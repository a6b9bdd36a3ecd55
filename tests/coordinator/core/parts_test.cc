// The parts of the core by themselves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/allocation.h"
#include "coordinator/core/planning.h"
#include "coordinator/core/run/job_state.h"
#include "coordinator/core/run/profiling.h"
#include "coordinator/core/telemetry/iteration_log.h"
#include "optimizer/search/prng.h"
#include "proto/wire/cluster_wire.h"
#include "tests/coordinator/core/federation.h"
#include "tests/support/seed.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

TEST_CASE("final states have no way out, and every other state can fail and be cancelled") {
  for (const JobState from : AllJobStates()) {
    INFO(JobStateName(from));
    for (const JobState to : AllJobStates()) {
      if (IsFinal(from)) {
        CHECK_FALSE(MayFollow(from, to));
      }
    }
    CHECK(MayFollow(from, v1::JOB_STATE_FAILED) == !IsFinal(from));
    CHECK(MayFollow(from, v1::JOB_STATE_CANCELLED) == !IsFinal(from));
    // A job without a plan may begin again; one that no worker trains may go on elsewhere.
    CHECK(MayFollow(from, v1::JOB_STATE_PENDING) ==
          (from == v1::JOB_STATE_PROFILING || from == v1::JOB_STATE_PLANNING || from == v1::JOB_STATE_DEPLOYING ||
           from == v1::JOB_STATE_REPLANNING || from == v1::JOB_STATE_RECOVERING || from == v1::JOB_STATE_PAUSED));
    CHECK_FALSE(MayFollow(from, from));
    CHECK_FALSE(MayFollow(v1::JOB_STATE_UNSPECIFIED, from));
  }
  CHECK(MayFollow(v1::JOB_STATE_RUNNING, v1::JOB_STATE_REPLANNING));
  CHECK_FALSE(MayFollow(v1::JOB_STATE_REPLANNING, v1::JOB_STATE_RUNNING));  // by a new epoch only
  CHECK_FALSE(MayFollow(v1::JOB_STATE_PENDING, v1::JOB_STATE_RUNNING));
}

RunOptions ExplicitRun() {
  RunOptions run;
  run.backend = BackendKind::kModelled;
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(4, 16);
  costs.forward_ns.assign(4, 1'000'000);
  costs.input_grad_ns.assign(4, 2'000'000);
  costs.boundaries.resize(3);
  costs.boundaries[1] = {
      .crosses = true, .link = "wan", .message_bytes = 1000, .latency_ns = 4'000'000, .serialization_ns = 1000};
  run.explicit_costs = costs;
  return run;
}

ClusterSpec TwoSites() {
  ClusterSpec cluster;
  for (const std::string name : {"north", "east"}) {
    SiteSpec site;
    site.name = name;
    site.devices_per_node = 2;
    site.device.memory_bytes = 1 << 30;
    cluster.sites.push_back(site);
  }
  return cluster;
}

TEST_CASE("explicit costs are divided over the sites where they cross, with the best equal advance") {
  const JobSpec job = Federation::TinyJob({"north", "east"});
  const RunOptions run = ExplicitRun();
  REQUIRE(CheckRunnable(job, run).ok());
  const absl::StatusOr<PlanResult> result = PlanJob({.job = job, .run = run, .cluster = TwoSites()}, {});
  REQUIRE(result.ok());
  REQUIRE(result->plan.stages.size() == 4);
  CHECK(result->plan.SiteOf(1) == "north");
  CHECK(result->plan.devices[1].device == 1);
  CHECK(result->plan.SiteOf(2) == "east");
  REQUIRE(result->plan.delta_n.size() == 1);
  CHECK(result->plan.delta_n[0] >= 1);
  RunOptions none = run;
  none.delta_n = {0};
  CHECK(PlanJob({.job = job, .run = none, .cluster = TwoSites()}, {})->prediction.iteration_ns >
        result->prediction.iteration_ns);
  CHECK(result->prediction.wan_bytes_per_iteration == 2 * 16 * 1000);
  CHECK(result->baselines.size() == 3);
}

TEST_CASE("the search under explicit costs keeps to its evaluations and ends when it is told to") {
  JobSpec job = Federation::TinyJob({"north", "east"});
  const PlanningInput input{.job = job, .run = ExplicitRun(), .cluster = TwoSites()};
  int asked = 0;
  const absl::StatusOr<PlanResult> stopped = PlanJob(input, [&] { return ++asked > 2; });
  REQUIRE(stopped.ok());
  CHECK(stopped->search.stopped_early);
  CHECK(stopped->search.evaluations == 2);
  CHECK(absl::IsDeadlineExceeded(PlanJob(input, [] { return true; }).status()));
  job.search.max_evaluations = 1;
  const absl::StatusOr<PlanResult> bounded = PlanJob({.job = job, .run = ExplicitRun(), .cluster = TwoSites()}, {});
  REQUIRE(bounded.ok());
  CHECK(bounded->plan.delta_n == std::vector<int32_t>{0});
  CHECK(bounded->search.evaluations == 1);
}

TEST_CASE("a split backward under explicit costs keeps within their memory") {
  JobSpec job = Federation::TinyJob({"north", "east"});
  job.search.schedule = ScheduleKind::kZbH2;
  RunOptions run = ExplicitRun();
  run.explicit_costs->weight_grad_ns.assign(4, 1'000'000);
  run.explicit_costs->memory = MemoryCosts{.capacity_bytes = std::vector<int64_t>(4, 100),
                                           .static_bytes = std::vector<int64_t>(4, 10),
                                           .activation_bytes = std::vector<int64_t>(4, 10),
                                           .wgrad_bytes = std::vector<int64_t>(4, 10)};
  const auto peak_bytes = [&](int64_t capacity_bytes) {
    run.explicit_costs->memory->capacity_bytes.assign(4, capacity_bytes);
    return PlanJob({.job = job, .run = run, .cluster = TwoSites()}, {})->plan.pipeline_ranks[0].peak_bytes;
  };
  CHECK(peak_bytes(1000) == 90);  // zb-h2: at most 2P activations
  CHECK(peak_bytes(60) == 60);
  run.explicit_costs->memory->capacity_bytes.assign(4, 15);
  const absl::Status none = PlanJob({.job = job, .run = run, .cluster = TwoSites()}, {}).status();
  CHECK(none.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.message().find("does not fit with schedule zb-h2: pipeline rank") != std::string::npos);
}

// One layer of the tiny job takes as long on every device of both sites.
Profile MeasuredProfile() {
  Profile profile;
  for (const std::string site : {"north", "east"}) {
    for (int32_t device = 0; device < 2; ++device) {
      profile.entries.push_back({.site = site,
                                 .node = "n0",
                                 .device = device,
                                 .micro_batch_size = 1,
                                 .sequence_length = 64,
                                 .embedding = {.forward_ns = 1'000'000},
                                 .block = {.forward_ns = 40'000'000, .input_grad_ns = 80'000'000},
                                 .head = {.forward_ns = 1'000'000, .input_grad_ns = 2'000'000},
                                 .adamw_ns_per_million_parameters = 1'000'000});
    }
  }
  return profile;
}

PlanningInput MeasuredInput(int64_t tensor, int64_t data) {
  PlanningInput input{
      .job = Federation::TinyJob({"north", "east"}), .run = {}, .cluster = TwoSites(), .profile = MeasuredProfile()};
  input.cluster.links = {{.site_a = "north", .site_b = "east", .latency_ns = 1'000'000, .bandwidth_bytes_per_s = 1e9}};
  input.job.search.micro_batch_size = {1};
  input.job.search.schedule = ScheduleKind::kGeoPipe;
  input.job.parallelism.tensor = tensor;
  input.job.parallelism.data = data;
  return input;
}

TEST_CASE("processors that say nothing of their memory's bandwidth hold tensor ranks and replicas all the same") {
  for (const auto& [tensor, data] : {std::pair<int64_t, int64_t>(2, 1), {1, 2}}) {
    const absl::StatusOr<PlanResult> result = PlanJob(MeasuredInput(tensor, data), {});
    INFO(std::string(result.status().message()));
    REQUIRE(result.ok());
    CHECK(result->plan.grid.tensor == tensor);
    CHECK(result->plan.grid.data == data);
  }
}

TEST_CASE("what workers measure is of whole layers, and a tensor rank takes its share of that") {
  const PlanResult whole = *PlanJob(MeasuredInput(1, 2), {});
  const PlanResult halved = *PlanJob(MeasuredInput(2, 1), {});
  REQUIRE(whole.plan.stages.size() == 2);
  REQUIRE(halved.plan.stages == whole.plan.stages);
  const double share = static_cast<double>(halved.costs.forward_ns[0]) / static_cast<double>(whole.costs.forward_ns[0]);
  CHECK(share > 0.45);
  CHECK(share < 0.8);
}

TEST_CASE("degrees that are auto are searched where the sites' figures are all there is, and 1 for what computes") {
  PlanningInput input = MeasuredInput(0, 0);
  const PlanResult computed = *PlanJob(input, {});
  CHECK(computed.plan.grid.tensor == 1);
  CHECK(computed.plan.grid.data == 1);
  input.run.backend = BackendKind::kModelled;
  input.profile.reset();
  for (SiteSpec& site : input.cluster.sites) {
    site.device.peak_flops = 1e9;
    site.device.memory_bandwidth_bytes_per_s = 1e9;
    site.device.intra_node_bandwidth_bytes_per_s = 1e12;
    site.device.efficiency = 0.5;
  }
  input.cluster.links[0].latency_ns = 200'000'000;  // a short pipeline is best
  const absl::StatusOr<PlanResult> modelled = PlanJob(input, {});
  INFO(std::string(modelled.status().message()));
  REQUIRE(modelled.ok());
  CHECK(modelled->plan.grid.tensor * modelled->plan.grid.data > 1);
}

TEST_CASE("what cannot be run is refused with the key and the remedy") {
  const auto message = [](const JobSpec& job, const RunOptions& run) {
    return std::string(CheckRunnable(job, run).message());
  };
  JobSpec job = Federation::TinyJob({"north", "east", "west"});
  CHECK(message(job, ExplicitRun()).find("have 1 crossings and so need 2 sites") != std::string::npos);
  RunOptions endless = ExplicitRun();
  endless.explicit_costs->shape = PipelineShape::Linear(1, 60'000'000);
  endless.explicit_costs->forward_ns = endless.explicit_costs->input_grad_ns = {1};
  endless.explicit_costs->boundaries.clear();
  CHECK(message(job, endless) == "the explicit costs have 60000000 micro-batches; a run has at most 65536");
  job.parallelism.tensor = 3;
  CHECK(message(job, {}).find("parallelism.tensor is 3") == 0);
  job = Federation::TinyJob({"north", "east"});
  CHECK(message(job, ExplicitRun()).empty());
  job.parallelism.data = 2;
  CHECK(message(job, ExplicitRun()) ==
        "parallelism.data is 2; explicit costs are of one device for each stage: leave it out, or have a topology say "
        "what the devices cost");
  job = Federation::TinyJob();
  job.parallelism.sequence_parallel = true;
  CHECK(message(job, {}).find("parallelism.sequence_parallel is true; it splits") == 0);
  job = Federation::TinyJob({"north", "east"});
  RunOptions real = ExplicitRun();
  real.backend = BackendKind::kCpu;
  CHECK(message(job, real).find("the explicit costs have 16 micro-batches") == 0);
  real.explicit_costs->shape = PipelineShape::Linear(
      4, static_cast<int32_t>(job.training.tokens_per_iteration /
                              (job.search.micro_batch_size.front() * job.search.sequence_length.front())));
  CHECK(message(job, real).find("the explicit costs send 1000 bytes over boundary 1, but a micro-batch of this job") ==
        0);
}

TEST_CASE("a blocking run's explicit costs wait for acknowledgements") {
  const JobSpec job = Federation::TinyJob({"north", "east"});
  RunOptions run = ExplicitRun();
  run.schedule = ScheduleKind::kOneFOneB;
  run.comm = CommMode::kBlocking;
  const absl::StatusOr<PlanResult> result = PlanJob({.job = job, .run = run, .cluster = TwoSites()}, {});
  REQUIRE(result.ok());
  CHECK(result->costs.boundaries[1].acknowledgement_ns == 4'000'000);
  CHECK(result->costs.boundaries[0].acknowledgement_ns == 0);
  CHECK(result->costs.epilogue_ns == 0);  // a modelled run has no norm
  run.backend = BackendKind::kCpu;
  REQUIRE(job.training.grad_clip.has_value());
  // Stage 2's last gradient arrives two backwards (4 ms) before the end, is acknowledged 4 ms later, and its terms take
  // 4 ms to stage 0.
  CHECK(PlanJob({.job = job, .run = run, .cluster = TwoSites()}, {})->costs.epilogue_ns == 4'000'000);
  run.comm = CommMode::kNonBlocking;
  CHECK(PlanJob({.job = job, .run = run, .cluster = TwoSites()}, {})->costs.epilogue_ns == 0);
}

TEST_CASE("explicit costs are joined by what messages cost besides their link") {
  const JobSpec job = Federation::TinyJob({"north", "east"});
  RunOptions run = ExplicitRun();
  Profile profile;
  profile.messages = {{.site = "north", .node = "n0", .device = 0, .bytes = 1000, .whole_ns = 5'000, .fixed_ns = 3'000},
                      {.site = "north", .node = "n0", .device = 1, .bytes = 1000, .whole_ns = 9'000, .fixed_ns = 9'000},
                      {.site = "east", .node = "n0", .device = 0, .bytes = 1000, .whole_ns = 7'000, .fixed_ns = 5'000}};
  const auto plan = [&](const std::optional<Profile>& measured) {
    return *PlanJob({.job = job, .run = run, .cluster = TwoSites(), .profile = measured}, {});
  };
  // Boundaries in north, between the two, in east: of a site's devices the lower median counts.
  const PipelineCosts costs = plan(profile).costs;
  CHECK(costs.boundaries[0].overhead_ns == 3'000);  // of no bytes
  CHECK(costs.boundaries[1].overhead_ns == 5'000);  // 6,000 less the microsecond on the link, or 4,000
  CHECK(costs.boundaries[2].overhead_ns == 5'000);
  CHECK(plan(profile).prediction.iteration_ns > plan(std::nullopt).prediction.iteration_ns);
  CHECK(plan(std::nullopt).costs.boundaries[0].overhead_ns == 0);
  // Measured overheads do not count where a rehearsal keeps time.
  ClusterSpec kept = TwoSites();
  kept.sites[1].keeps_time = true;
  kept.links = {{.site_a = "north", .site_b = "east", .latency_ns = 1, .bandwidth_bytes_per_s = 1, .keeps_time = true}};
  const PipelineCosts rehearsed = PlanJob({.job = job, .run = run, .cluster = kept, .profile = profile}, {})->costs;
  const size_t of_kept = kept.sites[1].name == "east" ? 2 : 0;
  CHECK(rehearsed.boundaries[of_kept].overhead_ns == 0);
  CHECK(rehearsed.boundaries[1].overhead_ns == 0);
  CHECK(rehearsed.boundaries[2 - of_kept].overhead_ns > 0);
}

TEST_CASE("paced workers that stand for devices of known speed measure their messages alone") {
  Allocation allocation;
  allocation.sites.resize(2);
  for (AllocatedSite& site : allocation.sites) {
    v1::DeviceSpec& device = *site.nodes.emplace_back().spec.mutable_device();
    device.set_kind("rehearsed");
    device.set_peak_flops(1e12);
    device.set_memory_bandwidth_bytes_per_s(1e9);
  }
  RunOptions paced;
  paced.pace = true;
  CHECK(StandForDevices(paced, allocation));
  CHECK_FALSE(StandForDevices(RunOptions(), allocation));
  v1::DeviceSpec& device = *allocation.sites[1].nodes[0].spec.mutable_device();
  device.set_kind("cpu");  // its figures say less than a measurement
  CHECK_FALSE(StandForDevices(paced, allocation));
  device.set_kind("rehearsed");
  device.set_peak_flops(0);
  CHECK_FALSE(StandForDevices(paced, allocation));

  JobSpec job;
  job.parallelism.tensor = 1;
  job.parallelism.data = 1;
  job.model = TinyModel();
  job.training.tokens_per_iteration = 128;
  job.search.micro_batch_size = {1, 2};
  job.search.sequence_length = {64};
  CHECK(ProfileCandidates(job, paced, 2, false).size() == 2);
  const std::vector<ProfileCandidate> messages = ProfileCandidates(job, paced, 2, true);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].skip_compute);
  CHECK(messages[0].message_bytes > 0);
}

TEST_CASE("a round takes what it asked for and nothing else") {
  const WorkerKey worker{"north", "n0", 0};
  const MessageCost message{.site = "north", .node = "n0", .device = 0, .bytes = 8, .whole_ns = 2, .fixed_ns = 1};
  const ProfileEntry entry{.site = "north",
                           .node = "n0",
                           .device = 0,
                           .micro_batch_size = 2,
                           .sequence_length = 64,
                           .embedding = {},
                           .block = {},
                           .head = {}};
  ProfileRounds rounds({{.micro_batch_size = 2, .sequence_length = 64, .skip_compute = false, .message_bytes = 8}},
                       {worker});
  const auto refused = [&](const Measurement& measurement) {
    return !ProfileRounds(rounds).OnReport(worker, 0, measurement).ok();
  };
  CHECK(refused({}));
  CHECK(refused({.entry = entry, .message = std::nullopt}));
  CHECK(refused({.entry = std::nullopt, .message = message}));
  MessageCost elsewhere = message;
  elsewhere.device = 1;
  CHECK(refused({.entry = entry, .message = elsewhere}));
  ProfileEntry other = entry;
  other.sequence_length = 128;
  CHECK(refused({.entry = other, .message = message}));
  CHECK(*rounds.OnReport(worker, 0, {.entry = entry, .message = message}));
  CHECK(rounds.done());
  CHECK(rounds.profile() == Profile{{entry}, {message}});
}

TEST_CASE("nodes of a site that differ are planned as groups, and the plan says site and node") {
  v1::NodeSpec one;
  one.set_node("a");
  one.set_devices(2);
  one.mutable_device()->set_kind("cpu");
  one.mutable_device()->set_memory_bytes(1);
  one.mutable_device()->set_efficiency(0.5);
  v1::NodeSpec other = one;
  other.set_node("b");
  Allocation allocation{{{"east", {{one, {0, 1}}, {other, {0, 1}}}}}};
  const AllocatedCluster alike = ClusterOf(allocation).value();
  CHECK(alike.cluster.sites.size() == 1);
  CHECK(alike.cluster.sites[0].nodes == 2);
  CHECK(alike.cluster.sites[0].devices_per_node == 2);
  CHECK(alike.nodes == GroupedNodes{{"east", {0, 1}}});

  v1::NodeSpec third = one;
  third.set_node("c");
  third.mutable_device()->set_kind("h100");
  other.set_devices(3);
  allocation = {
      {{"east", {{third, {0, 1}}, {one, {0, 1}}, {other, {0, 1, 2}}, {third, {0, 1}}}}, {"west", {{one, {0}}}}}};
  const AllocatedCluster unlike = ClusterOf(allocation).value();
  std::string text;
  for (const SiteSpec& site : unlike.cluster.sites) {
    text += fmt::format("{} {} x {}, ", site.name, site.nodes, site.devices_per_node);
  }
  CHECK(text == "east/h100 2 x 2, east/cpu 1 x 2, east/cpu-2 1 x 3, west 1 x 1, ");
  CHECK(unlike.nodes == GroupedNodes{{"east/h100", {0, 3}}, {"east/cpu", {1}}, {"east/cpu-2", {2}}, {"west", {0}}});

  Plan plan;
  plan.Append({.site = "east/cpu-2"}, {}, 0, 1);
  plan.Append({.site = "east/h100"}, {}, 1, 0);
  plan.Append({.site = "west"}, {});
  plan.idle = {{"east/h100", 0, {0, 1}}};
  NameSites(unlike.nodes, plan);
  CHECK(plan.pipeline_ranks[0].site == "east");
  CHECK(plan.pipeline_ranks[2].site == "west");
  CHECK(plan.devices == std::vector<DevicePlace>{{2, 1}, {3, 0}, {0, 0}});
  CHECK(plan.idle == std::vector<IdleDevices>{{"east", 0, {0, 1}}});

  const auto entry = [](const std::string& site, const std::string& node) {
    ProfileEntry measured;
    measured.site = site;
    measured.node = node;
    return measured;
  };
  const Profile measured{.entries = {entry("east", "b"), entry("west", "a"), entry("east", "a")},
                         .messages = {{.site = "east", .node = "c"}}};
  const Profile of_groups = ProfileOfGroups(measured, allocation, unlike.nodes);
  CHECK(of_groups.entries[0].site == "east/cpu-2");
  CHECK(of_groups.entries[1].site == "west");
  CHECK(of_groups.entries[2].site == "east/cpu");
  CHECK(of_groups.messages[0].site == "east/h100");
}

TEST_CASE("of a site with different nodes each kind gives what it has") {
  v1::NodeSpec small;
  small.set_devices(2);
  small.mutable_device()->set_kind("a");
  v1::NodeSpec large;
  large.set_devices(4);
  large.mutable_device()->set_kind("b");
  const auto offer = [](v1::NodeSpec spec, const std::string& name, std::vector<int32_t> free) {
    spec.set_node(name);
    return NodeOffer{{"east", name}, spec, std::move(free), {}};
  };
  JobSpec job = Federation::TinyJob({"east"});
  job.parallelism.pipeline = 2;
  const std::vector<NodeOffer> offers{offer(small, "a", {0, 1}), offer(large, "b", {0, 1, 2, 3}),
                                      offer(large, "c", {1, 2, 3}), offer(small, "d", {1})};
  const AllocationDecision decision = DecideAllocation(job, RunOptions(), offers);
  REQUIRE(decision.allocation.has_value());
  std::string text;
  for (const AllocatedNode& node : decision.allocation->sites[0].nodes) {
    text += fmt::format("{}: {}; ", node.spec.node(), fmt::join(node.devices, ","));
  }
  // The most of each kind together: three of either large node, and of the small ones one with two or two with one.
  CHECK(text == "a: 0,1; b: 0,1,2; c: 1,2,3; ");
}

TEST_CASE("the network that all nodes of a site declare is the site's, and theirs must be one") {
  v1::NodeSpec one;
  one.set_node("a");
  one.set_devices(2);
  one.mutable_device()->set_kind("cpu");
  one.mutable_device()->set_memory_bytes(1);
  one.mutable_device()->set_efficiency(0.5);
  const NetworkSpec network{.bandwidth_bytes_per_s = 1e9, .latency_ns = 5000, .per = NetworkSpec::Per::kNode};
  *one.mutable_network() = ToProto(network);
  v1::NodeSpec other = one;
  other.set_node("b");
  Allocation allocation{{{"east", {{one, {0, 1}}, {other, {0, 1}}}}}};
  CHECK(ClusterOf(allocation)->cluster.sites[0].network == network);
  v1::NodeSpec& second = allocation.sites[0].nodes[1].spec;
  second.set_network_is_shaped(true);
  CHECK(ClusterOf(allocation).status().message() ==
        "nodes a and b of site east declare different networks; give `network` the same values in the configuration of "
        "all agents of the site");
  second = other;
  second.clear_network();
  CHECK(ClusterOf(allocation).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("the replicas of a stage get devices of several nodes where these declare their network") {
  v1::NodeSpec node;
  node.set_devices(3);
  const auto offer = [&](const std::string& name) {
    node.set_node(name);
    return NodeOffer{{"east", name}, node, {0, 1, 2}, {}};
  };
  JobSpec job = Federation::TinyJob({"east"});
  job.parallelism.tensor = 2;
  job.parallelism.data = 2;
  const auto decide = [&] {
    const std::vector<NodeOffer> offers = {offer("a"), offer("b"), offer("c")};
    return DecideAllocation(job, {}, offers);
  };
  CHECK(decide().reason == "waiting for site east: 0 of 4 devices");
  *node.mutable_network() = ToProto(NetworkSpec{.bandwidth_bytes_per_s = 1e9});
  const AllocationDecision decision = decide();
  REQUIRE(decision.allocation.has_value());
  CHECK(decision.allocation->devices() == 6);  // a pair of each node
  job.parallelism.pipeline = 2;
  CHECK(decide().reason == "waiting for sites east: 4 of 8 devices");  // three pairs make one stage with its replica
}

TEST_CASE("a pipeline longer than the devices waits for more") {
  JobSpec job = Federation::TinyJob({"east"});
  job.parallelism.pipeline = 3;
  v1::NodeSpec node;
  node.set_node("a");
  node.set_devices(2);
  const std::vector<NodeOffer> offers{{{"east", "a"}, node, {0, 1}, {}}};
  CHECK(DecideAllocation(job, {}, offers).reason == "waiting for sites east: 2 of 3 devices");
  CHECK(DecideAllocation(Federation::TinyJob({}), {}, {}).reason == "waiting for agents: none has registered");
  CHECK(DecideAllocation(Federation::TinyJob({}), {}, offers).allocation->devices() == 2);
}

TEST_CASE("of free devices equally many of each node are taken, and as many as can be") {
  v1::NodeSpec node;
  node.set_devices(8);
  const auto offer = [&](const std::string& name, std::vector<int32_t> free) {
    node.set_node(name);
    return NodeOffer{{"east", name}, node, std::move(free), {"other"}};
  };
  const std::vector<NodeOffer> offers = {offer("a", {0, 1, 2, 3, 4, 5, 6, 7}), offer("b", {2, 3, 5, 6, 7}),
                                         offer("c", {7}), offer("d", {})};
  JobSpec job = Federation::TinyJob({"east"});
  const auto taken = [&](int32_t tensor) {
    job.parallelism.tensor = tensor;
    const AllocationDecision decision = DecideAllocation(job, {}, offers);
    REQUIRE(decision.allocation.has_value());
    std::vector<std::string> names;
    for (const WorkerKey& worker : decision.allocation->workers()) {
      names.push_back(worker.node + std::to_string(worker.device));
    }
    return names;
  };
  // Five of a and b each; of whole pairs eight, rather of one node; one group of eight there is on a alone.
  CHECK(taken(1) == std::vector<std::string>{"a0", "a1", "a2", "a3", "a4", "b2", "b3", "b5", "b6", "b7"});
  CHECK(taken(2) == std::vector<std::string>{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"});
  CHECK(taken(8) == std::vector<std::string>{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"});
  job.parallelism.tensor = 1;
  job.parallelism.pipeline = 11;
  CHECK(DecideAllocation(job, {}, offers).reason ==
        "waiting for job other, which holds devices of sites east: 10 of 11 devices are free");
}

TEST_CASE("jobs that ask for the same are given the same, whatever else they are") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  std::vector<NodeOffer> offers;
  for (const char* name : {"east/a", "east/b", "west/a", "west/b"}) {
    const std::string_view text(name);
    v1::NodeSpec node;
    node.set_node(std::string(text.substr(5)));
    node.set_devices(4);
    if (text.starts_with("east")) {
      *node.mutable_network() = ToProto(NetworkSpec{.bandwidth_bytes_per_s = 1e9});
    }
    offers.push_back({{std::string(text.substr(0, 4)), node.node()}, node, {0, 2, 3}, {"other"}});
  }
  std::map<std::string, std::string> given;
  for (int i = 0; i < 3000; ++i) {
    JobSpec job = Federation::TinyJob(
        std::vector<std::vector<std::string>>{{}, {"east"}, {"west", "east"}, {"east", "north"}}[prng.Between(0, 3)]);
    job.name = fmt::format("job{}", i);
    job.parallelism.tensor = static_cast<int32_t>(prng.Between(1, 3));
    job.parallelism.data = static_cast<int32_t>(prng.Between(1, 3));
    job.parallelism.pipeline = static_cast<int32_t>(prng.Between(0, 4));
    job.parallelism.zero_stage = static_cast<int32_t>(prng.Between(0, 3));
    job.training.iterations = prng.Between(1, 9);
    job.model.num_hidden_layers = prng.Between(1, 9);
    job.grace_ns = prng.Between(1, 9);
    RunOptions run;
    run.pace = prng.Between(0, 1) == 1;
    run.backend = prng.Between(0, 1) == 1 ? BackendKind::kModelled : BackendKind::kCpu;
    const AllocationDecision decision = DecideAllocation(job, run, offers);
    std::string gets = decision.reason;
    if (decision.allocation.has_value()) {
      for (const WorkerKey& worker : decision.allocation->workers()) {
        gets += " " + DisplayName(worker);
      }
    }
    const auto [first, is_new] = given.emplace(AskedFor(job, run), gets);
    INFO(first->first);
    CHECK(first->second == gets);
  }
  CHECK(given.size() > 100);
  CHECK(given.size() < 1000);
}

}  // namespace
}  // namespace geopipe
