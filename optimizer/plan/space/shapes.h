// Choices above a plan's genome, because they decide how many stages and crossings there are: the sites and their
// order, and the number of devices that work on one stage.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

using SiteOrder = std::vector<std::string>;

// Degrees spelled out: no `auto`, but for pipeline 0, all devices.
struct Shape {
  SiteOrder sites;
  int64_t tensor = 1;
  int64_t pipeline = 0;
  int64_t data = 1;
  std::vector<int64_t> ranks = {};  // pipeline ranks on each site; empty: as PlaceStages shares them out

  friend bool operator==(const Shape&, const Shape&) = default;
};

// Figures of a shape that was not taken.
struct OtherShape {
  Shape shape;  // pipeline spelled out
  int64_t iteration_ns = 0;
  bool at_least = false;  // a bound, not a plan's time
};

// The job with the shape's sites and degrees in place of its own.
JobSpec JobOf(const JobSpec& job, const Shape& shape);

struct Degrees {
  int64_t tensor = 1;
  int64_t data = 1;

  friend bool operator==(const Degrees&, const Degrees&) = default;
};

// The degrees that the job leaves open on these sites: every tensor degree that divides the model, at most a node's
// devices, and every data degree that divides the tokens, at most what the sites' nodes hold (without a network between
// them what one node holds besides the tensor ranks). The first are the job's own, with 1 for auto. `all_sites`: a
// stage's replicas must have room on each of the sites, else on one.
std::vector<Degrees> DegreesOf(const JobSpec& job, const ClusterSpec& cluster, const SiteOrder& sites,
                               bool all_sites = true);

// The shapes of one order of sites: all its degrees; where the job leaves one of them open, pipeline auto is all
// devices or a half or a quarter of them. Never empty; they need not be placeable.
std::vector<Shape> ShapesOf(const JobSpec& job, const ClusterSpec& cluster, const SiteOrder& sites);

// Local search from `start`: reverses a part of the order, swaps two sites, moves one, leaves one out or takes one in,
// and keeps the first change that lessens cost_ns (INT64_MAX: impossible), until none does or should_stop (may be
// empty) says so.
SiteOrder ImproveOrder(const ClusterSpec& cluster, SiteOrder start,
                       const std::function<int64_t(const SiteOrder&)>& cost_ns,
                       const std::function<bool()>& should_stop);

}  // namespace geopipe
