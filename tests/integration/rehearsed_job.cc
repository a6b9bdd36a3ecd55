#include "tests/integration/rehearsed_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

std::string Topology(const std::vector<RehearsedSite>& sites) {
  std::string text = "sites:\n";
  std::string links;
  for (size_t i = 0; i < sites.size(); ++i) {
    const RehearsedSite& site = sites[i];
    text += fmt::format(
        "- name: {}\n"
        "  nodes: {}\n"
        "  devices_per_node: {}\n"
        "  device: {{kind: small, memory: {}, peak_flops: 1e12, memory_bandwidth: 100GB/s, intra_node_bandwidth: "
        "10GB/s}}\n"
        "  network: {{bandwidth: 10Gbps, latency: 20us}}\n",
        site.name, site.nodes, site.devices, site.memory);
    for (size_t other = 0; other < i; ++other) {
      links += fmt::format("- {{between: [{}, {}], latency: 2ms, bandwidth: 1Gbps}}\n", sites[other].name, site.name);
    }
  }
  return links.empty() ? text : text + "links:\n" + links;
}

}  // namespace

nlohmann::json Rehearse(const TempFolder& folder, const std::string& spec, const std::vector<RehearsedSite>& sites) {
  std::vector<std::string> names;
  for (const RehearsedSite& site : sites) {
    names.push_back(site.name);
  }
  const std::string job = (folder.path() / "job.yaml").string();
  const std::string topology = (folder.path() / "topology.yaml").string();
  REQUIRE(WriteFileAtomically(job, fmt::format("apiVersion: geopipe/v1\nkind: TrainingJob\nmetadata: {{name: grid}}\n"
                                               "spec:\n{}  placement: {{sites: [{}]}}\n",
                                               spec, fmt::join(names, ", ")))
              .ok());
  REQUIRE(WriteFileAtomically(topology, Topology(sites)).ok());
  const CommandResult result = RunCommand("geopipectl", {"playground", "--job", job, "--topology", topology, "-o",
                                                         "json", "--output", folder.path().string()});
  INFO(spec);
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  nlohmann::json report = nlohmann::json::parse(result.out);
  REQUIRE(report["state"] == "COMPLETED");
  return report;
}

}  // namespace geopipe
