#include "coordinator/cli/playground/playground_layout.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

JobSpec Job(std::vector<std::string> sites, int64_t pipeline) {
  JobSpec job;
  job.placement.sites = std::move(sites);
  job.parallelism.pipeline = pipeline;
  return job;
}

SiteSpec Site(std::string name, int64_t nodes, int64_t devices_per_node) {
  SiteSpec site;
  site.name = std::move(name);
  site.nodes = nodes;
  site.devices_per_node = devices_per_node;
  return site;
}

constexpr PlaygroundLink kLink{20'000'000, 125e6};

TEST_CASE("a link is latency and bandwidth") {
  const auto link = ParsePlaygroundLink("latency=20ms,bandwidth=1Gbps");
  REQUIRE(link.ok());
  CHECK(*link == kLink);
  for (const char* bad : {"", "20ms", "latency=20ms", "bandwidth=1Gbps", "latency=20,bandwidth=1Gbps",
                          "latency=20ms,bandwidth=0Gbps", "latency=20ms,bandwidth=1Gbps,loss=1%"}) {
    INFO(bad);
    CHECK(ParsePlaygroundLink(bad).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("sites bear the job's names and share its stages") {
  const auto layout = LayOutSites(Job({"north", "east"}, 7), 3, kLink);
  REQUIRE(layout.ok());
  CHECK(layout->sites == std::vector<std::string>{"north", "east", "site-3"});
  CHECK(layout->nodes[0].devices == 3);
  CHECK(layout->nodes[1].devices == 2);
  CHECK(layout->nodes[2].devices == 2);
  CHECK(layout->devices() == 7);
  CHECK(layout->links.size() == 6);  // three pairs, both ends
}

TEST_CASE("as many stages as sites unless the job says otherwise") {
  const auto layout = LayOutSites(Job({}, 0), 2, kLink);
  REQUIRE(layout.ok());
  CHECK(layout->devices() == 2);
  CHECK(LayOutSites(Job({}, 2), 3, kLink).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(LayOutSites(Job({}, 0), 0, kLink).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("every stage has a device for each of its tensor ranks and replicas") {
  JobSpec job = Job({}, 3);
  job.parallelism.tensor = 2;
  job.parallelism.data = 3;
  const auto layout = LayOutSites(job, 2, kLink);
  REQUIRE(layout.ok());
  CHECK(layout->nodes[0].devices == 12);
  CHECK(layout->nodes[1].devices == 6);
  job.parallelism.data = 11;
  CHECK(LayOutSites(job, 2, kLink).status().message() ==
        "parallelism.data is 11: 3 stages of 22 devices are 66 ranks, and the playground starts a process for each on "
        "this machine, at most 64; lower it");
}

TEST_CASE("a job that a topology has no room for is refused: nobody would come to its aid") {
  ClusterSpec cluster;
  cluster.sites = {Site("north", 2, 4), Site("east", 1, 2)};
  cluster.links = {{"north", "east", 5, 1e9}};
  const auto refusal = [&](int64_t tensor, int64_t data, int64_t pipeline) {
    JobSpec job = Job({"north", "east"}, pipeline);
    job.parallelism.tensor = tensor;
    job.parallelism.data = data;
    return std::string(LayOutTopology(job, cluster).status().message());
  };
  CHECK(refusal(2, 1, 5).empty());
  CHECK(refusal(2, 1, 6) ==
        "parallelism.pipeline is 6, but the topology has room for 5 stages of 2 devices; lower it or add devices");
  CHECK(
      refusal(4, 1, 0) ==
      "parallelism.tensor is 4; the tensor ranks of a stage share one node, and a node of site \"east\" has 2 devices; "
      "lower it");
  CHECK(refusal(1, 4, 0) ==
        "parallelism.data is 4; without a network between its nodes the replicas of a stage share one node, 4 devices "
        "with tensor 1, and a node of site \"east\" has 2; lower it, or give the site's network in the topology");
}

TEST_CASE("both directions of a link pace on their own, and each direction once") {
  const auto layout = LayOutSites(Job({}, 0), 2, kLink);
  REQUIRE(layout.ok());
  REQUIRE(layout->links.size() == 2);
  CHECK(layout->links[0].from_site == layout->links[1].to_site);
  CHECK(layout->links[0].pacer != layout->links[1].pacer);
}

TEST_CASE("a topology gives every node an agent, in the order of the placement") {
  ClusterSpec cluster;
  cluster.sites.push_back(Site("north", 1, 2));
  cluster.sites.push_back(Site("east", 2, 1));
  cluster.sites[1].network = {.bandwidth_bytes_per_s = 1e9, .latency_ns = 7};
  cluster.links = {{"north", "east", 5, 1e9}};
  const auto layout = LayOutTopology(Job({"east", "north"}, 0), cluster);
  REQUIRE(layout.ok());
  CHECK(layout->nodes[0].network == cluster.sites[1].network);
  CHECK_FALSE(layout->nodes[2].network.given());
  REQUIRE(layout->nodes.size() == 3);
  CHECK(layout->nodes[0].site == "east");
  CHECK(layout->nodes[2].devices == 2);
  CHECK(layout->links.size() == 2);
  CHECK(LayOutTopology(Job({"west"}, 0), cluster).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a case begins a new site behind every crossing") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(4, 8);
  costs.boundaries.resize(3);
  costs.boundaries[0] = {
      .crosses = true, .link = "wan", .message_bytes = 1'000, .latency_ns = 10, .serialization_ns = 1'000};
  costs.boundaries[2] = {
      .crosses = true, .link = "", .message_bytes = 1'000, .latency_ns = 30, .serialization_ns = 500};
  const auto layout = LayOutCase(Job({}, 0), costs);
  REQUIRE(layout.ok());
  REQUIRE(layout->nodes.size() == 3);
  CHECK(layout->nodes[0].devices == 1);
  CHECK(layout->nodes[1].devices == 2);
  CHECK(layout->nodes[2].devices == 1);
  REQUIRE(layout->links.size() == 6);
  CHECK(layout->links[0].link == PlaygroundLink{10, 1e9});
  CHECK(layout->links[0].pacer == "wan-up");
  CHECK(layout->links[2].link == PlaygroundLink{40, 1e9});  // first to last site: both latencies, the lesser bandwidth
  CHECK(layout->links[4].link == PlaygroundLink{30, 2e9});
}

TEST_CASE("a slowdown is of one stage or one link, and nothing else") {
  PlaygroundLayout layout = LayOutSites(JobSpec(), 3, {20'000'000, 1e8}).value();
  RunOptions run;
  REQUIRE(ApplySlowdown("stage=2:1.3", layout, run).ok());
  CHECK(run.slowdown == StageSlowdown{2, 1.3});
  REQUIRE(ApplySlowdown("link=site-2-site-1:3", layout, run).ok());
  for (const PlaygroundLinkEnd& link : layout.links) {
    const bool slowed = link.from_site != "site-3" && link.to_site != "site-3";
    CHECK(link.slowdown == (slowed ? 3 : 1));
  }
  for (const char* wrong : {"stage=3:2", "stage=x:2", "stage=1", "stage=1:0", "link=a-b:2", "wheel=1:2", "1:2", ""}) {
    CAPTURE(wrong);
    CHECK(ApplySlowdown(wrong, layout, run).code() == absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace geopipe
