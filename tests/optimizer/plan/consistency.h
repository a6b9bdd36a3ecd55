// Requests that must not have a longer iteration than another: the same job with one choice left open that was pinned,
// and the same job on a cluster that is better in one thing.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/search/prng.h"

namespace geopipe::test {

// A job with one choice pinned.
struct Pinned {
  std::string choice;  // "tensor 4"
  JobSpec job;
};

inline std::vector<std::string> SitesInOrder(const Plan& plan) {
  std::vector<std::string> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    const std::string site(SiteOfGroup(rank.site));
    if (sites.empty() || sites.back() != site) {
      sites.push_back(site);
    }
  }
  return sites;
}

namespace internal {

template <typename Pin>
void AddPin(const JobSpec& job, std::string choice, Pin pin, std::vector<Pinned>& pinned) {
  Pinned& added = pinned.emplace_back(Pinned{std::move(choice), job});
  pin(added.job);
}

}  // namespace internal

// The job with each of the plan's choices that it leaves open pinned alone, and then all of them at once.
inline std::vector<Pinned> OwnPins(const JobSpec& job, const Plan& plan) {
  std::vector<Pinned> pinned;
  JobSpec all = job;
  const auto add = [&](std::string choice, auto pin) {
    internal::AddPin(job, std::move(choice), pin, pinned);
    pin(all);
  };
  const ParallelismSpec& open = job.parallelism;
  if (open.tensor == 0) {
    add(fmt::format("tensor {}", plan.grid.tensor), [&](JobSpec& j) { j.parallelism.tensor = plan.grid.tensor; });
  }
  if (open.data == 0) {
    add(fmt::format("data {}", plan.grid.data), [&](JobSpec& j) { j.parallelism.data = plan.grid.data; });
  }
  if (open.pipeline == 0) {
    add(fmt::format("pipeline {}", plan.grid.pipeline),
        [&](JobSpec& j) { j.parallelism.pipeline = plan.grid.pipeline; });
  }
  if (!open.zero_stage.has_value() && plan.grid.data > 1) {
    add(fmt::format("zero_stage {}", plan.zero_stage), [&](JobSpec& j) { j.parallelism.zero_stage = plan.zero_stage; });
  }
  if (!open.recompute.has_value() && plan.SameRecompute().has_value()) {
    add(fmt::format("recompute {}", RecomputeWord(plan)),
        [&](JobSpec& j) { j.parallelism.recompute = plan.SameRecompute(); });
  }
  if (open.stages_per_rank == 0 && job.search.schedule == ScheduleKind::kAuto) {
    add(fmt::format("stages_per_rank {}", plan.StagesPerRank()),
        [&](JobSpec& j) { j.parallelism.stages_per_rank = plan.StagesPerRank(); });
  }
  if (job.search.schedule == ScheduleKind::kAuto && plan.schedule != ScheduleKind::kAuto) {
    add(fmt::format("schedule {}", ScheduleKindName(plan.schedule)),
        [&](JobSpec& j) { j.search.schedule = plan.schedule; });
  }
  if (job.search.micro_batch_size.size() > 1) {
    add(fmt::format("micro_batch_size {}", plan.micro_batch_size),
        [&](JobSpec& j) { j.search.micro_batch_size = {plan.micro_batch_size}; });
  }
  if (job.search.sequence_length.size() > 1) {
    add(fmt::format("sequence_length {}", plan.sequence_length),
        [&](JobSpec& j) { j.search.sequence_length = {plan.sequence_length}; });
  }
  if (job.placement.sites.empty()) {
    const std::vector<std::string> sites = SitesInOrder(plan);
    if (std::set<std::string>(sites.begin(), sites.end()).size() == sites.size()) {
      add(fmt::format("sites {}", fmt::join(sites, ",")), [&](JobSpec& j) { j.placement.sites = sites; });
    }
  }
  pinned.push_back({"all", std::move(all)});
  return pinned;
}

// The job with each value pinned that a choice it leaves open could have instead of the plan's.
inline std::vector<Pinned> OtherPins(const JobSpec& job, const ClusterSpec& cluster, const Plan& plan) {
  std::vector<Pinned> pinned;
  const auto add = [&](std::string choice, auto pin) { internal::AddPin(job, std::move(choice), pin, pinned); };
  const ParallelismSpec& open = job.parallelism;
  std::set<int64_t> tensor;
  std::set<int64_t> data;
  for (const Degrees& degrees : DegreesOf(job, cluster, cluster.SiteNames(), /*all_sites=*/false)) {
    tensor.insert(degrees.tensor);
    data.insert(degrees.data);
  }
  for (const int64_t degree : tensor) {
    if (open.tensor == 0 && degree != plan.grid.tensor) {
      add(fmt::format("tensor {}", degree), [&](JobSpec& j) { j.parallelism.tensor = degree; });
    }
  }
  for (const int64_t degree : data) {
    if (open.data == 0 && degree != plan.grid.data) {
      add(fmt::format("data {}", degree), [&](JobSpec& j) { j.parallelism.data = degree; });
    }
  }
  for (int64_t ranks = 1; open.pipeline == 0 && ranks <= job.model.num_hidden_layers; ++ranks) {
    if (ranks != plan.grid.pipeline) {
      add(fmt::format("pipeline {}", ranks), [&](JobSpec& j) { j.parallelism.pipeline = ranks; });
    }
  }
  for (int32_t stage = 0; stage <= 3 && !open.zero_stage.has_value(); ++stage) {
    if (stage != plan.zero_stage) {
      add(fmt::format("zero_stage {}", stage), [&](JobSpec& j) { j.parallelism.zero_stage = stage; });
    }
  }
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (!open.recompute.has_value() && mode != plan.SameRecompute()) {
      add(fmt::format("recompute {}", RecomputeName(mode)), [&](JobSpec& j) { j.parallelism.recompute = mode; });
    }
  }
  for (const int32_t stages : {1, 2, 3, 4, 8}) {
    if (open.stages_per_rank == 0 && job.search.schedule == ScheduleKind::kAuto && stages != plan.StagesPerRank()) {
      add(fmt::format("stages_per_rank {}", stages), [&](JobSpec& j) { j.parallelism.stages_per_rank = stages; });
    }
  }
  if (open.layers == LayerSplit::kAuto) {
    add("layers even", [](JobSpec& j) { j.parallelism.layers = LayerSplit::kEven; });
  }
  for (const ScheduleRow& row : kSchedules) {
    if (job.search.schedule == ScheduleKind::kAuto && row.kind != plan.schedule && row.kind != ScheduleKind::kAuto) {
      add(fmt::format("schedule {}", row.name), [&](JobSpec& j) { j.search.schedule = row.kind; });
    }
  }
  for (const int64_t b : job.search.micro_batch_size) {
    if (b != plan.micro_batch_size) {
      add(fmt::format("micro_batch_size {}", b), [&](JobSpec& j) { j.search.micro_batch_size = {b}; });
    }
  }
  for (const int64_t s : job.search.sequence_length) {
    if (s != plan.sequence_length) {
      add(fmt::format("sequence_length {}", s), [&](JobSpec& j) { j.search.sequence_length = {s}; });
    }
  }
  for (int32_t most : {0, 1, 2}) {
    if (most < job.search.max_delta_n) {
      add(fmt::format("max_delta_n {}", most), [&](JobSpec& j) { j.search.max_delta_n = most; });
    }
  }
  const std::vector<std::string> sites = SitesInOrder(plan);
  const auto linked = [&](const std::vector<std::string>& order) {
    return std::ranges::adjacent_find(order, [&](const std::string& a, const std::string& b) {
             return cluster.FindLink(a, b) == nullptr;
           }) == order.end();
  };
  if (job.placement.sites.empty()) {
    std::vector<std::string> order = cluster.SiteNames();
    std::ranges::sort(order);
    int tried = 0;
    do {
      if (order != sites && linked(order) && ++tried <= 4) {
        add(fmt::format("sites {}", fmt::join(order, ",")), [&](JobSpec& j) { j.placement.sites = order; });
      }
    } while (std::ranges::next_permutation(order).found);
    for (const std::string& name : cluster.SiteNames()) {
      if (sites != std::vector{name}) {
        add(fmt::format("sites {}", name), [&](JobSpec& j) { j.placement.sites = {name}; });
      }
    }
  }
  return pinned;
}

// A cluster that is better in one thing.
struct Improved {
  std::string change;  // "latency of site0 - site1 2.5 ms -> 1.2 ms"
  ClusterSpec cluster;
};

// Draws which: less latency or more bandwidth of one link between sites, of all of them or of a site's network, one
// more node at a site, or one more site. REQUIRES: a link between sites.
inline Improved DrawImproved(Prng& prng, ClusterSpec cluster) {
  std::vector<LinkSpec*> links;
  for (LinkSpec& link : cluster.links) {
    if (!link.inside()) {
      links.push_back(&link);
    }
  }
  const bool all = prng.Chance(1, 3);
  const double factor = 1 + 0.01 * static_cast<double>(prng.Chance(1, 2) ? prng.Between(1, 50) : prng.Between(50, 900));
  const size_t which = prng.Below(links.size());
  const int64_t kind = prng.Between(0, 9);
  if (kind <= 6) {
    const bool latency = kind <= 3;
    for (size_t i = 0; i < links.size(); ++i) {
      if (!all && i != which) {
        continue;
      }
      if (latency) {
        links[i]->latency_ns = static_cast<int64_t>(static_cast<double>(links[i]->latency_ns) / factor);
      } else {
        links[i]->bandwidth_bytes_per_s *= factor;
      }
    }
    return {fmt::format("{} of {} better by {:.2f}", latency ? "latency" : "bandwidth",
                        all ? "all links" : fmt::format("{} - {}", links[which]->site_a, links[which]->site_b), factor),
            std::move(cluster)};
  }
  const size_t site = prng.Below(cluster.sites.size());
  SiteSpec& chosen = cluster.sites[site];
  if (kind == 7 && chosen.network.given()) {
    for (SiteSpec& group : cluster.sites) {  // the groups of a site share one
      if (SiteOfGroup(group.name) == SiteOfGroup(chosen.name)) {
        group.network.bandwidth_bytes_per_s *= factor;
        group.network.latency_ns = static_cast<int64_t>(static_cast<double>(group.network.latency_ns) / factor);
      }
    }
    for (LinkSpec& link : cluster.links) {
      if (link.inside() && SiteOfGroup(link.site_a) == SiteOfGroup(chosen.name)) {
        link.bandwidth_bytes_per_s *= factor;
        link.latency_ns = static_cast<int64_t>(static_cast<double>(link.latency_ns) / factor);
      }
    }
    return {fmt::format("network of {} better by {:.2f}", chosen.name, factor), std::move(cluster)};
  }
  if (kind <= 8) {
    ++chosen.nodes;
    return {fmt::format("a node more at {}", chosen.name), std::move(cluster)};
  }
  const std::string change = fmt::format("a site more, linked to {}", chosen.name);
  SiteSpec more = chosen;
  more.name = "more";
  const int64_t latency_ns = 1'000'000 * prng.Between(1, 20);
  const double bandwidth = 1e8 * static_cast<double>(prng.Between(1, 100));
  const std::string beside(SiteOfGroup(chosen.name));
  for (const SiteSpec* group : cluster.GroupsOf(beside)) {
    cluster.links.push_back({group->name, more.name, latency_ns, bandwidth});
  }
  cluster.sites.push_back(std::move(more));
  return {change, std::move(cluster)};
}

inline int64_t DevicesOf(const ClusterSpec& cluster) {
  int64_t devices = 0;
  for (const SiteSpec& site : cluster.sites) {
    devices += site.nodes * site.devices_per_node;
  }
  return devices;
}

}  // namespace geopipe::test
