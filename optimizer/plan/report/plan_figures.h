// Figures that people decide by: how well a plan uses the devices, the job's time and cost with it, and the idle
// devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

struct SiteUse {
  std::string site;
  int64_t devices = 0;
  int64_t used = 0;
  std::string reason;  // why the others are idle; empty: all are used

  friend bool operator==(const SiteUse&, const SiteUse&) = default;
};

// Use of a link that the plan's pipeline crosses, once or more often. As many bytes go in the other direction.
struct LinkUse {
  std::string site_a;
  std::string site_b;
  int64_t bytes_per_iteration = 0;  // in each direction
  double bandwidth_bytes_per_s = 0;
  double utilisation = 0;  // of it, on average

  friend bool operator==(const LinkUse&, const LinkUse&) = default;
};

struct PlanFigures {
  // FLOPs of the matrix products of one iteration, forward and backward, as the cost model counts them (attention dense
  // over s); recomputation does not count.
  double model_flops = 0;
  double flops_per_device_per_s = 0;  // of a device in use
  // Model FLOPs utilisation: model_flops over the peak of the devices in use. 0: a site does not state its peak_flops.
  double mfu = 0;
  // Time of the plain work, without recomputation and communication, over all of the cluster's devices at their stated
  // efficiency: a yardstick, not a bound. 0: as mfu.
  int64_t work_ns = 0;
  int64_t cluster_bound_ns = 0;    // PlanResult's: no plan for the job on the cluster takes less; 0: not known
  double above_cluster_bound = 0;  // by which part the plan takes longer
  double tokens_per_day = 0;
  int64_t iterations = 0;       // of the job
  int64_t tokens = 0;           // that they train
  double job_s = 0;             // that they take, with all evaluations
  double device_hours = 0;      // of devices in use, in that time
  int64_t evaluation_ns = 0;    // time of one evaluation; 0: the job has none
  double evaluation_share = 0;  // of job_s, of all evaluations
  std::vector<SiteUse> sites;   // of the cluster, in its order
  std::vector<LinkUse> links;   // in the order of the pipeline

  int64_t devices() const;
  int64_t used() const;
};

// REQUIRES: the plan was made for the job on the cluster.
PlanFigures FiguresOf(const JobSpec& job, const ClusterSpec& cluster, const PlanResult& result);

}  // namespace geopipe
