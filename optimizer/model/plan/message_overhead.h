// The cost of a message besides its link: the transport's own work at both ends, as measured by profiling.
#pragma once

#include <cstdint>
#include <string_view>

#include "optimizer/model/cluster.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/profile.h"

namespace geopipe {

// Time of a message of `bytes` between devices of two sites beyond the link's latency and serialization: the fixed
// part, and the part of the work per byte that the serialization, during which it runs, does not hide. It is the mean
// of the two sites' measurements (of each site the lower median of its devices); 0 when neither has any, or no profile
// is given (null), and where time is kept (cluster.h): a rehearsal compensates for this host's own time.
int64_t MessageOverheadNs(const Profile* profile, const ClusterSpec& cluster, std::string_view site_a,
                          std::string_view site_b, int64_t bytes, int64_t serialization_ns);

// Adds the overhead of a message, and of its acknowledgement when `comm` waits for it, to a boundary between the two
// sites whose message_bytes, latency_ns and serialization_ns are set.
void AddMessageOverhead(const Profile* profile, const ClusterSpec& cluster, std::string_view site_a,
                        std::string_view site_b, CommMode comm, BoundaryCost& boundary);

}  // namespace geopipe
