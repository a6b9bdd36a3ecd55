// Plans clusters that nobody has, or only by mistake: the planner's answer is right, or says what to change.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/files.h"
#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// Checks that every rank has a device of its own, within its memory, that links carry no more than they can, and that
// nothing is below the bound.
void CheckPlan(const Json& result, int64_t devices_of_all) {
  std::set<std::tuple<std::string, int64_t, int64_t>> taken;
  std::set<int64_t> ranks;
  int64_t next_layer = 0;
  for (const Json& stage : result["plan"]["stages"]) {
    CHECK(stage["layers"][0] == next_layer);
    next_layer = stage["layers"][1].get<int64_t>() + 1;
    CHECK(stage["peak_bytes"] <= stage["capacity_bytes"]);
    if (!ranks.insert(stage["pipeline_rank"].get<int64_t>()).second) {
      continue;  // another stage of the same devices
    }
    // Devices are listed in the order of the ranks, node by node: a falling number begins the next node.
    size_t node = 0;
    int64_t before = -1;
    for (const int64_t device : stage["devices"].get<std::vector<int64_t>>()) {
      node += device <= before ? 1 : 0;
      before = device;
      REQUIRE(node < stage["nodes"].size());
      CHECK(taken.emplace(stage["site"].get<std::string>(), stage["nodes"][node].get<int64_t>(), device).second);
    }
    CHECK(node + 1 == stage["nodes"].size());
  }
  const Json& figures = result["figures"];
  CHECK(figures["devices"] == devices_of_all);
  int64_t idle = 0;
  for (const Json& site : figures["sites"]) {
    idle += site["devices"].get<int64_t>() - site["used"].get<int64_t>();
    CHECK((site["devices"] == site["used"]) == site["reason"].get<std::string>().empty());
  }
  CHECK(figures["used"] == taken.size());
  CHECK(figures["used"].get<int64_t>() + idle == devices_of_all);
  for (const Json& link : figures["links"]) {
    CHECK(link["utilisation"].get<double>() <= 1);
  }
  CHECK(result["predicted"]["iteration_s"] >= result["predicted"]["lower_bound_s"]);
  CHECK(result["predicted"]["iteration_s"] >= figures["cluster_bound_s"]);
}

TEST_CASE("of odd clusters the plan is right, or a sentence says what to change") {
  const Json cases = Json::parse(ReadFile(SourcePath("tests/golden/odd-clusters.json"), 1 << 20).value());
  REQUIRE(cases.size() >= 60);
  const TempFolder folder = TestFolder();
  const std::string job = (folder.path() / "job.yaml").string();
  const std::string topology = (folder.path() / "topology.yaml").string();
  for (const Json& each : cases) {
    INFO(each["name"].get<std::string>() << "\n" << each["topology"].get<std::string>());
    REQUIRE(WriteFileAtomically(job, each["job"].get<std::string>()).ok());
    REQUIRE(WriteFileAtomically(topology, each["topology"].get<std::string>()).ok());
    const CommandResult result = RunCommand("geopipectl", {"plan", "-f", job, "--topology", topology, "-o", "json"});
    if (each.contains("error")) {
      CHECK_FALSE(result.exit_status.success());
      CHECK_THAT(result.err, Catch::Contains(each["error"].get<std::string>()));
      continue;
    }
    INFO(result.err);
    REQUIRE(result.exit_status.success());
    const Json plan = Json::parse(result.out);
    INFO(plan["figures"].dump(1));
    CHECK(plan["figures"]["used"] == each["used"]);
    Json sites = Json::array();
    for (const Json& stage : plan["plan"]["stages"]) {
      if (std::ranges::find(sites, stage["site"]) == sites.end()) {
        sites.push_back(stage["site"]);
      }
    }
    CHECK(sites == each["sites"]);
    CheckPlan(plan, each["devices"].get<int64_t>());
  }
}

}  // namespace
}  // namespace geopipe
