#include "optimizer/plan/bound/pipeline_bound.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "optimizer/model/cost_model.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int64_t kMicrosecond = 1'000;

PartCosts RandomPart(Prng& prng, int64_t most_us) {
  const int64_t forward_ns = prng.Between(most_us / 4, most_us) * kMicrosecond;
  return {.forward_ns = forward_ns, .input_grad_ns = forward_ns + forward_ns / 8, .weight_grad_ns = forward_ns};
}

// Two or three sites whose devices differ by up to four times in speed.
BoundChain RandomChain(Prng& prng, int64_t layers) {
  BoundChain chain;
  const int64_t sites = prng.Between(2, 3);
  for (int64_t i = 0; i < sites; ++i) {
    chain.sites.push_back(
        {.max_ranks = prng.Between(2, 8),
         .modes = {{.embedding = RandomPart(prng, 40), .block = RandomPart(prng, 400), .head = RandomPart(prng, 400)}},
         .memory_bytes = prng.Between(30, 80) * test::kGiB,
         .update_ns = std::vector<int64_t>(static_cast<size_t>(layers), 0)});
    if (i > 0) {
      chain.crossings.push_back({.latency_ns = prng.Between(0, 2'000) * kMicrosecond,
                                 .serialization_ns = prng.Between(1, 200) * kMicrosecond});
    }
  }
  chain.way_back_ns = chain.crossings.back().latency_ns;
  return chain;
}

TEST_CASE("with more ranks on a site no pipeline takes longer at least") {
  JobSpec job = test::Llama13bJob();
  const int64_t layers = job.model.num_hidden_layers;
  const std::vector<StageMemoryModel> memory{
      StageMemoryModel(job.model, MakeExecutionConfig(job, 1, 2048, Recompute::kNone, 0))};
  const BoundSchedules all{.linear = true, .folded = true, .looped = true, .rounds = 3, .splits_backward = true};
  const BoundSchedules many{.linear = false, .folded = false, .looped = false, .rounds = 3, .splits_backward = true};
  const uint64_t seed = TestSeed(1);
  constexpr int64_t kAnyNs = std::numeric_limits<int64_t>::max() / 1'000;
  int bounded = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", case " << i);
    Prng prng(seed * 1'000'003 + i);
    const BoundChain chain = RandomChain(prng, layers);
    const int64_t micro_batches = prng.Between(2, 24);
    for (const BoundSchedules& schedules : {all, many}) {
      const int64_t bound_ns = PipelineBoundNs(chain, memory, layers, micro_batches, schedules, kAnyNs);
      bounded += bound_ns < kAnyNs ? 1 : 0;
      for (size_t site = 0; site < chain.sites.size(); ++site) {
        BoundChain fewer = chain;
        --fewer.sites[site].max_ranks;
        const int64_t of_fewer_ns = PipelineBoundNs(fewer, memory, layers, micro_batches, schedules, kAnyNs);
        CHECK(bound_ns <= of_fewer_ns + (of_fewer_ns >> 13));  // it is found to within 2^-14
      }
    }
  }
  CHECK(bounded > 60);
}

TEST_CASE("where every rank may recompute as it likes no pipeline takes longer at least than with one mode") {
  JobSpec job = test::Llama13bJob();
  const int64_t layers = job.model.num_hidden_layers;
  const StageMemoryModel none(job.model, MakeExecutionConfig(job, 4, 4096, Recompute::kNone, 0));
  const StageMemoryModel full(job.model, MakeExecutionConfig(job, 4, 4096, Recompute::kFull, 0));
  const BoundSchedules all{.linear = true, .folded = true, .looped = true, .rounds = 3, .splits_backward = true};
  const uint64_t seed = TestSeed(1);
  constexpr int64_t kAnyNs = std::numeric_limits<int64_t>::max() / 1'000;
  int better = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", case " << i);
    Prng prng(seed * 1'000'003 + i);
    BoundChain keeps = RandomChain(prng, layers);
    const int64_t micro_batches = prng.Between(8, 64);
    for (BoundSite& site : keeps.sites) {  // some ranks hold few micro-batches
      site.memory_bytes = prng.Between(6, 16) * test::kGiB;
    }
    BoundChain recomputes = keeps;
    BoundChain any = keeps;
    for (size_t site = 0; site < keeps.sites.size(); ++site) {
      BoundCosts& costs = recomputes.sites[site].modes.front();
      costs.block.input_grad_ns += costs.block.forward_ns;
      any.sites[site].modes.push_back(costs);
    }
    const auto bound_ns = [&](const BoundChain& chain, const std::vector<StageMemoryModel>& memory) {
      return PipelineBoundNs(chain, memory, layers, micro_batches, all, kAnyNs);
    };
    const int64_t least_ns = std::min(bound_ns(keeps, {none}), bound_ns(recomputes, {full}));
    const int64_t any_ns = bound_ns(any, {none, full});
    CHECK(any_ns <= least_ns + (least_ns >> 13));  // it is found to within 2^-14
    better += any_ns < least_ns - (least_ns >> 10) ? 1 : 0;
    for (BoundSite& site : any.sites) {
      site.modes = {site.modes.front(), site.modes.front()};
    }
    CHECK(bound_ns(any, {none, none}) == bound_ns(keeps, {none}));
  }
  CHECK(better > 0);
}

}  // namespace
}  // namespace geopipe
