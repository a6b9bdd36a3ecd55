// The cluster as the planner sees it: sites of equal nodes, or groups of them, and links between sites.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/attention.h"

namespace geopipe {

// Names of sites and nodes are parts of file paths, labels of metrics and identities in certificates: 1 to 63 letters,
// digits, '-', '_' and '.', of which the first is a letter or a digit.
bool IsSiteName(std::string_view name);
inline constexpr std::string_view kSiteNameRule =
    "1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or a digit";
absl::Status SiteNameError(std::string_view name);  // of one that is not

// The nodes of a site that are alike are a group. Where a site has several groups each has an entry in a ClusterSpec,
// named SITE/GROUP, and is the place of pipeline ranks as a site is. This is the site of either name.
std::string_view SiteOfGroup(std::string_view name);

// A device that computes on the host's processors, in the host's memory.
inline constexpr std::string_view kHostDevice = "cpu";
// A GPU that the cuda backend computes on, where an agent has it.
inline constexpr std::string_view kGpuDevice = "cuda";

struct DeviceSpec {
  std::string kind{kHostDevice};                // free text: "cpu", "a100-64gb"
  int64_t memory_bytes = 0;                     // capacity available to the job
  double peak_flops = 0;                        // per second
  double memory_bandwidth_bytes_per_s = 0;      // HBM
  double intra_node_bandwidth_bytes_per_s = 0;  // per direction, for tensor-parallel collectives
  double host_bandwidth_bytes_per_s = 0;        // to and from the host's memory, per direction
  double efficiency = 0.5;                      // share of peak_flops that large products reach
  // Share of peak_flops that attention's products reach over long sequences. Not given: a part of `efficiency`
  // (AttentionEfficiency in cost_model.h).
  std::optional<double> attention_efficiency = {};
  std::optional<Attention> attention = {};  // not given: blocked
  std::optional<Roofline> roofline = {};    // not given: block
  // Part of the memory that no plan may use: driver, kernels, communication library, fragmentation. Not given: none.
  std::optional<int64_t> reserve_bytes = {};
  bool on_processors = false;  // the host's compute in its place, whatever its kind

  // False where the device has a memory of its own beside the host's.
  bool is_in_host_memory() const { return on_processors || kind == kHostDevice; }
  int64_t usable_bytes() const { return memory_bytes - reserve_bytes.value_or(0); }

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// Puts what is left to the kind of a device (attention, roofline, reserve) in the place of what is not given: nothing
// for one that computes on the host's processors.
void FillDeviceDefaults(DeviceSpec& device);

// The fabric between the nodes of a site, full duplex.
struct NetworkSpec {
  enum class Per : uint8_t { kDevice, kNode };

  double bandwidth_bytes_per_s = 0;  // of each device or node, per direction; 0: not given
  int64_t latency_ns = 0;            // one way
  Per per = Per::kDevice;            // a node's devices each have one like this, or share it

  bool given() const { return bandwidth_bytes_per_s > 0; }

  friend bool operator==(const NetworkSpec&, const NetworkSpec&) = default;
};

// A site, or a group of its nodes.
struct SiteSpec {
  std::string name;
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  DeviceSpec device;
  NetworkSpec network = {};
  int64_t host_memory_bytes = 0;  // of each node, for states that its devices have there; 0: not known
  bool keeps_time = false;        // messages between its devices take only the plan's times: see message_overhead.h

  friend bool operator==(const SiteSpec&, const SiteSpec&) = default;
};

// Symmetric and full duplex; bandwidth per direction. Two groups of a site are joined by its network.
struct LinkSpec {
  std::string site_a;
  std::string site_b;
  int64_t latency_ns = 0;            // one way
  double bandwidth_bytes_per_s = 0;  // for the site's network its own figure; 0: not given, and free of cost
  bool keeps_time = false;           // as a site's

  bool inside() const { return SiteOfGroup(site_a) == SiteOfGroup(site_b); }

  friend bool operator==(const LinkSpec&, const LinkSpec&) = default;
};

struct ClusterSpec {
  std::vector<SiteSpec> sites;
  std::vector<LinkSpec> links;

  // nullptr when there is none. The pointers live as long as the cluster is unchanged.
  const SiteSpec* FindSite(std::string_view name) const;
  // The site or group of this name, or all groups of the site, in order; empty when there is none.
  std::vector<const SiteSpec*> GroupsOf(std::string_view name) const;
  // Names of the sites, each once, in the order of first appearance, without their groups.
  std::vector<std::string> SiteNames() const;
  // InvalidArgument for a site of placement.sites that is not here; lists those that are.
  absl::Status UnknownSite(std::string_view name) const;
  // The link between two sites or groups. Between sites with groups it is any of their groups' links, which are alike.
  const LinkSpec* FindLink(std::string_view a, std::string_view b) const;

  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

// InvalidArgument names the site or link and the rule.
absl::Status ValidateCluster(const ClusterSpec& cluster);

}  // namespace geopipe
