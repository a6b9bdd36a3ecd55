#include "coordinator/spec/plan_change.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/spec/topology_file.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {
namespace {

const std::string kTopology =
    "sites:\n"
    "- {name: north, nodes: 2, devices_per_node: 8, device: h100-sxm-80gb, network: {bandwidth: 400Gbps}}\n"
    "- {name: east, nodes: 4, devices_per_node: 8, device: h100-sxm-80gb}\n"
    "- name: west\n"
    "  network: {bandwidth: 100Gbps, latency: 5us}\n"
    "  node_groups:\n"
    "  - {nodes: 1, devices_per_node: 4, device: a100-sxm-80gb}\n"
    "  - {name: old, nodes: 3, devices_per_node: 4, device: a100-sxm-40gb}\n"
    "links:\n"
    "- {between: [north, east], latency: 3ms, bandwidth: 100Gbps}\n"
    "- {between: [east, west], latency: 5ms, bandwidth: 200Gbps}\n";

struct Changed {
  JobSpec job;
  ClusterSpec cluster;
  std::vector<PlanChange> changes;
  std::string error;
};

Changed Try(const std::vector<std::string>& changes, const std::string& topology = kTopology) {
  Changed changed;
  changed.job.name = "llama";
  changed.job.model = ModelPreset("llama-2-13b").value();
  changed.job.training.iterations = 10;
  changed.job.training.tokens_per_iteration = 1 << 20;
  changed.job.data.paths = {"/data"};
  changed.job.search.sequence_length = {changed.job.model.max_position_embeddings};
  changed.cluster = ParseTopologyFile(topology, "t.yaml").value();
  const absl::StatusOr<std::vector<PlanChange>> made = ApplyChanges(changes, "--what-if", changed.job, changed.cluster);
  if (made.ok()) {
    changed.changes = *made;
  } else {
    changed.error = std::string(made.status().message());
  }
  return changed;
}

Changed Apply(const std::vector<std::string>& changes, const std::string& topology = kTopology) {
  Changed changed = Try(changes, topology);
  INFO(changed.error);
  REQUIRE(changed.error.empty());
  return changed;
}

std::string ErrorOf(const std::string& change) { return Try({change}).error; }

TEST_CASE("changes are split at commas outside of brackets") {
  CHECK(SplitChanges("a=1") == std::vector<std::string>{"a=1"});
  CHECK(SplitChanges("a=1,b=[2, 3], c={d: [4,5], e: 6},f=7") ==
        std::vector<std::string>{"a=1", "b=[2, 3]", "c={d: [4,5], e: 6}", "f=7"});
  CHECK(SplitChanges("") == std::vector<std::string>{""});
  CHECK(SplitChanges("a=1,") == std::vector<std::string>{"a=1", ""});
}

TEST_CASE("the figures of all links between sites change, or of one, whichever end is named first") {
  const Changed all = Apply({"bandwidth=400Gbps", "latency=10ms"});
  CHECK(all.changes ==
        std::vector<PlanChange>{{"bandwidth", "100Gbps, 200Gbps", "400Gbps"}, {"latency", "3ms, 5ms", "10ms"}});
  for (const LinkSpec& link : all.cluster.links) {
    CHECK(link.bandwidth_bytes_per_s == (link.inside() ? 12.5e9 : 50e9));
    CHECK(link.latency_ns == (link.inside() ? 5'000 : 10'000'000));
  }
  for (const std::string pair : {"north-east", "east-north"}) {
    const Changed one = Apply({pair + ".bandwidth=1Tbps"});
    CHECK(one.cluster.FindLink("north", "east")->bandwidth_bytes_per_s == 125e9);
    CHECK(one.cluster.FindLink("east", "west")->bandwidth_bytes_per_s == 25e9);
    CHECK(one.changes.front().key == "north-east.bandwidth");
  }
  // All links first, then one of them.
  const Changed both = Apply({"bandwidth=400Gbps", "east-west.bandwidth=10Gbps"});
  CHECK(both.cluster.FindLink("north", "east")->bandwidth_bytes_per_s == 50e9);
  CHECK(both.cluster.FindLink("west/old", "east")->bandwidth_bytes_per_s == 1.25e9);
}

TEST_CASE("a pair of sites whose names have hyphens is told apart, or asked for") {
  const std::string topology =
      "sites: [{name: a, device: {memory: 1GiB}}, {name: b-c, device: {memory: 1GiB}}, {name: a-b, device: {memory: "
      "1GiB}}, {name: c, device: {memory: 1GiB}}]\n"
      "links: [{between: [a, b-c], latency: 1ms, bandwidth: 1Gbps}, {between: [a-b, c], latency: 1ms, bandwidth: "
      "1Gbps}, {between: [a, c], latency: 1ms, bandwidth: 1Gbps}]\n";
  CHECK(Apply({"c-a.latency=2ms"}, topology).cluster.FindLink("a", "c")->latency_ns == 2'000'000);
  CHECK(Apply({"b-c-a.latency=2ms"}, topology).cluster.FindLink("a", "b-c")->latency_ns == 2'000'000);
  CHECK(
      Try({"a-b-c.latency=2ms"}, topology).error ==
      "--what-if a-b-c.latency=2ms: may be latency between a and b-c or latency between a-b and c; change that in the "
      "topology file");
}

TEST_CASE("the figures of all sites change, of one, or of a group of nodes") {
  const Changed changed = Apply({"north.nodes=16", "west/old.nodes=5", "network.bandwidth=800Gbps", "efficiency=0.6"});
  const ClusterSpec& cluster = changed.cluster;
  CHECK(cluster.FindSite("north")->nodes == 16);
  CHECK(cluster.FindSite("east")->nodes == 4);
  CHECK(cluster.FindSite("west/old")->nodes == 5);
  CHECK(cluster.FindSite("west/a100-sxm-80gb")->nodes == 1);
  for (const SiteSpec& site : cluster.sites) {
    CHECK(site.network.bandwidth_bytes_per_s == 100e9);
    CHECK(site.device.efficiency == 0.6);
  }
  CHECK(cluster.FindLink("west/old", "west/a100-sxm-80gb")->bandwidth_bytes_per_s == 100e9);  // follows the network
  CHECK(changed.changes[2] == PlanChange{"network.bandwidth", "400Gbps, none, 100Gbps", "800Gbps"});
  CHECK(changed.changes[3].key == "device.efficiency");
  CHECK(Apply({"west.device.efficiency=0.3"}).cluster.FindSite("west/old")->device.efficiency == 0.3);
  CHECK(Apply({"west.network.per=node"}).cluster.FindSite("west/old")->network.per == NetworkSpec::Per::kNode);
}

TEST_CASE("a device may be another one, by name or by its figures, and its reserve follows its memory") {
  const Changed changed = Apply({"east.device=h200-sxm-141gb"});
  const DeviceSpec& device = changed.cluster.FindSite("east")->device;
  CHECK(device.memory_bytes == 141'000'000'000);
  CHECK(device.kind == "h200-sxm-141gb");
  CHECK(device.attention == Attention::kBlocked);
  CHECK(changed.changes == std::vector<PlanChange>{{"east.device", "h100-sxm-80gb", "h200-sxm-141gb"}});
  CHECK(Apply({"east.device={preset: h200-sxm-141gb, efficiency: 0.7}"}).cluster.FindSite("east")->device.efficiency ==
        0.7);
  CHECK(Apply({"east.device.memory=141GB"}).cluster.FindSite("east")->device.reserve_bytes ==
        (int64_t{2} << 30) + 141'000'000'000 / 32);
  const Changed kept = Apply({"east.device.reserve=1GiB", "east.device.memory=141GB"});
  CHECK(kept.cluster.FindSite("east")->device.reserve_bytes == int64_t{1} << 30);
}

TEST_CASE("keys of the job change by their path or the end of it") {
  const Changed changed =
      Apply({"tensor=4", "parallelism.zero_stage=1", "spec.search.schedule=geopipe", "micro_batch_size=[1,2]",
             "precision=bf16", "placement.sites=[north, east]", "training.seed=7"});
  CHECK(changed.job.parallelism.tensor == 4);
  CHECK(changed.job.parallelism.zero_stage == 1);
  CHECK(changed.job.search.schedule == ScheduleKind::kGeoPipe);
  CHECK(changed.job.search.micro_batch_size == std::vector<int64_t>{1, 2});
  CHECK(changed.job.precision == Precision::kBf16);
  CHECK(changed.job.placement.sites == std::vector<std::string>{"north", "east"});
  CHECK(changed.job.training.seed == 7);
  CHECK(changed.changes[0].key == "parallelism.tensor");
  CHECK(changed.changes[0].to == "4");
  CHECK(changed.changes[1] == PlanChange{"parallelism.zero_stage", "auto", "1"});
}

TEST_CASE("what a job file derives from a key follows it") {
  CHECK(Apply({"max_position_embeddings=8192"}).job.search.sequence_length == std::vector<int64_t>{8192});
  CHECK(Apply({"sequence_length=[1024]", "max_position_embeddings=8192"}).job.search.sequence_length ==
        std::vector<int64_t>{1024});
  const Changed larger = Apply({"model.preset=llama-2-70b"});
  CHECK(larger.job.model == ModelPreset("llama-2-70b").value());
  CHECK(larger.changes == std::vector<PlanChange>{{"model.preset", "", "llama-2-70b"}});
  CHECK(Apply({"num_attention_heads=20"}).job.model.num_key_value_heads == 20);
}

TEST_CASE("what cannot be changed is refused in the words of the files") {
  CHECK(ErrorOf("bandwith=400Gbps") == "--what-if bandwith=400Gbps: unknown key; did you mean bandwidth?");
  CHECK(ErrorOf("tensr=4") == "--what-if tensr=4: unknown key; did you mean tensor?");
  CHECK(ErrorOf("nroth.nodes=4").ends_with("did you mean north.nodes?"));
  CHECK(ErrorOf("seed=4") == "--what-if seed=4: may be training.seed or search.seed; write which of them is meant");
  CHECK(ErrorOf("price=4").find("unknown key; links have latency and bandwidth") != std::string::npos);
  CHECK(ErrorOf("bandwidth=400") ==
        "--what-if bandwidth=400: bandwidth: '400' has no unit; write it like 400Gbps or 50GB/s");
  CHECK(ErrorOf("latency=") != "");
  CHECK(ErrorOf("device=h1000").find("is not a known device; use one of ") != std::string::npos);
  CHECK(ErrorOf("tensor=0").find("spec.parallelism.tensor: is 0; it must be from 1 to ") != std::string::npos);
  CHECK(ErrorOf("nodes=0") == "--what-if nodes=0: site \"north\": nodes is 0; it must be from 1 to 1048576");
  CHECK(ErrorOf("east.network.latency=5us").find("site \"east\" has no network; give its network.bandwidth") !=
        std::string::npos);
  CHECK(ErrorOf("micro_batch_size=[1,x]").find("spec.search.micro_batch_size[1]: ") != std::string::npos);
  CHECK(ErrorOf("heads").find("it must be a key and its value") != std::string::npos);
  CHECK(ErrorOf("=4").find("it must be a key and its value") != std::string::npos);
  CHECK(ErrorOf("model.init_from=/nowhere").find("/nowhere") != std::string::npos);
  CHECK(Try({"tensor=2", "parallelism.tensor=4"}).error ==
        "--what-if parallelism.tensor=4: it is changed already; give each key once");
  CHECK(ErrorOf("tensor={a: 1}") != "");
  CHECK(ErrorOf("tensor=[").find("--what-if tensor=[") == 0);
}

TEST_CASE("a cluster without links has none to change") {
  const std::string alone = "sites: [{name: a, device: {memory: 1GiB}}]\n";
  CHECK(Try({"latency=1ms"}, alone).error ==
        "--what-if latency=1ms: there is no link between sites; network.latency is that of the fabric inside them");
}

}  // namespace
}  // namespace geopipe
