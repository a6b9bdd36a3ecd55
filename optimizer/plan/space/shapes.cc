#include "optimizer/plan/space/shapes.h"

#include <algorithm>
#include <limits>
#include <utility>

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

// Replicas that a stage can have: over nodes where all sites say what their network is, else within a node.
int64_t MaxReplicas(const ClusterSpec& cluster, const SiteOrder& sites, int64_t tensor) {
  int64_t over_nodes = std::numeric_limits<int64_t>::max();
  for (const std::string& name : sites) {
    const SiteSpec* site = cluster.FindSite(name);
    if (site == nullptr || !site->network.given()) {
      return MostDevicesPerNode(cluster, sites) / tensor;
    }
    over_nodes = std::min(over_nodes, site->nodes * (site->devices_per_node / tensor));
  }
  return over_nodes;
}

// All pipelines to try for degrees that are not.
void AddPipelines(const JobSpec& job, const ClusterSpec& cluster, Shape shape, std::vector<Shape>& shapes) {
  shapes.push_back(shape);
  const bool degrees_auto = job.parallelism.tensor == 0 || job.parallelism.data == 0;
  if (job.parallelism.pipeline != 0 || !degrees_auto) {
    return;
  }
  const absl::StatusOr<Plan> all = PlaceStages(JobOf(job, shape), cluster, shape.sites);
  for (const int64_t part : {2, 4}) {
    const int64_t stages = all.ok() ? std::ssize(all->stages) / part : 0;
    if (stages >= std::ssize(shape.sites)) {
      shape.pipeline = stages;
      shapes.push_back(shape);
    }
  }
}

// Every order one change away.
std::vector<SiteOrder> Neighbours(const ClusterSpec& cluster, const SiteOrder& order) {
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
  std::erase_if(near, [&](const SiteOrder& sites) { return !Linked(cluster, sites); });
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

std::vector<Shape> ShapesOf(const JobSpec& job, const ClusterSpec& cluster, const SiteOrder& sites) {
  const ParallelismSpec& parallelism = job.parallelism;
  const int64_t devices = MostDevicesPerNode(cluster, sites);
  const Shape own{sites, std::max<int64_t>(1, parallelism.tensor), parallelism.pipeline,
                  std::max<int64_t>(1, parallelism.data)};
  std::vector<Shape> shapes;
  AddPipelines(job, cluster, own, shapes);
  for (int64_t tensor = own.tensor; tensor == own.tensor || (parallelism.tensor == 0 && tensor <= devices); ++tensor) {
    const int64_t most = MaxReplicas(cluster, sites, tensor);
    for (int64_t data = own.data; data == own.data || (parallelism.data == 0 && data <= most); ++data) {
      const Shape shape{sites, tensor, parallelism.pipeline, data};
      if (shape != own && data <= most && ValidateJob(JobOf(job, shape)).ok()) {
        AddPipelines(job, cluster, shape, shapes);
      }
    }
  }
  return shapes;
}

bool TriesAllOrders(const JobSpec& job, const ClusterSpec& cluster) {
  return !job.placement.sites.empty() || cluster.sites.size() <= kMaxPermutedSites;
}

SiteOrder ImproveOrder(const ClusterSpec& cluster, SiteOrder start,
                       const std::function<int64_t(const SiteOrder&)>& cost_ns,
                       const std::function<bool()>& should_stop) {
  int64_t least_ns = cost_ns(start);
  bool improved = true;
  while (improved) {
    improved = false;
    for (SiteOrder& near : Neighbours(cluster, start)) {
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
