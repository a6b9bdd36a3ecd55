// Keys of the topology file that two readers share: that of the file, and that of `plan --what-if`.
#pragma once

#include <cstdint>
#include <utility>

#include "optimizer/model/cluster.h"
#include "runtime/base/config/schema.h"
#include "runtime/manifest/daemon_schema.h"

namespace geopipe {

inline constexpr int64_t kMaxHostMemoryBytes = int64_t{1} << 50;

// Keys of nodes that are alike, for any struct that has these members.
template <class T>
Schema<T> NodesSchema(int64_t T::*nodes, int64_t T::*devices_per_node, int64_t T::*host_memory, DeviceSpec T::*device,
                      Need need) {
  return Schema<T>()
      .Key("nodes", IntegerValue(), nodes, "Machines.")
      .Key("devices_per_node", IntegerValue(), devices_per_node, "Devices of each.")
      .Key("host_memory", Showing("not known", From<int64_t>(0, kMaxHostMemoryBytes, BytesValue())), host_memory,
           "Memory of each node for offloaded states and those kept for recovery, beside that of devices.")
      .Map("device", DeviceSchema(), device, "All of these devices are alike.", need);
}

// `schema` and the figures of a link.
inline Schema<LinkSpec> WithLinkFigures(Schema<LinkSpec> schema) {
  schema.Key("latency", DurationValue(), &LinkSpec::latency_ns, "One way.", Need::kRequired)
      .Key("bandwidth", BandwidthValue(), &LinkSpec::bandwidth_bytes_per_s, "Per direction, like 400Gbps.",
           Need::kRequired);
  return schema;
}

}  // namespace geopipe
