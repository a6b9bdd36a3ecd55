// A plan that takes long: it holds up neither the next job, once it is cancelled, nor the coordinator's end.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/clock.h"
#include "tests/integration/daemons.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// A coordinator, two agents, and a job whose costs are given and take minutes to plan: 65,536 micro-batches, whose
// schedule the planner simulates for every ΔN up to 1,024.
class LongPlan {
 public:
  LongPlan()
      : folder_(TestFolder()),
        coordinator_((folder_.path() / "coordinator").string()),
        north_("geopipe-agent", Agent("north")),
        east_("geopipe-agent", Agent("east")) {
    const std::string job = ChangedJob(folder_, "[north, east, west]", "[north, east]");
    const std::string costs =
        Write("costs.yaml",
              "devices: 2\nmicro_batches: 65536\nforward_s: 0.01\nbackward_s: 0.02\n"
              "message_bytes: 1e6\nlinks:\n- {from_chunk: 0, latency_s: 0.5, bandwidth_Bps: 1e9}\n");
    std::string text = *ReadFile(job, 1 << 20);
    text.replace(text.find("sequence_length: [32]"), 21, "sequence_length: [32]\n    max_delta_n: 1024");
    Write("job.yaml", text);
    const CommandResult applied =
        coordinator_.Ask({"apply", "-f", job, "--case", costs, "--backend", "modelled", "--schedule", "geopipe"});
    INFO(applied.err);
    REQUIRE(applied.exit_status.success());
    WaitUntil(coordinator_.command(), [&] { return StateOf("mini") == "PLANNING"; });
  }

  RunningCoordinator& coordinator() { return coordinator_; }
  std::string StateOf(const std::string& job) const { return Describe(job)["state"]; }
  Json Describe(const std::string& job) const {
    return Json::parse(coordinator_.Ask({"describe", job, "-o", "json"}).out);
  }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_.path() / name).string();
    REQUIRE(WriteFileAtomically(path, text).ok());
    return path;
  }

 private:
  // Arguments of an agent with one device and a link to the other site.
  std::vector<std::string> Agent(const std::string& site) const {
    const std::string state = (folder_.path() / site).string();
    const std::string config =
        Write(site + ".yaml", fmt::format("links:\n- {{to: {}, latency: 1ms, bandwidth: 1Gbps, shape: true}}\n",
                                          site == "north" ? "east" : "north"));
    std::vector<std::string> args = AgentArgs(coordinator_.endpoint(), site, state);
    args.insert(args.end(), {"--config", config});
    return args;
  }

  TempFolder folder_;
  RunningCoordinator coordinator_;
  Command north_;
  Command east_;
};

TEST_CASE("a long plan that is cancelled holds the next one up for less than a second") {
  LongPlan plan;
  const std::string job = plan.Write("next.yaml", [&] {
    std::string text = *ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
    text.replace(text.find("name: mini"), 10, "name: next");
    text.replace(text.find("[north, east, west]"), 19, "[north, east]");
    return text.replace(text.find("../../../LICENSE"), 16, SourcePath("LICENSE"));
  }());
  REQUIRE(plan.coordinator().Ask({"apply", "-f", job, "--iterations", "1"}).exit_status.success());
  REQUIRE(plan.coordinator().Ask({"cancel", "mini"}).exit_status.success());
  WaitUntil(plan.coordinator().command(), [&] { return plan.StateOf("next") == "COMPLETED"; });
  int64_t planning_ns = 0;
  int64_t planned_ns = 0;
  const Json next = plan.Describe("next");
  for (const Json& transition : next["transitions"]) {
    planning_ns = transition["state"] == "PLANNING" ? transition["unix_time_ns"].get<int64_t>() : planning_ns;
    planned_ns = transition["state"] == "DEPLOYING" ? transition["unix_time_ns"].get<int64_t>() : planned_ns;
  }
  CHECK(planning_ns > 0);
  CHECK(planned_ns - planning_ns < kSecond);
}

TEST_CASE("SIGTERM during a long plan ends the coordinator within five seconds") {
  LongPlan plan;
  plan.coordinator().command().process().Signal(SIGTERM);
  const CommandResult ended = plan.coordinator().command().Finish(5 * kSecond);
  CHECK(ended.exit_status.success());
}

}  // namespace
}  // namespace geopipe
