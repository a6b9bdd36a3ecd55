#include "coordinator/spec/plan_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "coordinator/spec/topology_file.h"
#include "coordinator/spec/topology_schema.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "runtime/base/suggest.h"
#include "runtime/base/utf8.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/manifest/job_schema.h"

namespace geopipe {
namespace {

constexpr std::string_view kSpec = "spec.";
constexpr std::string_view kDevice = "device";  // the whole of it, by name or as a map
constexpr size_t kMaxShown = 3;                 // different values of a figure

const Schema<SiteSpec>& SiteFigures() {
  static const auto& schema =
      *new Schema<SiteSpec>(NodesSchema(&SiteSpec::nodes, &SiteSpec::devices_per_node, &SiteSpec::host_memory_bytes,
                                        &SiteSpec::device, Need::kOptional)
                                .Map("network", NetworkSchema(), &SiteSpec::network, "The fabric between nodes."));
  return schema;
}

const Schema<LinkSpec>& LinkFigures() {
  static const auto& schema = *new Schema<LinkSpec>(WithLinkFigures({}));
  return schema;
}

const Schema<JobSpec>& JobKeys() {
  static const auto& schema = *new Schema<JobSpec>(JobSchema(""));
  return schema;
}

// Figure that a name stands for: a key of the job, or of some links or sites.
struct Target {
  enum class Of : uint8_t { kLinks, kSites, kJob };
  Of of = Of::kJob;
  std::string key;            // in full
  std::string path;           // in the schema
  std::vector<size_t> which;  // links or sites of the cluster

  friend bool operator==(const Target&, const Target&) = default;
};

// Part of a path from a key on: "bandwidth" of "network.bandwidth".
bool EndsPath(std::string_view path, std::string_view end) {
  return path.size() > end.size() + 1 && path.ends_with(end) && path[path.size() - end.size() - 1] == '.';
}

std::string_view SiteA(const LinkSpec& link) { return SiteOfGroup(link.site_a); }
std::string_view SiteB(const LinkSpec& link) { return SiteOfGroup(link.site_b); }

// Finds what names of a cluster and of any job stand for.
class Names {
 public:
  explicit Names(const ClusterSpec& cluster) : cluster_(cluster) {
    site_paths_ = SiteFigures().KeyPaths();
    site_paths_.emplace_back(kDevice);
    for (const std::string& path : JobKeys().KeyPaths()) {
      if (path.starts_with(kSpec)) {
        job_paths_.push_back(path.substr(kSpec.size()));
      }
    }
  }

  absl::StatusOr<Target> Find(std::string_view name) const {
    if (name.starts_with(kSpec)) {
      name.remove_prefix(kSpec.size());
    }
    std::vector<Target> found = Exact(name);
    if (found.empty()) {
      found = ByEnd(name);
    }
    if (found.size() == 1 && found.front().of == Target::Of::kLinks && found.front().which.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("there is no link between sites; network.{} is that of the fabric inside them", name));
    }
    if (found.size() == 1) {
      return found.front();
    }
    if (found.empty()) {
      const std::string hint = DidYouMean(name, All());
      return absl::InvalidArgumentError(
          fmt::format("unknown key{}", !hint.empty() ? hint
                                                     : "; links have latency and bandwidth, sites nodes, "
                                                       "devices_per_node, device and network ('geopipectl explain "
                                                       "topology'), and jobs their keys ('geopipectl explain job')"));
    }
    return Ambiguous(found);
  }

 private:
  absl::Status Ambiguous(const std::vector<Target>& found) const {
    std::vector<std::string> keys;
    bool links = false;
    for (const Target& target : found) {
      links = links || target.of == Target::Of::kLinks;
      const LinkSpec* link = target.of == Target::Of::kLinks ? &cluster_.links[target.which.front()] : nullptr;
      keys.push_back(link == nullptr ? target.key
                                     : fmt::format("{} between {} and {}", target.path, SiteA(*link), SiteB(*link)));
    }
    return absl::InvalidArgumentError(
        fmt::format("may be {}; {}", fmt::join(keys, " or "),
                    links ? "change that in the topology file" : "write which of them is meant"));
  }

  std::vector<size_t> AllLinks() const {
    return LinksWith([](const LinkSpec&) { return true; });
  }

  std::vector<size_t> LinksWith(const std::function<bool(const LinkSpec&)>& wanted) const {
    std::vector<size_t> which;
    for (size_t i = 0; i < cluster_.links.size(); ++i) {
      if (!cluster_.links[i].inside() && wanted(cluster_.links[i])) {
        which.push_back(i);
      }
    }
    return which;
  }

  // The site and its groups, or the group.
  std::vector<size_t> SitesNamed(std::string_view name) const {
    std::vector<size_t> which;
    for (size_t i = 0; i < cluster_.sites.size(); ++i) {
      const std::string& each = cluster_.sites[i].name;
      if (name.empty() || each == name || SiteOfGroup(each) == name) {
        which.push_back(i);
      }
    }
    return which;
  }

  // Adds figures of all links and of each pair of sites that `name` may mean. There may be several pairs, since names
  // of sites may contain the sign that stands between two.
  void AddLinks(std::string_view name, std::vector<Target>& found) const {
    for (const std::string& path : LinkFigures().KeyPaths()) {
      if (name == path) {
        found.push_back({Target::Of::kLinks, path, path, AllLinks()});
      }
      if (!EndsPath(name, path)) {
        continue;
      }
      const std::string_view pair = name.substr(0, name.size() - path.size() - 1);
      std::set<std::pair<std::string_view, std::string_view>> known;
      for (const LinkSpec& link : cluster_.links) {
        const std::string_view a = SiteA(link);
        const std::string_view b = SiteB(link);
        const bool is_named = pair == fmt::format("{}-{}", a, b) || pair == fmt::format("{}-{}", b, a);
        if (link.inside() || !is_named || !known.insert({a, b}).second) {
          continue;
        }
        found.push_back({Target::Of::kLinks, fmt::format("{}-{}.{}", a, b, path), path,
                         LinksWith([&](const LinkSpec& other) { return SiteA(other) == a && SiteB(other) == b; })});
      }
    }
  }

  void AddSites(std::string_view name, bool by_end, std::vector<Target>& found) const {
    for (const std::string& path : site_paths_) {
      if (by_end ? EndsPath(path, name) : name == path) {
        found.push_back({Target::Of::kSites, path, path, SitesNamed("")});
      }
      for (const SiteSpec& site : cluster_.sites) {
        for (const std::string_view who : {std::string_view(site.name), SiteOfGroup(site.name)}) {
          if (!name.starts_with(who) || name.size() < who.size() + 2 || name[who.size()] != '.') {
            continue;
          }
          const std::string_view rest = name.substr(who.size() + 1);
          Target target{Target::Of::kSites, fmt::format("{}.{}", who, path), path, SitesNamed(who)};
          if ((by_end ? EndsPath(path, rest) : rest == path) && std::ranges::find(found, target) == found.end()) {
            found.push_back(std::move(target));
          }
        }
      }
    }
  }

  void AddJob(std::string_view name, bool by_end, std::vector<Target>& found) const {
    for (const std::string& path : job_paths_) {
      if (by_end ? EndsPath(path, name) : name == path) {
        found.push_back({Target::Of::kJob, path, fmt::format("{}{}", kSpec, path), {}});
      }
    }
  }

  std::vector<Target> Exact(std::string_view name) const {
    std::vector<Target> found;
    AddLinks(name, found);
    AddSites(name, /*by_end=*/false, found);
    AddJob(name, /*by_end=*/false, found);
    return found;
  }

  std::vector<Target> ByEnd(std::string_view name) const {
    std::vector<Target> found;
    AddSites(name, /*by_end=*/true, found);
    AddJob(name, /*by_end=*/true, found);
    return found;
  }

  // Lists every name, to suggest one like a mistyped one.
  std::vector<std::string> All() const {
    std::vector<std::string> all = job_paths_;
    all.insert(all.end(), site_paths_.begin(), site_paths_.end());
    for (size_t i = 0, paths = all.size(); i < paths; ++i) {
      if (const size_t dot = all[i].rfind('.'); dot != std::string::npos) {
        all.push_back(all[i].substr(dot + 1));
      }
    }
    for (const std::string& path : LinkFigures().KeyPaths()) {
      all.push_back(path);
      for (const LinkSpec& link : cluster_.links) {
        all.push_back(fmt::format("{}-{}.{}", SiteA(link), SiteB(link), path));
      }
    }
    for (const std::string& path : site_paths_) {
      for (const SiteSpec& site : cluster_.sites) {
        all.push_back(fmt::format("{}.{}", site.name, path));
      }
    }
    return all;
  }

  const ClusterSpec& cluster_;
  std::vector<std::string> site_paths_;
  std::vector<std::string> job_paths_;
};

// Joins the figures of several sites or links, each value once.
std::string Together(std::vector<std::string> texts) {
  std::vector<std::string> different;
  for (std::string& text : texts) {
    text = text.empty() ? "none" : std::move(text);
    if (std::ranges::find(different, text) == different.end()) {
      different.push_back(std::move(text));
    }
  }
  if (different.size() > kMaxShown) {
    different.resize(kMaxShown);
    different.emplace_back("…");
  }
  return fmt::format("{}", fmt::join(different, ", "));
}

std::string ShowSite(const Target& target, const SiteSpec& site) {
  return target.path == kDevice ? site.device.kind : SiteFigures().Show(target.path, site);
}

std::string Shown(const Target& target, const JobSpec& job, const ClusterSpec& cluster) {
  std::vector<std::string> texts;
  for (const size_t each : target.which) {
    texts.push_back(target.of == Target::Of::kLinks ? LinkFigures().Show(target.path, cluster.links[each])
                                                    : ShowSite(target, cluster.sites[each]));
  }
  return target.of == Target::Of::kJob ? JobKeys().Show(target.path, job) : Together(std::move(texts));
}

absl::Status ChangeSite(const Target& target, std::string_view value, std::string_view source, SiteSpec& site) {
  if (target.path == kDevice) {
    GP_ASSIGN_OR_RETURN(site.device, ParseDevice(value, source));
    return absl::OkStatus();
  }
  DeviceSpec by_default = site.device;
  by_default.reserve_bytes.reset();
  FillDeviceDefaults(by_default);
  const bool follows = by_default.reserve_bytes == site.device.reserve_bytes && target.path != "device.reserve";
  GP_RETURN_IF_ERROR(SiteFigures().OverlayText(target.path, value, source, &site));
  if (follows) {
    site.device.reserve_bytes.reset();
  }
  FillDeviceDefaults(site.device);
  return absl::OkStatus();
}

absl::Status ChangeJob(const Target& target, std::string_view value, std::string_view source, JobSpec& job) {
  const ModelSpec before = job.model;
  GP_RETURN_IF_ERROR(JobKeys().OverlayText(target.path, value, source, &job));
  if (target.path == "spec.model.init_from" && !job.init_from.empty()) {
    absl::StatusOr<ModelSpec> model = ReadHfConfig(job.init_from);
    if (!model.ok()) {
      return absl::Status(model.status().code(), fmt::format("{}: {}", source, std::string(model.status().message())));
    }
    job.model = *std::move(model);
  }
  // These follow the model, as where a job file leaves them out.
  if (job.search.sequence_length == std::vector<int64_t>{before.longest_sequence()} &&
      target.path != "spec.search.sequence_length") {
    job.search.sequence_length = {job.model.longest_sequence()};
  }
  if (before.num_key_value_heads == before.num_attention_heads && target.path == "spec.model.num_attention_heads") {
    job.model.num_key_value_heads = job.model.num_attention_heads;
  }
  return absl::OkStatus();
}

absl::Status Change(const Target& target, std::string_view value, std::string_view source, JobSpec& job,
                    ClusterSpec& cluster) {
  for (const size_t each : target.which) {
    if (target.of == Target::Of::kLinks) {
      GP_RETURN_IF_ERROR(LinkFigures().OverlayText(target.path, value, source, &cluster.links[each]));
    } else {
      GP_RETURN_IF_ERROR(ChangeSite(target, value, source, cluster.sites[each]));
    }
  }
  return target.of == Target::Of::kJob ? ChangeJob(target, value, source, job) : absl::OkStatus();
}

// Derives the links between the groups of a site from its network.
void MendLinksInside(ClusterSpec& cluster) {
  std::vector<LinkSpec> between;
  std::set<std::pair<std::string, std::string>> known;
  for (LinkSpec link : cluster.links) {
    link.site_a = SiteOfGroup(link.site_a);
    link.site_b = SiteOfGroup(link.site_b);
    if (link.site_a != link.site_b && known.insert({link.site_a, link.site_b}).second) {
      between.push_back(std::move(link));
    }
  }
  cluster.links = LinksOfGroups(cluster.sites, between);
}

absl::Status CheckNetworks(const ClusterSpec& cluster) {
  for (const SiteSpec& site : cluster.sites) {
    if (!site.network.given() && site.network != NetworkSpec()) {
      return absl::InvalidArgumentError(
          fmt::format("site \"{}\" has no network; give its network.bandwidth, too", site.name));
    }
  }
  return absl::OkStatus();
}

absl::Status Behind(std::string_view source, const absl::Status& status) {
  return status.ok() ? status
                     : absl::InvalidArgumentError(fmt::format("{}: {}", source, std::string(status.message())));
}

}  // namespace

std::vector<std::string> SplitChanges(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth <= 0) {
      parts.emplace_back();
    } else if (c != ' ' || !parts.back().empty()) {
      parts.back() += c;
    }
  }
  return parts;
}

absl::StatusOr<std::vector<PlanChange>> ApplyChanges(std::span<const std::string> changes, std::string_view flag,
                                                     JobSpec& job, ClusterSpec& cluster) {
  std::vector<PlanChange> made;
  for (const std::string& text : changes) {
    const std::string source = fmt::format("{} {}", flag, Excerpt(text));
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Behind(source, absl::InvalidArgumentError(
                                "it must be a key and its value, like bandwidth=400Gbps; write a list in brackets"));
    }
    absl::StatusOr<Target> target = Names(cluster).Find(text.substr(0, equals));
    if (!target.ok()) {
      return Behind(source, target.status());
    }
    if (std::ranges::find(made, target->key, &PlanChange::key) != made.end()) {
      return Behind(source, absl::InvalidArgumentError("it is changed already; give each key once"));
    }
    const std::string value = text.substr(equals + 1);
    std::string from = Shown(*target, job, cluster);
    GP_RETURN_IF_ERROR(Change(*target, value, source, job, cluster));
    std::string to = Shown(*target, job, cluster);
    made.push_back({target->key, std::move(from), to.empty() ? value : std::move(to)});
  }
  const std::string all = fmt::format("{} {}", flag, fmt::join(changes, ","));
  GP_RETURN_IF_ERROR(Behind(all, CheckNetworks(cluster)));
  MendLinksInside(cluster);
  GP_RETURN_IF_ERROR(Behind(all, ValidateJob(job)));
  GP_RETURN_IF_ERROR(Behind(all, ValidateCluster(cluster)));
  return made;
}

}  // namespace geopipe
