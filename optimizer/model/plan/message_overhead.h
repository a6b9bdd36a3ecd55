// The cost of a message besides its link: the transport's own work at both ends, as measured by profiling.
#pragma once

#include <cstdint>
#include <string_view>

#include "optimizer/model/cluster.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/profile.h"

namespace geopipe {

// Beyond the link's latency and serialization, of a message of `bytes` between devices of two sites: the fixed part,
// and of the work per byte, which goes on while the link carries the message, what the serialization does not hide. The
// mean of what the two sites' devices have measured (of each site the lower median); 0 when neither has, or no profile
// is given (null), and where time is kept (cluster.h): a rehearsal compensates for what this host takes.
int64_t MessageOverheadNs(const Profile* profile, const ClusterSpec& cluster, std::string_view site_a,
                          std::string_view site_b, int64_t bytes, int64_t serialization_ns);

// Puts the overhead of a message, and of its acknowledgement when `comm` waits for it, into a boundary between the two
// sites whose message_bytes, latency_ns and serialization_ns are set.
void AddMessageOverhead(const Profile* profile, const ClusterSpec& cluster, std::string_view site_a,
                        std::string_view site_b, CommMode comm, BoundaryCost& boundary);

}  // namespace geopipe
