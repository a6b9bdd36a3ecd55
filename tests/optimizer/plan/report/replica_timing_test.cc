#include "optimizer/plan/report/replica_timing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "optimizer/model/transformer.h"
#include "optimizer/plan/site_planner.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

// A reduction over a link that takes a nanosecond for each byte.
SiteReduction LinkOf(int64_t latency_ns, size_t sites = 2) {
  SiteReduction reduction{.way = ReductionWay::kTree,
                          .sites = {},
                          .root = "",
                          .links = {},
                          .bandwidth_bytes_per_s = 1e9,
                          .latency_ns = 2 * latency_ns};
  for (size_t i = 0; i < sites; ++i) {
    reduction.sites.push_back(std::to_string(i));
  }
  return reduction;
}

// One pipeline rank whose last action ends at 1000, and buckets that are ready then or before.
ReplicaTiming SiteOf(const std::vector<int64_t>& ready_ns) {
  ReplicaTiming site;
  for (const int64_t at_ns : ready_ns) {
    site.buckets.push_back({.pipeline_rank = 0, .ready_ns = at_ns, .scatter_ns = 0, .gather_ns = 0});
  }
  site.devices = {{.end_ns = 1000, .update_ns = 30, .input_ns = 0}};
  site.latencies_ns = {{0}};
  site.alone_ns = 1030;
  return site;
}

int64_t IterationNs(const std::vector<ReplicaTiming>& sites, int64_t latency_ns, const std::vector<int64_t>& bytes) {
  return ReduceOverSites(sites, LinkOf(latency_ns, sites.size()), bytes).iteration_ns;
}

TEST_CASE("a bucket that nothing hides takes its way over the links, and the update follows") {
  const ReplicaTiming site = SiteOf({1000});
  CHECK(IterationNs({site, site}, 7, {500}) == 1000 + 500 + 2 * 7 + 30);
  CHECK(IterationNs({site, site}, 0, {500}) == 1530);
  CHECK(IterationNs({site, site}, 0, {0}) == 1030);
  CHECK(ReduceOverSites(std::vector{site, site}, LinkOf(7), std::vector<int64_t>{500}).exposed_ns == 514);
}

TEST_CASE("buckets follow each other over the links while the backward goes on") {
  // The later layer is ready first.
  const ReplicaTiming site = SiteOf({1000, 800});
  CHECK(IterationNs({site, site}, 0, {50, 150}) == 1000 + 50 + 30);        // the first one through in time
  CHECK(IterationNs({site, site}, 0, {50, 250}) == 1050 + 50 + 30);        // and not
  CHECK(IterationNs({site, site}, 40, {50, 250}) == 1050 + 50 + 80 + 30);  // a latency, however many buckets
  CHECK(IterationNs({site, site}, 0, {0, 210}) == 1010 + 30);
}

TEST_CASE("a bucket waits for the slowest site, and every site for the sum") {
  const ReplicaTiming slow = SiteOf({1000});
  ReplicaTiming quick = SiteOf({400});
  quick.devices[0].end_ns = 400;
  quick.alone_ns = 430;
  const ReducedIteration reduced = ReduceOverSites(std::vector{quick, slow}, LinkOf(5), std::vector<int64_t>{100});
  CHECK(reduced.sites_ns == std::vector<int64_t>{1000 + 100 + 10 + 30, 1140});
  CHECK(reduced.exposed_ns == 110);
}

TEST_CASE("a bucket goes through its site's network before the links, and after them unless ZeRO keeps it scattered") {
  ReplicaTiming site = SiteOf({1000, 1000});
  for (ReplicaTiming::Bucket& bucket : site.buckets) {
    bucket.scatter_ns = bucket.gather_ns = 20;
  }
  // Scattered at 1020 and 1040, over the links at 1120 and 1220, gathered at 1240.
  CHECK(IterationNs({site, site}, 0, {100, 100}) == 1240 + 30);
  for (ReplicaTiming::Bucket& bucket : site.buckets) {
    bucket.gather_ns = 0;
  }
  CHECK(IterationNs({site, site}, 0, {100, 100}) == 1220 + 30);
  // The network alone counts when there is no link to wait for: two buckets, there and back.
  for (ReplicaTiming::Bucket& bucket : site.buckets) {
    bucket.gather_ns = 20;
  }
  CHECK(IterationNs({site, site}, 0, {0, 0}) == 1080 + 30);
}

TEST_CASE("with clipping every update waits for all gradients, without for its own alone") {
  ReplicaTiming site = SiteOf({1000, 600});
  site.buckets[1].pipeline_rank = 1;
  site.devices = {{.end_ns = 1000, .update_ns = 10, .input_ns = 0}, {.end_ns = 600, .update_ns = 500, .input_ns = 200}};
  site.latencies_ns = {{0, 4}, {4, 0}};
  CHECK(IterationNs({site, site}, 0, {100, 100}) == 1110);  // the second has its sum at 700 and goes on at 1000
  site.clips = true;
  CHECK(IterationNs({site, site}, 0, {100, 100}) == 1100 + 4 + 500 - 200);
}

// Llama-2 13B at one of three regions, on half of the tokens.
class RealSite {
 public:
  explicit RealSite(int64_t data = 1) : request_(RequestOf(data)), planner_(request_) {
    plan_ = planner_.At("north", request_.job.training.tokens_per_iteration / 2).value();
  }

  const SitePlan& plan() const { return *plan_; }
  const JobSpec& job() const { return request_.job; }

  ReducedIteration Reduced(double bytes_per_s, int64_t latency_ns) const {
    SiteReduction reduction = LinkOf(latency_ns);
    reduction.bandwidth_bytes_per_s = bytes_per_s;
    return ReduceOverSites(std::vector(2, plan_->timing), reduction, BucketBytes(request_.job));
  }

 private:
  static PlanRequest RequestOf(int64_t data) {
    PlanRequest request = test::PaperRequest();
    request.cluster.sites[0].nodes = 4;
    request.cluster.sites[0].network = {.bandwidth_bytes_per_s = 5e10, .latency_ns = 5'000};
    request.job.parallelism.data = data;
    request.job.parallelism.recompute = Recompute::kSelective;
    return request;
  }

  PlanRequest request_;
  SitePlanner planner_;
  const SitePlan* plan_ = nullptr;
};

TEST_CASE("the buckets are all of the model's gradients, a tied embedding once") {
  JobSpec job = test::Llama13bJob();
  for (const bool tied : {false, true}) {
    job.model.tie_word_embeddings = tied;
    const std::vector<int64_t> bytes = BucketBytes(job);
    CHECK(std::ssize(bytes) == job.model.num_hidden_layers + 1);
    CHECK(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) == ParameterCount(job.model) * kGradientBytes);
    CHECK(std::ranges::min(bytes) > 0);
  }
}

TEST_CASE("a stage's buckets are ready layer by layer until the end of its backward") {
  const RealSite site;
  const ReplicaTiming& timing = site.plan().timing;
  const Plan& plan = site.plan().result.plan;
  CHECK(timing.alone_ns == site.plan().result.prediction.iteration_ns);
  const int64_t epilogue_ns = site.plan().result.costs.epilogue_ns;
  CHECK(timing.buckets.front().ready_ns == timing.alone_ns - epilogue_ns);  // stage 0 is the last to end
  size_t bucket = 0;
  for (const StagePlan& stage : plan.stages) {
    const int64_t layer_ns = timing.buckets[bucket].ready_ns - timing.buckets[bucket + 1].ready_ns;
    CHECK(layer_ns > 0);
    for (int64_t layer = 0; layer < stage.layers.count(); ++layer, ++bucket) {
      CHECK(timing.buckets[bucket].pipeline_rank == stage.pipeline_rank);
      CHECK(timing.buckets[bucket].ready_ns == timing.devices[stage.pipeline_rank].end_ns - layer * layer_ns);
    }
  }
  CHECK(bucket + 1 == timing.buckets.size());
}

TEST_CASE("links without any cost leave the iteration as it is, with replicas inside the sites too") {
  for (const int64_t data : {1, 2, 4}) {
    const RealSite site(data);
    INFO("data " << data);
    CHECK(site.Reduced(1e30, 0).iteration_ns == site.plan().timing.alone_ns);
    CHECK(site.Reduced(1e30, 0).exposed_ns == 0);
  }
}

TEST_CASE("what is exposed is never less than what the backward is too short for, nor more than all") {
  const RealSite site;
  const ReplicaTiming& timing = site.plan().timing;
  const std::vector<int64_t> bytes = BucketBytes(site.job());
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  int64_t first_ns = timing.alone_ns;
  for (const ReplicaTiming::Bucket& bucket : timing.buckets) {
    first_ns = std::min(first_ns, bucket.ready_ns);
  }
  int64_t before_ns = std::numeric_limits<int64_t>::max();
  for (const double bytes_per_s : {1e8, 1e9, 5e9, 1e10, 5e10, 1e11, 1e12}) {
    int64_t near_ns = 0;
    for (const int64_t latency_ns : {int64_t{0}, 5 * test::kMillisecond, 100 * test::kMillisecond}) {
      INFO(bytes_per_s << " bytes/s, " << latency_ns << " ns");
      const auto link_ns = static_cast<int64_t>(static_cast<double>(all) / bytes_per_s * 1e9);
      const int64_t iteration_ns = site.Reduced(bytes_per_s, latency_ns).iteration_ns;
      constexpr int64_t kRounding = 50;  // of a bucket's nanoseconds
      CHECK(iteration_ns >= timing.alone_ns);
      CHECK(iteration_ns >= first_ns + link_ns + 2 * latency_ns - kRounding);
      CHECK(iteration_ns <= timing.alone_ns + link_ns + 2 * latency_ns + kRounding);
      CHECK(iteration_ns >= near_ns);
      near_ns = iteration_ns;
      if (latency_ns == 0) {
        CHECK(iteration_ns <= before_ns);  // more bandwidth never hurts
        before_ns = iteration_ns;
      }
    }
  }
  // Slow links hide next to nothing, quick ones next to all but the last bucket.
  const auto exposed = [&](double bytes_per_s) { return static_cast<double>(site.Reduced(bytes_per_s, 0).exposed_ns); };
  CHECK(exposed(1e8) > 0.98 * static_cast<double>(all) / 1e8 * 1e9);
  CHECK(exposed(1e12) < 0.2 * static_cast<double>(all) / 1e12 * 1e9);
}

}  // namespace
}  // namespace geopipe
