// geopipectl simulate against the expected results of every golden case.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

std::string Joined(const Json& numbers) {
  std::string text;
  for (const auto& number : numbers) {
    text += text.empty() ? "" : ",";
    text += std::to_string(number.get<int>());
  }
  return text;
}

TEST_CASE("simulate reproduces every row of the golden cases") {
  std::ifstream file(SourcePath("tests/golden/cases/expected.json"));
  const Json expected = Json::parse(file);
  int rows = 0;
  for (const auto& [name, golden] : expected.items()) {
    double best_s = 1e300;
    for (const Json& row : golden["rows"]) {
      std::vector<std::string> args{"simulate",
                                    "-f",
                                    SourcePath("tests/golden/cases/" + name + ".yaml"),
                                    "--schedule",
                                    row["schedule"],
                                    "--comm",
                                    row["comm"],
                                    "-o",
                                    "json"};
      if (row.contains("delta_n")) {
        args.insert(args.end(), {"--delta-n", Joined(row["delta_n"])});
      }
      const CommandResult result = RunCommand("geopipectl", args);
      INFO(name << " " << row.dump() << "\n" << result.err);
      REQUIRE(result.exit_status.success());
      const Json actual = Json::parse(result.out);
      CHECK(actual["iteration_s"].get<double>() == Approx(row["iteration_s"].get<double>()).epsilon(1e-9));
      CHECK(actual["bubble_ratio"].get<double>() == Approx(row["bubble_ratio"].get<double>()).margin(1e-9).epsilon(0));
      CHECK(actual["fits"] == row["fits"]);
      CHECK(actual["peak_bytes"] == row["peak_bytes"]);
      CHECK(actual["lower_bound_s"].get<double>() >= golden["lower_bound_s"].get<double>() * (1 - 1e-9));
      best_s = std::min(best_s, row["iteration_s"].get<double>());
      CHECK(actual["lower_bound_s"].get<double>() <= best_s * (1 + 1e-9));
      ++rows;
    }
  }
  CHECK(rows == 80);
}

TEST_CASE("an exported schedule simulates to the same time") {
  const std::string golden = SourcePath("tests/golden/cases/two-sites-20ms.yaml");
  const absl::StatusOr<TempFolder> folder = TempFolder::Create("geopipe-test-");
  REQUIRE(folder.ok());
  const std::string csv = (folder->path() / "schedule.csv").string();
  const CommandResult named = RunCommand("geopipectl", {"simulate", "-f", golden, "--schedule", "geopipe", "--delta-n",
                                                        "2", "--export-csv", csv, "-o", "json"});
  REQUIRE(named.exit_status.success());
  const CommandResult imported =
      RunCommand("geopipectl", {"simulate", "-f", golden, "--schedule-csv", csv, "-o", "json"});
  REQUIRE(imported.exit_status.success());
  CHECK(Json::parse(named.out)["iteration_s"] == Json::parse(imported.out)["iteration_s"]);
  CHECK(Json::parse(named.out)["actions"] == Json::parse(imported.out)["actions"]);
}

TEST_CASE("a schedule that deadlocks is refused with its cycle, action by action") {
  const TempFolder folder = TestFolder();
  const std::string csv = (folder.path() / "schedule.csv").string();
  const std::string costs = (folder.path() / "case.yaml").string();
  REQUIRE(WriteFileAtomically(costs, "devices: 3\nmicro_batches: 2\nforward_s: 0.01\nbackward_s: 0.02\n").ok());
  // Stage 0 waits for the first gradient before it runs its second forward, which stage 2 waits for by way of stage 1.
  REQUIRE(WriteFileAtomically(csv, "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n").ok());
  const CommandResult result = RunCommand("geopipectl", {"simulate", "-f", costs, "--schedule-csv", csv});
  CHECK(result.exit_status.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(result.err ==
        "error: " + csv +
            ": schedule, device 0 position 1, 0B0: deadlock: these actions wait for each other in a cycle: 0B0 (device "
            "0 position 1) waits for 1B0 (device 1 position 2), which stands behind 1F1; 1F1 (device 1 position 1) "
            "waits for 0F1 (device 0 position 2), which stands behind 0B0; move one that is waited for ahead of what "
            "it stands behind\n"
            "device   0 | 0F0   >0B0< 0F1   0B1\n"
            "device   1 | 1F0   >1F1< 1B0   1B1\n"
            "device   2 | 2F0   >2F1< 2B0   2B1\n");
}

TEST_CASE("simulate draws its timeline on the terminal, as a picture and as a trace") {
  const TempFolder folder = TestFolder();
  const std::string svg = (folder.path() / "timeline.svg").string();
  const std::string trace = (folder.path() / "trace.json").string();
  Command command("geopipectl",
                  {"simulate", "-f", SourcePath("tests/golden/cases/three-sites-paper-shape.yaml"), "--schedule",
                   "geopipe", "--delta-n", "1,2", "--gantt", "--export-svg", svg, "--export-trace", trace},
                  {{"COLUMNS", "60"}});
  const CommandResult result = command.Finish(60'000'000'000);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  CHECK(result.out.find("\nsite 0  0 ▒") != std::string::npos);
  CHECK(result.out.find("\n          ╌╌ 20 ms, 160 Gbps ╌╌╌") != std::string::npos);
  CHECK(result.out.find("\nsite 2  6 ") != std::string::npos);
  CHECK(result.out.find("█ B backward") != std::string::npos);
  CHECK(result.out.find('\x1b') == std::string::npos);  // not a terminal: no colours
  const absl::StatusOr<std::string> picture = ReadFile(svg, 1 << 24);
  REQUIRE(picture.ok());
  CHECK(picture->find(">geopipe, ΔN 1,2, nonblocking</text>") != std::string::npos);
  CHECK(picture->find(">30 ms, 160 Gbps</text>") != std::string::npos);
  const absl::StatusOr<std::string> events = ReadFile(trace, 1 << 24);
  REQUIRE(events.ok());
  CHECK(events->find("device 7 (site 2)") != std::string::npos);
  CHECK_FALSE(Json::parse(*events)["traceEvents"].empty());
}

}  // namespace
}  // namespace geopipe
