#include "coordinator/spec/topology_file.h"

#include <catch2/catch.hpp>
#include <string>

#include "coordinator/spec/device_presets.h"

namespace geopipe {
namespace {

std::string TopologyError(const std::string& text) {
  const absl::StatusOr<ClusterSpec> cluster = ParseTopologyFile(text, "t.yaml");
  return cluster.ok() ? "" : std::string(cluster.status().message());
}

const std::string kSites =
    "sites:\n"
    "- {name: a, nodes: 2, devices_per_node: 8, device: {memory: 64GiB, peak_flops: 320e12, memory_bandwidth: "
    "1.6TB/s}}\n"
    "- {name: b, device: {kind: x, memory: 80GB, efficiency: 0.4, intra_node_bandwidth: 400Gbps}}\n";

TEST_CASE("A topology is read in base units") {
  const auto cluster =
      ParseTopologyFile(kSites + "links: [{between: [b, a], latency: 5ms, bandwidth: 400Gbps}]\n", "t.yaml");
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  // Other devices than the host's keep something for their driver, and nothing of s x s.
  const int64_t reserve_bytes = (int64_t{2} << 30) + 80'000'000'000 / 32;
  CHECK(*cluster == ClusterSpec{.sites = {{"a", 2, 8, {"cpu", int64_t{64} << 30, 320e12, 1.6e12, 0, 0, 0.5}},
                                          {"b",
                                           1,
                                           1,
                                           {"x", 80'000'000'000, 0, 0, 50e9, 0, 0.4, std::nullopt, Attention::kBlocked,
                                            Roofline::kOperation, reserve_bytes}}},
                                .links = {{"b", "a", 5'000'000, 50e9}}});
}

TEST_CASE("A site's network is that of each device, or of a node") {
  const auto sites = [](const std::string& network) {
    return "sites: [{name: a, device: {memory: 1GiB, peak_flops: 1e12, memory_bandwidth: 1GB/s}, network: " + network +
           "}]\n";
  };
  CHECK(ParseTopologyFile(sites("{bandwidth: 400Gbps, latency: 5us}"), "t.yaml")->sites[0].network ==
        NetworkSpec{.bandwidth_bytes_per_s = 50e9, .latency_ns = 5'000, .per = NetworkSpec::Per::kDevice});
  CHECK(ParseTopologyFile(sites("{bandwidth: 8bps, per: node}"), "t.yaml")->sites[0].network ==
        NetworkSpec{.bandwidth_bytes_per_s = 1, .latency_ns = 0, .per = NetworkSpec::Per::kNode});
  CHECK(TopologyError(sites("{latency: 5us}")) ==
        "t.yaml:1:95: sites[0].network.bandwidth: missing; add `bandwidth: <bandwidth>`");
  CHECK(TopologyError(sites("{bandwidth: 8bps, per: rack}")) != "");
  CHECK(TopologyError(sites("{bandwidth: 8bps, latency: 10min}")) != "");
}

TEST_CASE("A device may say how its attention is and what it reserves") {
  const auto device = [](const std::string& more) {
    const auto cluster = ParseTopologyFile("sites: [{name: a, device: {memory: 1GiB, " + more + "}}]\n", "t.yaml");
    INFO(cluster.status().ToString());
    REQUIRE(cluster.ok());
    return cluster->sites[0].device;
  };
  CHECK(device("kind: x, attention: dense, reserve: 0B").attention == Attention::kDense);
  CHECK(device("kind: x, attention: dense, reserve: 0B").usable_bytes() == int64_t{1} << 30);
  CHECK(device("kind: x").usable_bytes() == int64_t{1} << 29);  // half of it at most
  CHECK(device("attention: blocked, reserve: 1MiB").attention == Attention::kBlocked);
  CHECK(device("attention: auto, reserve: auto").usable_bytes() == int64_t{1} << 30);
  CHECK(TopologyError("sites: [{name: a, device: {memory: 1GiB, reserve: 1GiB}}]\n") ==
        "t.yaml:1:9: sites[0]: site \"a\": device.reserve is 1.00 GiB of device.memory 1.00 GiB; it must leave "
        "something of it");
}

TEST_CASE("A device may be named, and what is written beside its name overrides it") {
  const auto device = [](const std::string& text) {
    const auto cluster = ParseTopologyFile("sites: [{name: a, device: " + text + "}]\n", "t.yaml");
    INFO(cluster.status().ToString());
    REQUIRE(cluster.ok());
    return cluster->sites[0].device;
  };
  const DeviceSpec h100 = device(
      "{kind: h100-sxm-80gb, memory: 80GB, peak_flops: 989e12, memory_bandwidth: 3.35TB/s, intra_node_bandwidth: "
      "450GB/s, host_bandwidth: 64GB/s, attention_efficiency: 0.19}");
  CHECK(device("h100-sxm-80gb") == h100);
  CHECK(device("{preset: h100-sxm-80gb}") == h100);
  DeviceSpec own = h100;
  own.efficiency = 0.6;
  own.reserve_bytes = 0;
  own.peak_flops = 800e12;
  own.kind = "ours";
  CHECK(device("{peak_flops: 800e12, preset: h100-sxm-80gb, reserve: 0B, efficiency: 0.6, kind: ours}") == own);
  for (const DevicePreset& preset : DevicePresets()) {
    const DeviceSpec spelled_out = device(std::string(preset.name));
    INFO(preset.name);
    CHECK(spelled_out.kind == preset.name);
    CHECK(spelled_out.memory_bytes == preset.memory_bytes);
    CHECK(spelled_out.peak_flops == preset.peak_flops);
    CHECK(spelled_out.memory_bandwidth_bytes_per_s == preset.memory_bandwidth_bytes_per_s);
    CHECK(spelled_out.intra_node_bandwidth_bytes_per_s == preset.intra_node_bandwidth_bytes_per_s);
    CHECK(spelled_out.host_bandwidth_bytes_per_s == preset.host_bandwidth_bytes_per_s);
    CHECK(spelled_out.attention_efficiency.value_or(0) == preset.attention_efficiency);
    CHECK(spelled_out.attention == Attention::kBlocked);
  }
  const std::string known = DevicePresetNames();
  CHECK(TopologyError("sites: [{name: a, device: h100}]\n") ==
        "t.yaml:1:27: sites[0].device: 'h100' is not a known device; use one of " + known + ", or give its figures");
  CHECK(TopologyError("sites: [{name: a, device: {preset: [x]}}]\n") ==
        "t.yaml:1:36: sites[0].device.preset: a list is not a known device; use one of " + known +
            ", or give its figures");
  CHECK(TopologyError("sites: [{name: a, device: {preset: b200-sxm-180gb, memory: 64}}]\n") ==
        "t.yaml:1:60: sites[0].device.memory: '64' has no unit; write it like 64GiB or 512MiB");
}

TEST_CASE("Where the nodes of a site differ each group of them is a place of its own") {
  const std::string device = "device: {memory: 1GiB, peak_flops: 1e12, memory_bandwidth: 1GB/s";
  const auto groups = [&](const std::string& list) {
    return "sites:\n- {name: a, network: {bandwidth: 8Gbps, latency: 5us}, node_groups: [" + list + "]}\n- {name: b, " +
           device + "}}\n";
  };
  const auto cluster =
      ParseTopologyFile(groups("{nodes: 2, devices_per_node: 8, device: h100-sxm-80gb}, {devices_per_node: 4, " +
                               device + "}}, {nodes: 3, " + device + "}}, {name: old, " + device + ", kind: x y}}") +
                            "links: [{between: [b, a], latency: 1ms, bandwidth: 1Gbps}]\n",
                        "t.yaml");
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  std::string text;
  for (const SiteSpec& site : cluster->sites) {
    text += site.name + " " + std::to_string(site.nodes) + " x " + std::to_string(site.devices_per_node) + " " +
            site.device.kind + (site.network.given() ? " network" : "") + "\n";
  }
  CHECK(text ==
        "a/h100-sxm-80gb 2 x 8 h100-sxm-80gb network\n"
        "a/cpu 1 x 4 cpu network\n"
        "a/cpu-2 3 x 1 cpu network\n"
        "a/old 1 x 1 x y network\n"
        "b 1 x 1 cpu\n");
  CHECK(cluster->sites[0].device.attention == Attention::kBlocked);
  CHECK(cluster->links.size() == 6 + 4);
  CHECK(*cluster->FindLink("a/cpu-2", "a/old") == LinkSpec{"a/cpu-2", "a/old", 5'000, 1e9});
  CHECK(*cluster->FindLink("a/old", "b") == LinkSpec{"b", "a/old", 1'000'000, 1.25e8});
  // One group is the site.
  CHECK(ParseTopologyFile(groups("{nodes: 2, device: h100-sxm-80gb}"), "t.yaml")->sites[0].name == "a");

  CHECK(TopologyError("sites: [{name: a, " + device + "}, node_groups: [{device: h100-sxm-80gb}]}]\n") ==
        "t.yaml:1:9: sites[0]: has a device and node_groups; give one of them");
  CHECK(TopologyError("sites: [{name: a, nodes: 4, node_groups: [{device: h100-sxm-80gb}]}]\n") ==
        "t.yaml:1:9: sites[0]: has nodes or devices_per_node as well as node_groups; give them in each group");
  CHECK(TopologyError(groups("{nodes: 2}")) ==
        "t.yaml:2:70: sites[0].node_groups[0].device: missing; add `device: <map>`");
  CHECK(TopologyError(groups("{nodes: 2, device: h100}, {device: h100-sxm-80gb}"))
            .find("sites[0].node_groups[0].device: 'h100' is not a known device") != std::string::npos);
  CHECK(TopologyError(groups("{device: h100-sxm-80gb}, {nodes: 0, device: h100-sxm-80gb}")) ==
        "t.yaml:2:95: sites[0].node_groups[1]: site \"a/h100-sxm-80gb-2\": nodes is 0; it must be from 1 to 1048576");
  CHECK(TopologyError(groups("{name: x, device: h100-sxm-80gb}, {name: x, device: h100-sxm-80gb}")) ==
        "t.yaml:2:104: sites[0].node_groups[1]: site \"a/x\" is listed twice; give each site once");
}

TEST_CASE("The example topology has the paper's shape") {
  const auto cluster = ReadTopologyFile(GEOPIPE_SOURCE_DIR "/deploy/examples/three-regions.yaml");
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  int64_t nodes = 0;
  for (const SiteSpec& site : cluster->sites) {
    nodes += site.nodes;
    CHECK(site.devices_per_node == 8);
    CHECK(site.device.memory_bytes == int64_t{64} << 30);
  }
  CHECK(nodes == 8);
  CHECK(cluster->links.size() == 3);
}

TEST_CASE("Each mistake in a topology is one sentence at its place") {
  const auto link = [](const std::string& fields) { return kSites + "links:\n- {" + fields + "}\n"; };
  CHECK(TopologyError("sites: []\n") == "t.yaml:1:1: sites: the cluster has no sites; list at least one");
  CHECK(TopologyError("sites: [{name: a}]\n") ==
        "t.yaml:1:9: sites[0]: has no device; give it, or node_groups where its nodes differ");
  CHECK(TopologyError("sites: [{name: a, device: {memory: 64}}]\n") ==
        "t.yaml:1:36: sites[0].device.memory: '64' has no unit; write it like 64GiB or 512MiB");
  CHECK(TopologyError("sites: [{name: a, nodes: 0, device: {memory: 64GiB}}]\n") ==
        "t.yaml:1:9: sites[0]: site \"a\": nodes is 0; it must be from 1 to 1048576");
  CHECK(TopologyError(kSites + "- {name: a, device: {memory: 1GiB}}\n") ==
        "t.yaml:4:3: sites[2]: site \"a\" is listed twice; give each site once");
  CHECK(TopologyError(link("between: [a, c], latency: 5ms, bandwidth: 1Gbps")) ==
        "t.yaml:5:3: links[0]: link between \"a\" and \"c\": there is no site \"c\"");
  CHECK(TopologyError(link("between: [a], latency: 5ms, bandwidth: 1Gbps")) ==
        "t.yaml:5:13: links[0].between: names 1 sites; name two, like [north, east]");
  CHECK(TopologyError(link("between: [a, b], latency: 5, bandwidth: 1Gbps")) ==
        "t.yaml:5:30: links[0].latency: '5' has no unit; write it like 20ms, 1.5s or 10min");
  CHECK(TopologyError(link("between: [a, b], latency: 5ms, bandwidth: 0Gbps")) ==
        "t.yaml:5:46: links[0].bandwidth: '0Gbps' is not a positive bandwidth; write it like 400Gbps");
  CHECK(TopologyError(link("between: [a, b], latency: 5ms, bandwith: 1Gbps")) ==
        "t.yaml:5:35: links[0].bandwith: unknown key; did you mean bandwidth?");
}

TEST_CASE("The reference names every key of a topology") {
  const std::string text = ExplainTopology().Text();
  for (const char* key : {"- name", "devices_per_node", "intra_node_bandwidth", "- between", "mi300x-192gb",
                          "NVIDIA H100 Tensor Core GPU datasheet"}) {
    CHECK(text.find(key) != std::string::npos);
  }
}

}  // namespace
}  // namespace geopipe
