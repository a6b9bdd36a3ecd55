// Links between sites, as the agents of either end declare them. Where declarations differ, the larger latency and the
// smaller bandwidth are taken: a plan must not count on more than both ends promise.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/membership.h"
#include "geopipe/v1/cluster.pb.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

struct MergedLink {
  int64_t latency_ns = 0;
  double bandwidth_bytes_per_s = 0;
  bool disputed = false;                  // the declarations differ
  std::map<std::string, bool> shaped_by;  // per end that declares the link: whether its workers shape what they send
};

class LinkTable {
 public:
  // Of all registered nodes, connected or not: a link does not end with a stream.
  static LinkTable Of(const std::map<NodeKey, NodeRecord>& nodes);

  // nullptr when neither end declares one. Symmetric.
  const MergedLink* Find(const std::string& a, const std::string& b) const;

  // What a worker at `site` shapes itself: its site's links declared with shape, to each of `sites` (its own is passed
  // over; every other counts, because gradient-norm terms go from every stage to every other). pacer_path is left for
  // the agent to fill in, who knows its host's files.
  std::vector<v1::LinkShape> ShapesFor(const std::string& site, std::span<const std::string> sites) const;

  // Links among `sites` for the planner.
  std::vector<LinkSpec> SpecsFor(std::span<const std::string> sites) const;

  // FailedPrecondition names the first two sites, in pipeline order, that exchange messages in this job but have no
  // declared link: neighbours always; every pair when gradients are clipped, for the norm's terms; the two ends when
  // embeddings are tied.
  absl::Status CheckPipeline(const JobSpec& job, std::span<const std::string> sites) const;

  // Each declared direction.
  std::vector<v1::LinkStatus> Statuses() const;

  // One sentence for each pair of sites whose declarations differ.
  std::vector<std::string> Disputes() const;

 private:
  std::map<std::pair<std::string, std::string>, MergedLink> links_;  // by the two names in order
};

}  // namespace geopipe
