// The configuration of geopipe-agent: one YAML file (--config), over it environment variables (GEOPIPE_AGENT_STATE_DIR
// for state_dir), over them flags (--set state_dir=DIR). Keys that are not listed here are errors. `geopipectl explain
// agent` prints the reference that is made from the same table.
//
//   site: east
//   node: east-0
//   coordinator: 127.0.0.1:7070
//   state_dir: /run/geopipe/east
//   metrics: 127.0.0.1:9465         # Prometheus scrapes it; port 0: any free one; empty: neither agent nor workers
//   devices: {count: 8, kind: cpu, memory: 2GiB, threads: 1}   # or GPUs: {count: 2, kind: cuda, ordinals: [0, 3], …}
//   ucx: {tls: tcp, net_devices: lo}
//   network: {bandwidth: 400Gbps, latency: 5us, per: device}
//   links:
//     - {to: west, latency: 20ms, bandwidth: 1Gbps, shape: true, pacer_path: /run/geopipe/pacer-east-west}
//   orphan_grace: 30s
//   leave_grace: 90s
//   pass_environment: [HF_HOME]
//   log: {level: info, format: json}   # of the agent and its workers
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"
#include "runtime/base/config/schema.h"
#include "runtime/base/log.h"

namespace geopipe::agent {

struct LinkConfig {
  std::string to;
  int64_t latency_ns = 0;  // one way
  double bandwidth_bytes_per_s = 0;
  bool shape = false;
  double slowdown = 1;     // rehearsed: shaped so many times slower than declared
  std::string pacer_path;  // empty: <state_dir>/pacer-<from>-<to>

  friend bool operator==(const LinkConfig&, const LinkConfig&) = default;
};

// The fabric between the nodes of the site.
struct NetworkConfig {
  NetworkSpec spec;
  bool shape = false;

  friend bool operator==(const NetworkConfig&, const NetworkConfig&) = default;
};

struct AgentConfig {
  // Declared so that `{}` calls it: as an aggregate, g++ 12 wrongly warns of uninitialised members.
  AgentConfig() = default;

  std::string site;
  std::string node;
  std::string coordinator;
  std::string state_dir;
  std::string metrics;  // address to be scraped at; workers take any free port of the same host; empty: none
  std::string worker_binary;
  int32_t devices = 1;
  int32_t threads = 1;  // of each worker
  DeviceSpec device;
  // GPUs of devices of kind cuda, one for each device; neither: device i is ordinal i.
  std::vector<int32_t> gpu_ordinals;   // as nvidia-smi shows them
  std::vector<std::string> gpu_uuids;  // like GPU-0a1b2c3d-…
  bool shares_gpus = false;            // one may be named more than once
  std::string gpu_library;             // tests: file of the GPU library; empty: beside the worker
  std::string ucx_tls = "tcp";         // passed to the workers as UCX_TLS
  std::string ucx_net_devices = "lo";  // and as UCX_NET_DEVICES
  bool ucx_allow_unprotected = false;  // other devices than lo
  std::string ucx_private_network;     // of these devices, like 10.20.0.0/16; needed with the key above
  std::string ucx_ports;               // like 47000-47063; empty: any free ones
  NetworkConfig network;
  std::vector<LinkConfig> links;
  std::vector<std::string> pass_environment;  // further variables of the agent's that its workers get
  int64_t orphan_grace_ns = int64_t{30} * 1'000'000'000;
  // A worker gives a silent agent up after five seconds and needs a moment to find the next.
  static constexpr int64_t kMinOrphanGraceNs = int64_t{6} * 1'000'000'000;
  // Time from SIGTERM of the node's keeper, which says that the node goes down, to the end of its workers.
  int64_t leave_grace_ns = int64_t{90} * 1'000'000'000;
  static constexpr int64_t kMaxLeaveGraceNs = int64_t{24} * 3600 * 1'000'000'000;
  bool die_with_parent = false;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;

  std::string SocketPath() const { return state_dir + "/agent.sock"; }
  std::string KeeperSocketPath() const { return state_dir + "/keeper.sock"; }
  // Keeps the highest incarnation of a coordinator that this node has obeyed.
  std::string CoordinatorIncarnationPath() const { return state_dir + "/coordinator.incarnation"; }
  // Files in which processes write the address they are scraped at.
  std::string MetricsAddressPath() const { return state_dir + "/metrics.address"; }
  std::string WorkerMetricsAddressPath(int32_t device) const;
  // The GPU of device `number`, as CUDA_VISIBLE_DEVICES names it; empty: the devices are none.
  std::string GpuOf(int32_t number) const;
  std::string PacerPath(std::string_view to_site) const;
  // Pacer file of the site's network: of one device, or (nullopt) of the node.
  std::string NetworkPacerPath(std::optional<int32_t> device) const;
};

const Schema<AgentConfig>& AgentConfigSchema();

}  // namespace geopipe::agent
