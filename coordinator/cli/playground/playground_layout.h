// Lays out the sites, devices and links that a playground pretends to have, before anything is started.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

// `--link latency=20ms,bandwidth=1Gbps`: the same link between every two sites.
struct PlaygroundLink {
  int64_t latency_ns = 0;
  double bandwidth_bytes_per_s = 0;

  friend bool operator==(const PlaygroundLink&, const PlaygroundLink&) = default;
};

// InvalidArgument shows the form that is expected.
absl::StatusOr<PlaygroundLink> ParsePlaygroundLink(std::string_view text);

// A link between two sites as one end's agent declares and shapes it. Ends of links that share a name also share their
// bandwidth, per direction.
struct PlaygroundLinkEnd {
  std::string from_site;
  std::string to_site;
  PlaygroundLink link;
  std::string pacer;    // name of the shared pacing state, one per link and direction
  double slowdown = 1;  // rehearsed: shaped so many times slower than declared
};

struct PlaygroundNode {
  std::string site;
  std::string node;
  int32_t devices = 1;
  std::optional<DeviceSpec> device;  // as the topology describes it; absent: a share of this machine
  NetworkSpec network = {};          // to the other nodes of the site
};

struct PlaygroundLayout {
  std::vector<PlaygroundNode> nodes;  // in pipeline order of their sites
  std::vector<PlaygroundLinkEnd> links;
  std::vector<std::string> sites;  // pipeline order

  int32_t devices() const;
};

// `sites` sites of one node and one stage each, or of more when the job's `parallelism.pipeline` asks for more stages
// than sites (the first sites take the remainder), with a device for each of a stage's tensor ranks and replicas. They
// bear the names of the job's placement as far as it reaches. InvalidArgument: fewer stages than sites, too many
// devices.
absl::StatusOr<PlaygroundLayout> LayOutSites(const JobSpec& job, int32_t sites, const PlaygroundLink& link);

// The sites, nodes and links of a topology file, in the order of the job's placement (the file's, when it has none).
absl::StatusOr<PlaygroundLayout> LayOutTopology(const JobSpec& job, const ClusterSpec& cluster);

// One device per device of the case; a new site begins behind every crossing. Sites that are not neighbours are joined
// by the sum of the latencies and the least bandwidth between them.
absl::StatusOr<PlaygroundLayout> LayOutCase(const JobSpec& job, const PipelineCosts& costs);

// Rehearses a wrong prediction: "stage=2:1.3" makes a stage 1.3 times slower than the plan knows, "link=east-west:3" a
// link 3 times slower (latency and bandwidth) than its sites declare. InvalidArgument shows the form, or names the link
// or stage that is not there.
absl::Status ApplySlowdown(std::string_view text, PlaygroundLayout& layout, RunOptions& run);

}  // namespace geopipe
