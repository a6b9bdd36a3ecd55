#include "coordinator/cli/playground/playground_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/space/placement.h"

namespace geopipe {
namespace {

// Limit on sites, each a host of one or more processes on this machine; more are most likely a typing error.
constexpr int32_t kMaxSites = 64;

constexpr double kMaxSlowdown = 1000;

// Bandwidth of a crossing whose messages take no time to serialise.
constexpr double kInstantBytesPerS = 1e13;

// Degrees that the job leaves to the planner are 1.
int64_t DevicesPerStage(const JobSpec& job) {
  return std::max<int64_t>(1, job.parallelism.tensor) * std::max<int64_t>(1, job.parallelism.data);
}

std::string SiteName(const JobSpec& job, size_t index) {
  return index < job.placement.sites.size() ? job.placement.sites[index] : fmt::format("site-{}", index + 1);
}

void AddLink(PlaygroundLayout& layout, const std::string& a, const std::string& b, const PlaygroundLink& link,
             const std::string& name) {
  layout.links.push_back({a, b, link, name + "-up"});
  layout.links.push_back({b, a, link, name + "-down"});
}

// Refuses a job that the playground's devices cannot hold: no devices are added later, so it would wait for ever.
absl::Status CheckRoom(const JobSpec& job, const ClusterSpec& cluster, const std::vector<std::string>& sites) {
  int64_t stages = 0;
  for (const std::string& name : sites) {
    int64_t here = 0;
    absl::Status why = absl::OkStatus();
    for (const SiteSpec* group : cluster.GroupsOf(name)) {
      const absl::StatusOr<int64_t> slots = StageSlots(job, *group);
      here += slots.value_or(0);
      why = slots.ok() ? why : slots.status();
    }
    if (here == 0 && !why.ok()) {
      return why;
    }
    stages += here;
  }
  if (job.parallelism.pipeline > stages) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.pipeline is {}, but the topology has room for {} of {}; lower it or add devices",
                    job.parallelism.pipeline, Counted(stages, "stage"), Counted(DevicesPerStage(job), "device")));
  }
  return absl::OkStatus();
}

}  // namespace

int32_t PlaygroundLayout::devices() const {
  int32_t devices = 0;
  for (const PlaygroundNode& node : nodes) {
    devices += node.devices;
  }
  return devices;
}

absl::StatusOr<PlaygroundLink> ParsePlaygroundLink(std::string_view text) {
  constexpr std::string_view kForm = "a link is given as latency=20ms,bandwidth=1Gbps";
  const auto named = []<class T>(std::string_view key, absl::StatusOr<T> parsed) -> absl::StatusOr<T> {
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(fmt::format("--link {}: {}", key, std::string(parsed.status().message())));
    }
    return parsed;
  };
  PlaygroundLink link{.latency_ns = -1, .bandwidth_bytes_per_s = 0};
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    if (key == "latency") {
      GP_ASSIGN_OR_RETURN(link.latency_ns, named(key, ParseDuration(value)));
    } else if (key == "bandwidth") {
      GP_ASSIGN_OR_RETURN(link.bandwidth_bytes_per_s, named(key, ParseBandwidth(value)));
    } else {
      return absl::InvalidArgumentError(fmt::format("--link {}: '{}' is unknown; {}", text, part, kForm));
    }
  }
  if (link.latency_ns < 0 || !(link.bandwidth_bytes_per_s > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("--link {}: has no {}; {}", text, link.latency_ns < 0 ? "latency" : "bandwidth", kForm));
  }
  return link;
}

absl::StatusOr<PlaygroundLayout> LayOutSites(const JobSpec& job, int32_t sites, const PlaygroundLink& link) {
  if (sites < 1 || sites > kMaxSites) {
    return absl::InvalidArgumentError(
        fmt::format("--sites {}: the playground holds 1 to {} sites on one machine", sites, kMaxSites));
  }
  const int64_t stages = job.parallelism.pipeline == 0 ? sites : job.parallelism.pipeline;
  if (stages < sites) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.pipeline is {} and there are {} sites: every site holds at least one stage; raise "
                    "parallelism.pipeline or lower --sites",
                    stages, sites));
  }
  const int64_t per_stage = DevicesPerStage(job);
  if (stages * per_stage > kMaxSites) {
    using Degree = std::pair<std::string_view, int64_t>;
    const auto [key, degree] = job.parallelism.data > 1     ? Degree("data", job.parallelism.data)
                               : job.parallelism.tensor > 1 ? Degree("tensor", job.parallelism.tensor)
                                                            : Degree("pipeline", stages);
    return absl::InvalidArgumentError(fmt::format(
        "parallelism.{} is {}: {} stages of {} are {} ranks, and the playground starts a process for each on this "
        "machine, at most {}; lower it",
        key, degree, stages, Counted(per_stage, "device"), stages * per_stage, kMaxSites));
  }
  PlaygroundLayout layout;
  for (int32_t i = 0; i < sites; ++i) {
    const std::string name = SiteName(job, i);
    layout.sites.push_back(name);
    const int64_t stages_here = stages / sites + (i < stages % sites ? 1 : 0);
    layout.nodes.push_back({name, "0", static_cast<int32_t>(stages_here * per_stage), std::nullopt});
  }
  for (size_t a = 0; a < layout.sites.size(); ++a) {
    for (size_t b = a + 1; b < layout.sites.size(); ++b) {
      AddLink(layout, layout.sites[a], layout.sites[b], link, fmt::format("{}-{}", layout.sites[a], layout.sites[b]));
    }
  }
  return layout;
}

absl::StatusOr<PlaygroundLayout> LayOutTopology(const JobSpec& job, const ClusterSpec& cluster) {
  PlaygroundLayout layout;
  layout.sites = job.placement.sites;
  if (layout.sites.empty()) {
    layout.sites = cluster.SiteNames();
  }
  int64_t devices = 0;
  for (const std::string& name : layout.sites) {
    const std::vector<const SiteSpec*> groups = cluster.GroupsOf(name);
    if (groups.empty() || SiteOfGroup(name) != name) {
      return cluster.UnknownSite(name);
    }
    int64_t node = 0;
    for (const SiteSpec* group : groups) {
      devices += group->nodes * group->devices_per_node;
      if (devices > kMaxSites) {
        return absl::InvalidArgumentError(fmt::format(
            "the topology has more than {} devices: the playground starts one process for each on this machine",
            kMaxSites));
      }
      for (const int64_t end = node + group->nodes; node < end; ++node) {
        layout.nodes.push_back({name, fmt::format("{}", node), static_cast<int32_t>(group->devices_per_node),
                                group->device, group->network});
      }
    }
  }
  GP_RETURN_IF_ERROR(CheckRoom(job, cluster, layout.sites));
  const auto listed = [&](const std::string& site) {
    return std::find(layout.sites.begin(), layout.sites.end(), site) != layout.sites.end();
  };
  std::set<std::string> added;
  for (const LinkSpec& link : cluster.links) {
    const std::string a(SiteOfGroup(link.site_a));
    const std::string b(SiteOfGroup(link.site_b));
    const std::string name = fmt::format("{}-{}", a, b);
    if (!link.inside() && listed(a) && listed(b) && added.insert(name).second) {
      AddLink(layout, a, b, {link.latency_ns, link.bandwidth_bytes_per_s}, name);
    }
  }
  return layout;
}

absl::StatusOr<PlaygroundLayout> LayOutCase(const JobSpec& job, const PipelineCosts& costs) {
  PlaygroundLayout layout;
  std::vector<PlaygroundLink> hops;  // between site i and i + 1
  std::vector<std::string> names;
  layout.sites.push_back(SiteName(job, 0));
  layout.nodes.push_back({layout.sites.back(), "0", 1, std::nullopt});
  for (const BoundaryCost& boundary : costs.boundaries) {
    if (!boundary.crosses) {
      ++layout.nodes.back().devices;
      continue;
    }
    const double bandwidth = boundary.serialization_ns == 0 ? kInstantBytesPerS
                                                            : static_cast<double>(boundary.message_bytes) * 1e9 /
                                                                  static_cast<double>(boundary.serialization_ns);
    hops.push_back({boundary.latency_ns, bandwidth});
    names.push_back(boundary.link.empty() ? fmt::format("crossing-{}", hops.size()) : boundary.link);
    layout.sites.push_back(SiteName(job, layout.sites.size()));
    layout.nodes.push_back({layout.sites.back(), "0", 1, std::nullopt});
  }
  if (layout.devices() > kMaxSites) {
    return absl::InvalidArgumentError(
        fmt::format("the case has {} devices: the playground starts one process for each on this machine, at most {}",
                    layout.devices(), kMaxSites));
  }
  for (size_t a = 0; a < layout.sites.size(); ++a) {
    PlaygroundLink path{0, kInstantBytesPerS};
    for (size_t b = a + 1; b < layout.sites.size(); ++b) {
      const PlaygroundLink& hop = hops[b - 1];
      path.latency_ns += hop.latency_ns;
      path.bandwidth_bytes_per_s = std::min(path.bandwidth_bytes_per_s, hop.bandwidth_bytes_per_s);
      AddLink(layout, layout.sites[a], layout.sites[b], path,
              b == a + 1 ? names[b - 1] : fmt::format("{}-{}", layout.sites[a], layout.sites[b]));
    }
  }
  return layout;
}

absl::Status ApplySlowdown(std::string_view text, PlaygroundLayout& layout, RunOptions& run) {
  const auto wrong = [text](std::string_view why) {
    return absl::InvalidArgumentError(
        fmt::format("--slowdown {}: {}; write it as stage=2:1.3 or link=east-west:3", text, why));
  };
  const size_t equals = text.find('=');
  const size_t colon = text.rfind(':');
  if (equals == std::string_view::npos || colon == std::string_view::npos || colon < equals) {
    return wrong("not understood");
  }
  const std::string_view kind = text.substr(0, equals);
  const std::string what(text.substr(equals + 1, colon - equals - 1));
  const absl::StatusOr<double> slowdown = ParseNumber(text.substr(colon + 1));
  if (!slowdown.ok() || !(*slowdown > 0 && *slowdown <= kMaxSlowdown)) {
    return wrong(fmt::format("the factor must be above 0 and at most {}", kMaxSlowdown));
  }
  if (kind == "stage") {
    const absl::StatusOr<int64_t> stage = ParseInteger(what);
    if (!stage.ok() || *stage < 0 || *stage >= layout.devices()) {
      return wrong(fmt::format("there are stages 0 to {}", layout.devices() - 1));
    }
    run.slowdown = StageSlowdown{static_cast<int32_t>(*stage), *slowdown};
    return absl::OkStatus();
  }
  if (kind != "link") {
    return wrong("not understood");
  }
  bool found = false;
  for (PlaygroundLinkEnd& link : layout.links) {
    if (what == fmt::format("{}-{}", link.from_site, link.to_site) ||
        what == fmt::format("{}-{}", link.to_site, link.from_site)) {
      link.slowdown = *slowdown;
      found = true;
    }
  }
  return found ? absl::OkStatus() : wrong("there is no such link");
}

}  // namespace geopipe
