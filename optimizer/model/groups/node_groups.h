// Sites whose nodes differ, as groups of nodes that are alike (SiteOfGroup).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"

namespace geopipe {

// Name of a group of devices of this kind beside the names in its site that are taken: the kind, with a number if it is
// taken.
std::string GroupName(std::string_view kind, const std::vector<std::string>& taken);

// Turns links between sites into links between their groups, and adds those among each site's groups.
std::vector<LinkSpec> LinksOfGroups(const std::vector<SiteSpec>& sites, const std::vector<LinkSpec>& links);

// True when two sites differ by their names alone, links included.
bool AreAlike(const ClusterSpec& cluster, std::string_view site_a, std::string_view site_b);

// True when the groups of each site are adjacent, so that an order of them passes no link between sites twice.
bool GroupsStandTogether(const std::vector<std::string>& sites);

}  // namespace geopipe
