#include "coordinator/spec/topology_writer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/spec/topology_file.h"
#include "optimizer/model/groups/node_groups.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

ClusterSpec Read(const std::string& text) {
  const absl::StatusOr<ClusterSpec> cluster = ParseTopologyFile(text, "written.yaml");
  INFO(text);
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  return *cluster;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Chance() { return Between(0, 1) == 1; }
  // Draws a figure of any magnitude, with all its bits.
  double Figure(double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(random_));
  }
  double FigureOrNone(double low, double high) { return Chance() ? Figure(low, high) : 0; }

  DeviceSpec Device() {
    constexpr std::string_view kKinds[] = {"cpu", "h100-sxm-80gb", "two words", "null", "a: b #c", "\"quoted\"", "1e3"};
    DeviceSpec device;
    device.kind = kKinds[Between(0, std::ssize(kKinds) - 1)];
    device.memory_bytes = Between(2, int64_t{1} << 40);
    device.peak_flops = FigureOrNone(1e9, 1e16);
    device.memory_bandwidth_bytes_per_s = FigureOrNone(1e3, 1e13);
    device.intra_node_bandwidth_bytes_per_s = FigureOrNone(1e3, 1e13);
    device.host_bandwidth_bytes_per_s = FigureOrNone(1e3, 1e13);
    device.efficiency = Figure(0.01, 1);
    if (Chance()) {
      device.attention_efficiency = Figure(0.01, 1);
    }
    // Only a processor may be without these: a file fills them in for every other kind.
    const bool is_host = device.kind == kHostDevice;
    if (!is_host || Chance()) {
      device.attention = Chance() ? Attention::kDense : Attention::kBlocked;
      device.roofline = Chance() ? Roofline::kBlock : Roofline::kOperation;
      device.reserve_bytes = Between(0, device.memory_bytes - 1);
    }
    return device;
  }

  NetworkSpec Network() {
    return {.bandwidth_bytes_per_s = Figure(1, 1e12),
            .latency_ns = Between(0, 60'000'000'000),
            .per = Chance() ? NetworkSpec::Per::kDevice : NetworkSpec::Per::kNode};
  }

  ClusterSpec Cluster() {
    constexpr std::string_view kNames[] = {"north", "a-b", "b.c", "null", "1e3", "T_rue"};
    ClusterSpec cluster;
    std::vector<std::string> names;
    for (const std::string_view name : kNames) {
      if (!names.empty() && Chance()) {
        continue;
      }
      names.emplace_back(name);
      const int64_t groups = Between(1, 3);
      const NetworkSpec network = Chance() ? Network() : NetworkSpec();
      for (int64_t group = 0; group < groups; ++group) {
        cluster.sites.push_back({.name = names.back() + (groups > 1 ? "/" + std::string(kNames[group]) : ""),
                                 .nodes = Between(1, 1 << 20),
                                 .devices_per_node = Between(1, 1024),
                                 .device = Device(),
                                 .network = network,
                                 .host_memory_bytes = Chance() ? Between(1, int64_t{1} << 50) : 0});
      }
    }
    std::vector<LinkSpec> links;
    for (size_t i = 0; i < names.size(); ++i) {
      for (size_t j = i + 1; j < names.size(); ++j) {
        if (Chance()) {
          links.push_back({names[i], names[j], Between(0, 60'000'000'000), Figure(1, 1e12)});
        }
      }
    }
    cluster.links = LinksOfGroups(cluster.sites, links);
    return cluster;
  }

 private:
  std::mt19937_64 random_;
};

TEST_CASE("what is written is read back as the same cluster, to the last bit") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Draw draw(seed);
  for (int i = 0; i < 300; ++i) {
    const ClusterSpec cluster = draw.Cluster();
    REQUIRE(ValidateCluster(cluster).ok());
    const std::string text = WriteTopology(cluster, {.head = {"A line\nand another.", "sites: []"},
                                                     .networks = {{"north", "as it is"}},
                                                     .links = {{{"a-b", "north"}, "probed 12 s ago\n- no: entry"}}});
    const ClusterSpec read = Read(text);
    INFO(text);
    REQUIRE(read == cluster);
  }
}

TEST_CASE("what a device's kind would get in a file is spelled out where the cluster does not say it") {
  ClusterSpec cluster{.sites = {{"a", 1, 1, {.kind = "gpu", .memory_bytes = 1 << 30}}}, .links = {}};
  const DeviceSpec read = Read(WriteTopology(cluster)).sites.front().device;
  CHECK(read.attention == Attention::kBlocked);
  CHECK(read.roofline == Roofline::kBlock);
  CHECK(read.reserve_bytes == 0);
}

TEST_CASE("what is not known stands as a comment with what to add, and can be had by taking the sign away") {
  const ClusterSpec cluster{.sites = {{"north", 2, 8, {.memory_bytes = int64_t{64} << 30}},
                                      {"east", 1, 8, {.memory_bytes = int64_t{64} << 30}}},
                            .links = {}};
  const std::string device =
      "    devices_per_node: 8\n"
      "    device:\n"
      "      kind: cpu\n"
      "      memory: 64GiB\n"
      "      # peak_flops: 989e12   not known; needed where there is no --profile\n"
      "      # memory_bandwidth: 3.35TB/s   not known; needed where there is no --profile\n"
      "      # intra_node_bandwidth: 450GB/s   not known; needed for tensor and data above 1\n"
      "      # host_bandwidth: 64GB/s   not known; needed for parallelism.offload\n"
      "      efficiency: 0.5\n"
      "      attention_efficiency: auto\n"
      "      attention: auto\n"
      "      roofline: auto\n"
      "      reserve: auto\n";
  const std::string text = WriteTopology(cluster);
  CHECK(text ==
        "sites:\n"
        "  - name: north\n"
        "    nodes: 2\n" +
            device +
            "    # network: {bandwidth: 400Gbps, latency: 5us, per: device}   not known; without it the replicas of a "
            "stage share a node\n"
            "  - name: east\n"
            "    nodes: 1\n" +
            device +
            "# links:\n"
            "  # - {between: [north, east], latency: 20ms, bandwidth: 10Gbps}   not known\n");
  std::string completed = text;
  for (size_t at = completed.find("# "); at != std::string::npos; at = completed.find("# ")) {
    completed.erase(at, 2);
    if (const size_t end = completed.find("   not known", at); end < completed.find('\n', at)) {
      completed.erase(end, completed.find('\n', at) - end);
    }
  }
  const ClusterSpec read = Read(completed);
  CHECK(read.sites.front().device.peak_flops == 989e12);
  CHECK(read.sites.front().network.bandwidth_bytes_per_s == 50e9);
  CHECK(read.links.front().latency_ns == 20'000'000);
}

TEST_CASE("of many sites pairs without a link are not listed one by one") {
  ClusterSpec cluster;
  for (int i = 0; i < 100; ++i) {
    cluster.sites.push_back({"s" + std::to_string(i), 1, 1, {.memory_bytes = 1 << 30}});
  }
  CHECK(WriteTopology(cluster).find("between") == std::string::npos);
}

}  // namespace
}  // namespace geopipe
