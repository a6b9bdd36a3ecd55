// Prediction against measurement, through the installed programs: variants compared, a trace of both, and what deviates
// named. Durations are long enough that a busy machine does not change the order.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// Two devices on which a micro-batch of tests/golden/jobs/mini.yaml takes 30 ms, 20 ms apart.
constexpr const char* kCase =
    "devices: 2\n"
    "micro_batches: 8\n"
    "forward_s: 0.01\n"
    "backward_s: 0.02\n"
    "message_bytes: 8192\n"
    "links:\n"
    "- {from_chunk: 0, latency_s: 0.02, bandwidth_Bps: 1.0e8, link: wan}\n";

class Playground {
 public:
  Playground() : folder_(*TempFolder::Create("geopipe-test-")) {
    REQUIRE(WriteFileAtomically(folder_.path() / "case.yaml", kCase).ok());
  }

  Json Run(const std::vector<std::string>& more) const {
    std::vector<std::string> args{
        "playground", "--job", SourcePath("tests/golden/jobs/mini.yaml"), "--output", folder_.path().string(),
        "-o",         "json"};
    args.insert(args.end(), more.begin(), more.end());
    const CommandResult result = RunCommand("geopipectl", args);
    INFO(result.err);
    REQUIRE(result.exit_status.success());
    return Json::parse(result.out);
  }

  Json Paced(std::vector<std::string> more) const {
    more.insert(more.end(), {"--case", (folder_.path() / "case.yaml").string(), "--pace"});
    return Run(more);
  }

 private:
  TempFolder folder_;
};

std::vector<std::string> Losses(const Json& report) {
  std::vector<std::string> losses;
  for (const Json& iteration : report["iterations"]) {
    losses.push_back(iteration["loss"].dump());
  }
  return losses;
}

TEST_CASE("variants are compared: their order is the predicted one, their losses are those of an unpaced run") {
  const Playground playground;
  const Json compared = playground.Paced({"--compare", "1f1b:blocking,1f1b,geopipe", "--iterations", "4"});
  const Json& variants = compared["variants"];
  REQUIRE(variants.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(variants[i]["losses_equal"] == true);
    CHECK(variants[i]["state"] == "COMPLETED");
    if (i > 0) {
      CHECK(variants[i]["predicted"]["iteration_s"] < variants[i - 1]["predicted"]["iteration_s"]);
      CHECK(variants[i]["measured"]["iteration_s"] < variants[i - 1]["measured"]["iteration_s"]);
    }
  }
  const Json unpaced = playground.Run({"--sites", "2", "--link", "latency=1ms,bandwidth=1Gbps", "--iterations", "4"});
  CHECK(Losses(variants[2]) == Losses(unpaced));

  const absl::StatusOr<std::string> text = ReadFile(variants[2]["artifacts"]["trace"].get<std::string>(), 1 << 24);
  REQUIRE(text.ok());
  std::set<std::string> processes;
  int64_t actions = 0;
  const Json trace = Json::parse(*text);
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") {
      processes.insert(event["args"]["name"].get<std::string>());
    }
    actions += event["ph"] == "X" ? 1 : 0;
  }
  CHECK(processes.contains("predicted: devices"));
  CHECK(processes.contains("predicted: links"));
  CHECK(processes.size() == 4);
  CHECK(actions == 2 * 2 * 16);
}

TEST_CASE("a stage or a link that is slower than planned is named within five iterations") {
  const Playground playground;
  const Json stage = playground.Paced({"--iterations", "5", "--slowdown", "stage=1:2"});
  INFO(stage["largest_deviation"].dump());
  CHECK(stage["largest_deviation"].get<std::string>().find("stage 1 (east/0/0) is slower than predicted") == 0);
  const Json link = playground.Paced({"--iterations", "5", "--schedule", "1f1b", "--slowdown", "link=north-east:3"});
  INFO(link["largest_deviation"].dump());
  CHECK(link["largest_deviation"].get<std::string>().find("the link from ") == 0);
}

}  // namespace
}  // namespace geopipe
