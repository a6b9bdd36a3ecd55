#include "optimizer/model/groups/node_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>

namespace geopipe {

std::string GroupName(std::string_view kind, const std::vector<std::string>& taken) {
  const std::string base(IsSiteName(kind) ? kind : "group");
  std::string name = base;
  for (int number = 2; std::ranges::find(taken, name) != taken.end(); ++number) {
    name = fmt::format("{}-{}", base, number);
  }
  return name;
}

std::vector<LinkSpec> LinksOfGroups(const std::vector<SiteSpec>& sites, const std::vector<LinkSpec>& links) {
  std::map<std::string_view, std::vector<const SiteSpec*>> groups;
  for (const SiteSpec& site : sites) {
    groups[SiteOfGroup(site.name)].push_back(&site);
  }
  std::vector<LinkSpec> all;
  for (const auto& [site, of_site] : groups) {
    for (size_t b = 0; b < of_site.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        const NetworkSpec& network = of_site[a]->network;
        all.push_back({.site_a = of_site[a]->name,
                       .site_b = of_site[b]->name,
                       .latency_ns = network.given() ? network.latency_ns : 0,
                       .bandwidth_bytes_per_s = network.bandwidth_bytes_per_s,
                       .keeps_time = of_site[a]->keeps_time});
      }
    }
  }
  for (const LinkSpec& link : links) {
    const auto ends_a = groups.find(link.site_a);
    const auto ends_b = groups.find(link.site_b);
    if (ends_a == groups.end() || ends_b == groups.end()) {
      all.push_back(link);  // for ValidateCluster to say
      continue;
    }
    for (const SiteSpec* a : ends_a->second) {
      for (const SiteSpec* b : ends_b->second) {
        LinkSpec& of_groups = all.emplace_back(link);
        of_groups.site_a = a->name;
        of_groups.site_b = b->name;
      }
    }
  }
  return all;
}

bool AreAlike(const ClusterSpec& cluster, std::string_view site_a, std::string_view site_b) {
  const auto nameless = [](const SiteSpec* group) {
    SiteSpec alike = *group;
    alike.name.clear();
    return alike;
  };
  return std::ranges::equal(cluster.GroupsOf(site_a), cluster.GroupsOf(site_b), {}, nameless, nameless);
}

bool GroupsStandTogether(const std::vector<std::string>& sites) {
  for (size_t i = 2; i < sites.size(); ++i) {
    const std::string_view site = SiteOfGroup(sites[i]);
    const auto before = sites.begin() + static_cast<std::ptrdiff_t>(i) - 1;
    const bool comes_back =
        site != sites[i] && SiteOfGroup(*before) != site &&
        std::any_of(sites.begin(), before, [&](const auto& other) { return SiteOfGroup(other) == site; });
    if (comes_back) {
      return false;
    }
  }
  return true;
}

}  // namespace geopipe
