// Figures of a job or of its cluster, changed by their names: what `plan --what-if` changes. Names, units, ranges and
// error sentences are those of the files' own schemas.
//
//   bandwidth=400Gbps, latency=10ms            of every link between sites
//   north-east.bandwidth=400Gbps               of one
//   nodes=16, device.memory=141GB, network.bandwidth=400Gbps, device=h200-sxm-141gb      of every site
//   north.nodes=16, north/old.device.efficiency=0.4                                      of one site or group of nodes
//   parallelism.tensor=4, tensor=4, micro_batch_size=[1, 2]      keys of the job, by path or by the end of it
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

// One figure, or the same of several sites or links.
struct PlanChange {
  std::string key;   // in full: "parallelism.tensor"
  std::string from;  // as a file would write it; where sites or links differ: "100Gbps, 200Gbps"
  std::string to;

  friend bool operator==(const PlanChange&, const PlanChange&) = default;
};

// "a=1,b=[2,3]" to {"a=1", "b=[2,3]"}: commas in brackets are the value's.
std::vector<std::string> SplitChanges(std::string_view text);

// Makes the changes ("KEY=VALUE" each), in their order. What the files derive from a figure that changes follows it:
// the reserve from the memory, the sequence length from max_position_embeddings, the model from init_from.
// InvalidArgument begins with `flag` and the change: an unknown or ambiguous key, a value that the schema refuses, and
// a job or cluster that is not valid afterwards.
absl::StatusOr<std::vector<PlanChange>> ApplyChanges(std::span<const std::string> changes, std::string_view flag,
                                                     JobSpec& job, ClusterSpec& cluster);

}  // namespace geopipe
