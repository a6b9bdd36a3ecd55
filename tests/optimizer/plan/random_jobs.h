// Random small planning problems, for comparing searches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/model/groups/node_groups.h"
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

// One kind of attention for all devices, as a job has one.
inline void DrawAttention(Prng& prng, ClusterSpec& cluster) {
  const Attention attention = prng.Chance(1, 4) ? Attention::kDense : Attention::kBlocked;
  for (SiteSpec& site : cluster.sites) {
    site.device.attention = attention;
  }
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
  job.parallelism.tensor = 1;
  job.parallelism.pipeline = 0;
  job.parallelism.data = 1;
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
    job.parallelism.pipeline += request.cluster.sites.back().devices_per_node;
    job.placement.sites.push_back(name);
    if (site > 0) {
      request.cluster.links.push_back({"site" + std::to_string(site - 1), name, 100'000 * prng.Between(1, 600),
                                       1e9 * static_cast<double>(prng.Between(1, 40))});
    }
  }
  DrawAttention(prng, request.cluster);
  return request;
}

// Takes the limit of ΔN from jobs with `schedule: auto`, where what searches are compared with knows none.
inline void LeaveDeltaNOpen(JobSpec& job) {
  if (job.search.schedule == ScheduleKind::kAuto) {
    job.search.max_delta_n.reset();
  }
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
  LeaveDeltaNOpen(job);
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
  DrawAttention(prng, request.cluster);
  job.parallelism.pipeline = stages;
  job.model.num_hidden_layers = stages + prng.Between(1, 8);
  return request;
}

// One of `choices`.
template <typename T>
T OneOf(Prng& prng, std::initializer_list<T> choices) {
  return choices.begin()[prng.Below(choices.size())];
}

// Sites joined as a chain, a star, a mesh with gaps or a full one; latencies from none to 200 ms.
inline void AddLinks(Prng& prng, ClusterSpec& cluster) {
  const auto join = [&](size_t a, size_t b) {
    const int64_t latency_ns = prng.Chance(1, 8) ? 0 : 50'000 * prng.Between(1, OneOf<int64_t>(prng, {20, 400, 4000}));
    cluster.links.push_back({cluster.sites[a].name, cluster.sites[b].name, latency_ns,
                             1e8 * static_cast<double>(prng.Between(1, OneOf<int64_t>(prng, {10, 100, 1000})))});
  };
  const auto kind = OneOf<int>(prng, {0, 1, 2, 3});
  for (size_t b = 1; b < cluster.sites.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (kind == 0 ? a + 1 == b : kind == 1 ? a == 0 : kind == 2 ? prng.Chance(2, 3) : true) {
        join(a, b);
      }
    }
  }
}

// Splits some sites into two groups of nodes with other devices and other numbers.
inline void AddGroups(Prng& prng, ClusterSpec& cluster) {
  std::vector<SiteSpec> sites;
  for (const SiteSpec& site : cluster.sites) {
    if (!prng.Chance(1, 5)) {
      sites.push_back(site);
      continue;
    }
    SiteSpec first = site;
    first.name += "/fast";
    SiteSpec second = site;
    second.name += "/slow";
    second.nodes = prng.Between(1, 3);
    second.devices_per_node = prng.Between(1, 4);
    second.device = RandomDevice(prng);
    second.device.memory_bytes = site.device.memory_bytes;
    sites.push_back(std::move(first));
    sites.push_back(std::move(second));
  }
  cluster.links = LinksOfGroups(sites, cluster.links);
  cluster.sites = std::move(sites);
}

// A job that leaves much open, on up to `max_sites` sites of unequal size, with or without networks of their own, some
// with two groups of nodes. Not all of them have a plan.
inline PlanRequest RandomClusterRequest(Prng& prng, int64_t max_sites = 4) {
  PlanRequest request;
  JobSpec& job = request.job;
  job.name = "random";
  job.model = {.hidden_size = 512 * prng.Between(1, 4),
               .intermediate_size = 1024 * prng.Between(1, 6),
               .num_hidden_layers = prng.Between(1, 12),
               .num_attention_heads = 16,
               .num_key_value_heads = 8,
               .vocab_size = 8000 * prng.Between(1, 8),
               .max_position_embeddings = 4096,
               .tie_word_embeddings = prng.Chance(1, 4)};
  job.training.iterations = 10;
  job.precision = OneOf(prng, {Precision::kBf16, Precision::kFp32});
  job.parallelism = {.tensor = OneOf<int64_t>(prng, {0, 0, 1, 2}),
                     .pipeline = prng.Chance(1, 5) ? prng.Between(1, 4) : 0,
                     .data = OneOf<int64_t>(prng, {0, 0, 1, 2, 3}),
                     .sequence_parallel = prng.Chance(1, 2),
                     .zero_stage = OneOf<std::optional<int32_t>>(
                         prng, {std::nullopt, std::nullopt, std::nullopt, std::nullopt, 0, 1, 2, 3}),
                     .recompute = OneOf<std::optional<Recompute>>(
                         prng, {std::nullopt, std::nullopt, Recompute::kNone, Recompute::kSelective, Recompute::kFull}),
                     .layers = OneOf(prng, {LayerSplit::kAuto, LayerSplit::kAuto, LayerSplit::kEven})};
  job.search.schedule = prng.Chance(1, 2) ? ScheduleKind::kAuto : kSchedules[prng.Below(kSchedules.size())].kind;
  job.search.seed = prng.Next();
  job.search.max_evaluations = 256;
  job.search.micro_batch_size = OneOf<std::vector<int64_t>>(prng, {{1}, {1, 2}, {1, 2, 4}});
  job.search.sequence_length = {512 * prng.Between(1, 4)};
  job.search.max_delta_n = static_cast<int32_t>(prng.Between(0, 8));
  LeaveDeltaNOpen(job);
  job.training.tokens_per_iteration = job.search.sequence_length.front() * 12 * prng.Between(1, 6);
  job.training.grad_clip = prng.Chance(1, 2) ? std::optional(1.0) : std::nullopt;
  const int64_t sites = prng.Between(1, max_sites);
  const DeviceSpec alike = RandomDevice(prng);
  const bool is_uniform = prng.Chance(1, 3);
  const int64_t memory_divisor = OneOf<int64_t>(prng, {1, 4, 16});
  const bool has_network = prng.Chance(2, 3);
  for (int64_t i = 0; i < sites; ++i) {
    SiteSpec site{.name = "site" + std::to_string(i),
                  .nodes = prng.Between(1, 4),
                  .devices_per_node = prng.Between(1, 4),
                  .device = is_uniform ? alike : RandomDevice(prng)};
    site.device.memory_bytes /= memory_divisor;
    if (has_network) {
      site.network = {.bandwidth_bytes_per_s = 1e9 * static_cast<double>(prng.Between(1, 50)),
                      .latency_ns = 1'000 * prng.Between(0, 20),
                      .per = OneOf(prng, {NetworkSpec::Per::kDevice, NetworkSpec::Per::kNode})};
    }
    request.cluster.sites.push_back(std::move(site));
  }
  AddLinks(prng, request.cluster);
  AddGroups(prng, request.cluster);
  DrawAttention(prng, request.cluster);
  return request;
}

// A small job that leaves everything open, on 2 to 4 sites of unequal size with up to 64 devices: few layers and
// micro-batches, and short lists. Not all of them have a plan.
inline PlanRequest RandomOpenRequest(Prng& prng) {
  PlanRequest request;
  int64_t devices = 0;
  do {
    request = RandomClusterRequest(prng);
    devices = 0;
    for (SiteSpec& site : request.cluster.sites) {
      site.devices_per_node = OneOf<int64_t>(prng, {1, 2, 4, 4, 8});
      devices += site.nodes * site.devices_per_node;
    }
  } while (request.cluster.SiteNames().size() < 2 || request.cluster.sites.size() > 5 || devices > 64);
  JobSpec& job = request.job;
  job.model.num_hidden_layers = prng.Between(4, 12);
  job.parallelism.tensor = 0;
  job.parallelism.pipeline = 0;
  job.parallelism.data = 0;
  job.parallelism.recompute.reset();
  job.parallelism.layers = LayerSplit::kAuto;
  job.search.schedule = prng.Chance(2, 3) ? ScheduleKind::kAuto : kSchedules[prng.Below(kSchedules.size())].kind;
  job.search.max_evaluations = SearchSpec().max_evaluations;
  job.search.micro_batch_size = OneOf<std::vector<int64_t>>(prng, {{1}, {1, 2}, {1, 2, 4}});
  const int64_t s = 512 * prng.Between(1, 2);
  job.search.sequence_length = prng.Chance(1, 3) ? std::vector<int64_t>{s, 2 * s} : std::vector<int64_t>{s};
  job.search.max_delta_n = static_cast<int32_t>(prng.Between(1, 6));
  LeaveDeltaNOpen(job);
  job.training.tokens_per_iteration = s * OneOf<int64_t>(prng, {8, 12, 16, 24, 32, 48});
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

// A request of either kind, with 2,000 to 50,000 genomes.
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
