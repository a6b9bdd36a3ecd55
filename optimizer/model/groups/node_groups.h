// Sites whose nodes differ, as the groups of nodes that are alike (SiteOfGroup).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"

namespace geopipe {

// What a group of devices of this kind is called beside those of its site that have names: the kind, with a number
// where it is taken.
std::string GroupName(std::string_view kind, const std::vector<std::string>& taken);

// Links between sites as links between their groups, and those of each site's groups with each other.
std::vector<LinkSpec> LinksOfGroups(const std::vector<SiteSpec>& sites, const std::vector<LinkSpec>& links);

// Whether two sites differ by their names alone: not by their links.
bool AreAlike(const ClusterSpec& cluster, std::string_view site_a, std::string_view site_b);

// Whether the groups of each site stand next to each other, so that an order of them passes no link between sites
// twice.
bool GroupsStandTogether(const std::vector<std::string>& sites);

}  // namespace geopipe
