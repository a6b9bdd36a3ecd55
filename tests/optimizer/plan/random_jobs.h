// Random small planning problems, for comparing searches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/search/prng.h"

namespace geopipe::test {

inline DeviceSpec RandomDevice(Prng& prng) {
  return {.kind = "device",
          .memory_bytes = (int64_t{1} << 28) * prng.Between(24, 160),
          .peak_flops = 1e12 * static_cast<double>(prng.Between(80, 160)),
          .memory_bandwidth_bytes_per_s = 1e12,
          .intra_node_bandwidth_bytes_per_s = 1e11,
          .efficiency = 0.5};
}

// A chain of 3 to 5 sites with unequal devices, links and memory; at most 64 micro-batches; a search space of 2,000 to
// 50,000 genomes. Every draw comes from `prng`.
inline PlanRequest RandomRequest(Prng& prng) {
  PlanRequest request;
  request.refine = false;
  JobSpec& job = request.job;
  job.name = "random";
  job.model = {.hidden_size = 1024 * prng.Between(1, 4),
               .intermediate_size = 1024 * prng.Between(3, 12),
               .num_hidden_layers = prng.Between(12, 40),
               .num_attention_heads = 16,
               .num_key_value_heads = 8,
               .vocab_size = 8000 * prng.Between(1, 8),
               .max_position_embeddings = 4096};
  job.training.iterations = 10;
  job.precision = Precision::kBf16;
  job.parallelism.pipeline = 0;
  job.parallelism.recompute = Recompute::kNone;
  job.parallelism.layers = LayerSplit::kEven;
  job.search.schedule = ScheduleKind::kGeoPipe;
  job.search.seed = prng.Next();

  const int64_t sites = prng.Between(3, 5);
  job.search.micro_batch_size = {1, 2};
  job.search.sequence_length = prng.Chance(1, 2) ? std::vector<int64_t>{512} : std::vector<int64_t>{512, 1024};
  const int64_t s_choices = static_cast<int64_t>(job.search.sequence_length.size());
  const std::vector<int32_t> max_delta_n =
      sites == 3 ? std::vector<int32_t>{40, 60}
                 : (sites == 4 ? std::vector<int32_t>{10, 14} : std::vector<int32_t>{6, 8});
  job.search.max_delta_n = max_delta_n[prng.Below(2)];
  job.training.tokens_per_iteration = 1024 * 2 * s_choices * prng.Between(2, 8);

  for (int64_t site = 0; site < sites; ++site) {
    const std::string name = "site" + std::to_string(site);
    request.cluster.sites.push_back({name, 1, prng.Between(1, 3), RandomDevice(prng)});
    job.placement.sites.push_back(name);
    if (site > 0) {
      request.cluster.links.push_back({"site" + std::to_string(site - 1), name, 100'000 * prng.Between(1, 600),
                                       1e9 * static_cast<double>(prng.Between(1, 40))});
    }
  }
  return request;
}

// The same with more of the job left to the search: a chain of 2 to 4 sites, few layers that it splits, often every
// recompute mode and every schedule kind.
inline PlanRequest RandomLayeredRequest(Prng& prng) {
  PlanRequest request = RandomRequest(prng);
  JobSpec& job = request.job;
  job.parallelism.layers = LayerSplit::kAuto;
  if (prng.Chance(1, 2)) {
    job.parallelism.recompute.reset();
  }
  job.search.schedule = prng.Chance(1, 2) ? ScheduleKind::kAuto : ScheduleKind::kGeoPipe;
  job.search.max_delta_n = static_cast<int32_t>(prng.Between(3, 12));
  const auto sites = static_cast<size_t>(prng.Between(2, 4));
  int64_t stages = 0;
  request.cluster = {};
  job.placement.sites.clear();
  for (size_t site = 0; site < sites; ++site) {
    const std::string name = "site" + std::to_string(site);
    request.cluster.sites.push_back({name, 1, prng.Between(1, 2), RandomDevice(prng)});
    stages += request.cluster.sites.back().devices_per_node;
    if (site > 0) {
      request.cluster.links.push_back({job.placement.sites.back(), name, 100'000 * prng.Between(1, 600),
                                       1e9 * static_cast<double>(prng.Between(1, 40))});
    }
    job.placement.sites.push_back(name);
  }
  job.model.num_hidden_layers = stages + prng.Between(1, 8);
  return request;
}

// Genomes of a request whose order of sites and degrees are given.
inline int64_t SpaceSize(const PlanRequest& request) {
  const auto placement = PlaceStages(request.job, request.cluster, request.job.placement.sites);
  GP_CHECK(placement.ok());
  const auto space = PlanSpace::Create(request.job, request.cluster, CostSource(request.job, request.cluster, nullptr),
                                       request.comm, request.fixed_delta_n, *placement);
  GP_CHECK(space.ok());
  return space->size();
}

// Of either kind, with 2,000 to 50,000 genomes.
inline PlanRequest RandomSearchableRequest(Prng& prng) {
  while (true) {
    PlanRequest request = prng.Chance(1, 2) ? RandomRequest(prng) : RandomLayeredRequest(prng);
    const int64_t size = SpaceSize(request);
    if (size >= 2'000 && size <= 50'000) {
      return request;
    }
  }
}

}  // namespace geopipe::test
