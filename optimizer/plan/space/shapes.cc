#include "optimizer/plan/space/shapes.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "optimizer/model/groups/node_groups.h"
#include "optimizer/plan/space/placement.h"

namespace geopipe {
namespace {

int64_t MostDevicesPerNode(const ClusterSpec& cluster, const SiteOrder& sites) {
  int64_t most = 1;
  for (const std::string& name : sites) {
    const SiteSpec* site = cluster.FindSite(name);
    most = std::max(most, site == nullptr ? 1 : site->devices_per_node);
  }
  return most;
}

// Most replicas that a stage can have on the site: over nodes if its network is known, else within a node.
int64_t MaxReplicas(const SiteSpec& site, int64_t tensor) {
  return (site.network.given() ? site.nodes : 1) * (site.devices_per_node / tensor);
}

// Most replicas on all of the sites (over nodes if all their networks are known, else within a node), or on one of
// them.
int64_t MaxReplicas(const ClusterSpec& cluster, const SiteOrder& sites, int64_t tensor, bool all_sites) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  int64_t greatest = 1;
  bool over_nodes = true;
  for (const std::string& name : sites) {
    const SiteSpec* site = cluster.FindSite(name);
    over_nodes = over_nodes && site != nullptr && site->network.given();
    const int64_t replicas = site == nullptr ? 1 : MaxReplicas(*site, tensor);
    fewest = std::min(fewest, replicas);
    greatest = std::max(greatest, replicas);
  }
  if (!all_sites) {
    return greatest;
  }
  return over_nodes ? fewest : MostDevicesPerNode(cluster, sites) / tensor;
}

// Numbers of pipeline ranks, at most `most`, that are worth trying: the fewest for each number of layers on the fullest
// rank, and the fewest that also have room for a head as large as a layer.
std::set<int64_t> UsefulPipelines(int64_t layers, int64_t fewest, int64_t most) {
  std::set<int64_t> pipelines;
  for (int64_t fullest = 1; fullest <= layers; ++fullest) {
    for (const int64_t parts : {layers, layers + 1}) {
      const int64_t ranks = (parts + fullest - 1) / fullest;
      if (ranks >= fewest && ranks < most) {
        pipelines.insert(ranks);
      }
    }
  }
  return pipelines;
}

// Adds all pipelines to try if the shape's is open.
void AddPipelines(const JobSpec& job, const ClusterSpec& cluster, Shape shape, std::vector<Shape>& shapes) {
  shapes.push_back(shape);
  if (job.parallelism.pipeline != 0) {
    return;
  }
  int64_t most = 0;
  for (const std::string& name : shape.sites) {
    const SiteSpec* site = cluster.FindSite(name);
    const absl::StatusOr<int64_t> slots =
        site == nullptr ? absl::StatusOr<int64_t>(0) : StageSlots(JobOf(job, shape), *site);
    if (!slots.ok()) {
      return;
    }
    most += *slots;
  }
  const int64_t layers = job.model.num_hidden_layers;
  most = std::min(most, layers / MinStagesPerRank(job));
  for (const int64_t ranks : UsefulPipelines(layers, std::ssize(shape.sites), most)) {
    shape.pipeline = ranks;
    shapes.push_back(shape);
  }
}

// Pairs of sites that have a link, both ways round.
using LinkedSites = std::set<std::pair<std::string_view, std::string_view>>;

LinkedSites LinkedSitesOf(const ClusterSpec& cluster) {
  LinkedSites linked;
  for (const LinkSpec& link : cluster.links) {
    linked.emplace(link.site_a, link.site_b);
    linked.emplace(link.site_b, link.site_a);
  }
  return linked;
}

// Every order one change away.
std::vector<SiteOrder> Neighbours(const ClusterSpec& cluster, const LinkedSites& linked, const SiteOrder& order) {
  std::vector<SiteOrder> near;
  const auto at = [](SiteOrder& sites, size_t i) { return sites.begin() + static_cast<std::ptrdiff_t>(i); };
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = i + 1; j < order.size(); ++j) {
      SiteOrder reversed = order;
      std::reverse(at(reversed, i), at(reversed, j + 1));
      near.push_back(std::move(reversed));
      SiteOrder swapped = order;
      std::swap(swapped[i], swapped[j]);
      near.push_back(std::move(swapped));
      SiteOrder later = order;
      std::rotate(at(later, i), at(later, i + 1), at(later, j + 1));
      near.push_back(std::move(later));
      SiteOrder earlier = order;
      std::rotate(at(earlier, i), at(earlier, j), at(earlier, j + 1));
      near.push_back(std::move(earlier));
    }
    if (order.size() > 1) {
      SiteOrder fewer = order;
      fewer.erase(at(fewer, i));
      near.push_back(std::move(fewer));
    }
  }
  for (const SiteSpec& site : cluster.sites) {
    for (size_t i = 0; i <= order.size() && std::find(order.begin(), order.end(), site.name) == order.end(); ++i) {
      SiteOrder more = order;
      more.insert(at(more, i), site.name);
      near.push_back(std::move(more));
    }
  }
  std::erase_if(near, [&](const SiteOrder& sites) {
    return !GroupsStandTogether(sites) ||
           std::ranges::adjacent_find(sites, [&](const std::string& a, const std::string& b) {
             return !linked.contains({a, b});
           }) != sites.end();
  });
  return near;
}

}  // namespace

JobSpec JobOf(const JobSpec& job, const Shape& shape) {
  JobSpec shaped = job;
  shaped.placement.sites = shape.sites;
  shaped.parallelism.tensor = shape.tensor;
  shaped.parallelism.pipeline = shape.pipeline;
  shaped.parallelism.data = shape.data;
  return shaped;
}

std::vector<Degrees> DegreesOf(const JobSpec& job, const ClusterSpec& cluster, const SiteOrder& sites, bool all_sites) {
  const ParallelismSpec& parallelism = job.parallelism;
  const int64_t devices = MostDevicesPerNode(cluster, sites);
  const Degrees own{std::max<int64_t>(1, parallelism.tensor), std::max<int64_t>(1, parallelism.data)};
  std::vector<Degrees> all{own};
  for (int64_t tensor = own.tensor; tensor == own.tensor || (parallelism.tensor == 0 && tensor <= devices); ++tensor) {
    const int64_t most = MaxReplicas(cluster, sites, tensor, all_sites);
    for (int64_t data = own.data; data == own.data || (parallelism.data == 0 && data <= most); ++data) {
      const Degrees degrees{tensor, data};
      const Shape shape{sites, tensor, parallelism.pipeline, data};
      if (degrees != own && data <= most && ValidateJob(JobOf(job, shape)).ok()) {
        all.push_back(degrees);
      }
    }
  }
  return all;
}

std::vector<Shape> ShapesOf(const JobSpec& job, const ClusterSpec& cluster, const SiteOrder& sites) {
  std::vector<Shape> shapes;
  for (const Degrees& degrees : DegreesOf(job, cluster, sites)) {
    AddPipelines(job, cluster, {sites, degrees.tensor, job.parallelism.pipeline, degrees.data}, shapes);
  }
  return shapes;
}

SiteOrder ImproveOrder(const ClusterSpec& cluster, SiteOrder start,
                       const std::function<int64_t(const SiteOrder&)>& cost_ns,
                       const std::function<bool()>& should_stop) {
  const LinkedSites linked = LinkedSitesOf(cluster);
  int64_t least_ns = cost_ns(start);
  bool improved = true;
  while (improved) {
    improved = false;
    for (SiteOrder& near : Neighbours(cluster, linked, start)) {
      if (should_stop && should_stop()) {
        return start;
      }
      const int64_t near_ns = cost_ns(near);
      if (near_ns < least_ns) {
        least_ns = near_ns;
        start = std::move(near);
        improved = true;
        break;
      }
    }
  }
  return start;
}

}  // namespace geopipe
