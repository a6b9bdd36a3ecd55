#include "optimizer/plan/report/plan_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "optimizer/model/cost_model.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/report/evaluation_time.h"

namespace geopipe {
namespace {

double FlopsOf(const PartWork& part) {
  return static_cast<double>(part.forward.flops) + static_cast<double>(part.input_grad.flops) +
         static_cast<double>(part.weight_grad.flops);
}

// FLOPs of one sequence on one device that does all of it.
double SequenceFlops(const JobSpec& job, const ClusterSpec& cluster, int64_t sequence_length) {
  JobSpec alone = JobOnCluster(job, cluster);
  alone.parallelism.tensor = alone.parallelism.data = 1;
  const ExecutionConfig config = MakeExecutionConfig(alone, 1, sequence_length, Recompute::kNone);
  return static_cast<double>(job.model.num_hidden_layers) * FlopsOf(BlockWork(job.model, config)) +
         FlopsOf(HeadWork(job.model, config));
}

std::string WhyIdle(const JobSpec& job, const ClusterSpec& cluster, const Plan& plan, const SiteSpec& site,
                    int64_t used) {
  const std::vector<std::string>& named = job.placement.sites;
  std::set<std::string> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    sites.insert(rank.site);
  }
  const bool is_named = std::ranges::any_of(
      named, [&](const std::string& name) { return name == site.name || name == SiteOfGroup(site.name); });
  if (used == 0 && !named.empty() && !is_named) {
    return "placement.sites does not name it";
  }
  const bool linked = std::ranges::any_of(
      sites, [&](const std::string& other) { return cluster.FindLink(site.name, other) != nullptr; });
  if (used == 0 && !linked) {
    return "no link of the topology leads to it from the sites of the plan";
  }
  if (used == 0) {
    return "using it would not be faster";
  }
  const int64_t left_of_node = site.devices_per_node % plan.grid.tensor;
  if (left_of_node > 0 && used == site.nodes * (site.devices_per_node - left_of_node)) {
    return fmt::format("tensor {} leaves {} of the {} devices of a node", plan.grid.tensor, left_of_node,
                       site.devices_per_node);
  }
  if (std::ssize(plan.stages) == job.model.num_hidden_layers) {
    return "every layer already has a stage of its own";
  }
  return "using them would not be faster";
}

// Number of the job's evaluations.
int64_t Evaluations(const JobSpec& job) {
  const int64_t every = job.evaluation.every;
  const int64_t iterations = job.training.iterations;
  return every == 0 ? 1 : (iterations + every - 1) / every;
}

std::vector<LinkUse> LinksOf(const ClusterSpec& cluster, const PlanResult& result) {
  std::vector<LinkUse> links;
  for (const int32_t boundary : result.plan.Crossings()) {
    const LinkSpec* link = cluster.FindLink(result.plan.SiteOf(boundary), result.plan.SiteOf(boundary + 1));
    if (link == nullptr) {
      continue;  // costs were given
    }
    const std::string_view site_a = SiteOfGroup(link->site_a);
    const std::string_view site_b = SiteOfGroup(link->site_b);
    auto use = std::ranges::find_if(
        links, [&](const LinkUse& each) { return each.site_a == site_a && each.site_b == site_b; });
    if (use == links.end()) {
      links.push_back({.site_a = std::string(site_a),
                       .site_b = std::string(site_b),
                       .bytes_per_iteration = 0,
                       .bandwidth_bytes_per_s = link->bandwidth_bytes_per_s,
                       .utilisation = 0});
      use = std::prev(links.end());
    }
    use->bytes_per_iteration += result.costs.boundaries[static_cast<size_t>(boundary)].message_bytes *
                                result.plan.micro_batches * result.plan.grid.data;
  }
  for (LinkUse& use : links) {
    const double sent = static_cast<double>(use.bytes_per_iteration) / use.bandwidth_bytes_per_s;
    use.utilisation =
        result.prediction.iteration_ns == 0 ? 0 : sent * 1e9 / static_cast<double>(result.prediction.iteration_ns);
  }
  return links;
}

}  // namespace

int64_t PlanFigures::devices() const {
  int64_t sum = 0;
  for (const SiteUse& each : sites) {
    sum += each.devices;
  }
  return sum;
}

int64_t PlanFigures::used() const {
  int64_t sum = 0;
  for (const SiteUse& each : sites) {
    sum += each.used;
  }
  return sum;
}

PlanFigures FiguresOf(const JobSpec& job, const ClusterSpec& cluster, const PlanResult& result) {
  const Plan& plan = result.plan;
  const Prediction& prediction = result.prediction;
  PlanFigures figures;
  const double sequences =
      static_cast<double>(job.training.tokens_per_iteration) / static_cast<double>(plan.sequence_length);
  figures.model_flops = sequences * SequenceFlops(job, cluster, plan.sequence_length);
  figures.cluster_bound_ns = result.cluster_bound_ns;
  if (result.cluster_bound_ns > 0) {
    figures.above_cluster_bound =
        static_cast<double>(prediction.iteration_ns) / static_cast<double>(result.cluster_bound_ns) - 1;
  }
  double peak = 0;       // of devices in use, per second
  double effective = 0;  // of all devices
  bool all_known = true;
  for (const SiteSpec& site : cluster.sites) {
    SiteUse& use = figures.sites.emplace_back(
        SiteUse{.site = site.name, .devices = site.nodes * site.devices_per_node, .used = 0, .reason = {}});
    for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
      use.used += rank.site == site.name ? plan.grid.data * plan.grid.tensor : 0;
    }
    if (use.used < use.devices) {
      use.reason = WhyIdle(job, cluster, plan, site, use.used);
    }
    all_known = all_known && site.device.peak_flops > 0;
    peak += static_cast<double>(use.used) * site.device.peak_flops;
    effective += static_cast<double>(use.devices) * site.device.peak_flops * site.device.efficiency;
  }
  const double iteration_s = static_cast<double>(prediction.iteration_ns) / 1e9;
  figures.flops_per_device_per_s = figures.used() == 0 || iteration_s == 0
                                       ? 0
                                       : figures.model_flops / iteration_s / static_cast<double>(figures.used());
  figures.mfu = all_known && iteration_s > 0 ? figures.model_flops / iteration_s / peak : 0;
  figures.work_ns = all_known ? static_cast<int64_t>(1e9 * figures.model_flops / effective) : 0;
  figures.tokens_per_day = prediction.tokens_per_s * 86'400;
  figures.iterations = job.training.iterations;
  figures.tokens = job.training.iterations * job.training.tokens_per_iteration;
  figures.job_s = static_cast<double>(job.training.iterations) * iteration_s;
  if (job.evaluates()) {
    figures.evaluation_ns = job.evaluation.iterations * EvaluationPassNs(result);
    const double all_s = static_cast<double>(Evaluations(job)) * static_cast<double>(figures.evaluation_ns) / 1e9;
    figures.job_s += all_s;
    figures.evaluation_share = figures.job_s > 0 ? all_s / figures.job_s : 0;
  }
  figures.device_hours = figures.job_s / 3600 * static_cast<double>(figures.used());
  figures.links = LinksOf(cluster, result);
  return figures;
}

}  // namespace geopipe
