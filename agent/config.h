// The configuration of geopipe-agent: one YAML file (--config). Keys that are not listed here are errors.
//
//   site: east                     # datacenter of this node
//   node: east-0                   # unique within the site; default <site>-0
//   coordinator: 127.0.0.1:7070    # host:port
//   state_dir: /run/geopipe/east   # socket, logs and pacers; made if missing
//   worker_binary: geopipe-worker  # default: beside this program
//   devices: {count: 8, kind: cpu, memory: 2GiB, threads: 1, peak_flops: 0, memory_bandwidth: 0bps,
//             intra_node_bandwidth: 0bps, efficiency: 0.5}
//   ucx: {tls: tcp, net_devices: lo}
//   links:                         # to the other sites; shape: delayed and paced by the workers themselves (rehearsal)
//     - {to: west, latency: 20ms, bandwidth: 1Gbps, shape: false, pacer_path: FILE}
//   orphan_grace: 30s              # a worker that hears of no agent for so long stops itself
//   die_with_parent: false         # end, and end the workers, when the process that started the agent ends
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"

namespace geopipe::agent {

struct LinkConfig {
  std::string to;
  int64_t latency_ns = 0;  // one way
  double bandwidth_bytes_per_s = 0;
  bool shape = false;
  std::string pacer_path;  // empty: <state_dir>/pacer-<from>-<to>

  friend bool operator==(const LinkConfig&, const LinkConfig&) = default;
};

struct AgentConfig {
  std::string site;
  std::string node;
  std::string coordinator;
  std::string state_dir;
  std::string worker_binary;
  int32_t devices = 1;
  int32_t threads = 1;  // of each worker
  DeviceSpec device;
  std::string ucx_tls;          // empty: the worker's own environment decides
  std::string ucx_net_devices;  // likewise
  std::vector<LinkConfig> links;
  int64_t orphan_grace_ns = int64_t{30} * 1'000'000'000;
  bool die_with_parent = false;

  std::string SocketPath() const { return state_dir + "/agent.sock"; }
  std::string PacerPath(std::string_view to_site) const;
};

}  // namespace geopipe::agent
