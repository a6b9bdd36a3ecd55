#include "optimizer/plan/space/shapes.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "optimizer/plan/planner.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

TEST_CASE("fixed degrees leave one shape, auto all that divide model, tokens and nodes") {
  JobSpec job = test::Llama13bJob();
  const ClusterSpec cluster = test::ThreeRegions();
  const SiteOrder sites{"north", "east", "west"};
  CHECK(ShapesOf(job, cluster, sites) == std::vector<Shape>{{sites, 8, 8, 1}});
  job.parallelism.tensor = 0;
  job.parallelism.pipeline = 0;
  const std::vector<Shape> tensor = ShapesOf(job, cluster, sites);
  CHECK(tensor.front() == Shape{sites, 1, 0, 1});
  for (const Shape& shape : tensor) {
    CHECK((shape.tensor == 1 || shape.tensor == 2 || shape.tensor == 4 || shape.tensor == 8));
    CHECK(shape.data == 1);
  }
  // 64 devices make pipelines of at most 40 (the layers), 32, 16 and 8 ranks. Of fewer, but for every site, those with
  // the fewest ranks of all with so many layers on the fullest, or with one more for the head.
  const auto pipelines = [&](int64_t of) {
    std::set<int64_t> all;
    for (const Shape& shape : tensor) {
      CHECK((shape.tensor != of || all.insert(shape.pipeline).second));
    }
    return all;
  };
  CHECK(pipelines(8) == std::set<int64_t>{0, 3, 4, 5, 6, 7});
  CHECK(pipelines(4) == std::set<int64_t>{0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14});
  CHECK(pipelines(1) == std::set<int64_t>{0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 20, 21});
  job.parallelism.data = 0;
  for (const Shape& shape : ShapesOf(job, cluster, sites)) {
    CHECK(shape.tensor * shape.data <= 8);
    CHECK(ValidateJob(JobOf(job, shape)).ok());
  }
}

TEST_CASE("local search finds the shortest way through sites on a line") {
  ClusterSpec cluster;
  std::vector<std::string> start;
  for (int i = 0; i < 12; ++i) {
    const std::string name = "site" + std::to_string(i * 5 % 12);
    cluster.sites.push_back({name, 1, 1, {.memory_bytes = 1}});
    for (const std::string& other : start) {
      cluster.links.push_back({name, other, 1000, 1e9});
    }
    start.push_back(name);
  }
  const auto position = [](const std::string& name) { return std::stoi(name.substr(4)); };
  const auto length = [&](const SiteOrder& order) {
    int64_t sum = 1000 * (12 - std::ssize(order));
    for (size_t i = 1; i < order.size(); ++i) {
      sum += std::abs(position(order[i]) - position(order[i - 1]));
    }
    return sum;
  };
  REQUIRE(length(start) > 11);
  CHECK(length(ImproveOrder(cluster, start, length, {})) == 11);
  CHECK(ImproveOrder(cluster, start, length, [] { return true; }) == start);
}

// Sites at random places, every pair linked.
ClusterSpec Scattered(int sites) {
  Prng prng(3);
  ClusterSpec cluster;
  std::vector<std::pair<double, double>> places;
  for (int i = 0; i < sites; ++i) {
    const double speed = static_cast<double>(prng.Between(60, 160));
    cluster.sites.push_back({"site" + std::to_string(i),
                             1,
                             2,
                             {.kind = "device",
                              .memory_bytes = 64 * test::kGiB,
                              .peak_flops = speed * 1e12,
                              .memory_bandwidth_bytes_per_s = 1.6e12,
                              .intra_node_bandwidth_bytes_per_s = 2e11}});
    places.emplace_back(prng.Between(0, 1000), prng.Between(0, 1000));
    for (int other = 0; other < i; ++other) {
      const double distance =
          std::hypot(places[i].first - places[other].first, places[i].second - places[other].second);
      cluster.links.push_back({"site" + std::to_string(other), "site" + std::to_string(i),
                               static_cast<int64_t>(20'000 * distance), 12.5e9});
    }
  }
  return cluster;
}

TEST_CASE("many sites: the plan is better than the cluster's own order, the same every time, and any degrees") {
  PlanRequest request;
  request.job = test::Llama13bJob();
  request.job.parallelism = {};
  request.job.parallelism.tensor = 0;
  request.job.parallelism.data = 0;
  request.job.training.tokens_per_iteration = 1 << 17;
  request.job.search.micro_batch_size = {1, 2};
  request.job.search.max_evaluations = 400;
  request.job.placement.sites.clear();
  request.cluster = Scattered(6);
  const PlanResult result = *MakePlan(request);
  CHECK(std::ssize(result.plan.devices) == result.plan.grid.size());
  CHECK(std::accumulate(result.plan.stages.begin(), result.plan.stages.end(), int64_t{0},
                        [](int64_t sum, const StagePlan& stage) { return sum + stage.layers.count(); }) == 40);
  if (kSanitized) {
    return;
  }
  PlanRequest listed = request;
  for (const SiteSpec& site : request.cluster.sites) {
    listed.job.placement.sites.push_back(site.name);
  }
  CHECK(result.prediction.iteration_ns < MakePlan(listed)->prediction.iteration_ns);
  int64_t calls = 0;
  PlanRequest parallel = request;
  parallel.parallel_for = [&](int64_t count, const std::function<void(int64_t)>& work) {
    ++calls;
    for (int64_t i = count; i-- > 0;) {
      work(i);
    }
  };
  CHECK(MakePlan(parallel)->plan == result.plan);
  CHECK(calls > 0);
}

TEST_CASE("autos that contradict what is given are refused in one sentence") {
  PlanRequest request;
  request.job = test::Llama13bJob();
  request.cluster = test::ThreeRegions();
  request.job.parallelism.tensor = 0;
  request.job.parallelism.data = 0;
  const auto refusal = [&] {
    const absl::Status status = MakePlan(request).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (SiteSpec& site : request.cluster.sites) {
    site.nodes = 1;
    site.devices_per_node = 2;
  }
  CHECK(refusal() ==
        "parallelism.pipeline is 8, but the sites have room for 6 stages of 1 device; lower it or add devices");
  request.job.parallelism.pipeline = 0;
  request.job.parallelism.data = 4;
  CHECK(refusal() ==
        "parallelism.data is 4; without a network between its nodes the replicas of a stage share one node, 4 devices "
        "with tensor 1, and a node of site \"north\" has 2; lower it, or give the site's network in the topology");
  request.job.parallelism.data = 0;
  request.job.parallelism.pipeline = 2;
  CHECK(refusal() ==
        "placement.sites lists 3 sites, and every one gets at least one stage, but parallelism.pipeline is 2; raise it "
        "or list fewer");
}

}  // namespace
}  // namespace geopipe
