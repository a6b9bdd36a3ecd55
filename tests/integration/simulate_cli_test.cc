// geopipectl simulate against the expected results of every golden case.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
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

TEST_CASE("a case with memory has a second bound, of the schedules that fit") {
  const std::string tight = SourcePath("tests/golden/cases/tight-memory.yaml");
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"simulate", "-f", tight};
    args.insert(args.end(), more.begin(), more.end());
    const CommandResult result = RunCommand("geopipectl", args);
    REQUIRE(result.exit_status.success());
    return result.out;
  };
  const Json fits = Json::parse(run({"--delta-n", "1", "-o", "json"}));
  const Json too_large = Json::parse(run({"--delta-n", "2", "-o", "json"}));
  CHECK(fits["fits"] == true);
  CHECK(too_large["fits"] == false);
  CHECK(fits["lower_bound_s"] == too_large["lower_bound_s"]);
  CHECK(fits["lower_bound_memory_s"] == too_large["lower_bound_memory_s"]);
  CHECK(fits["lower_bound_s"].get<double>() <= too_large["iteration_s"].get<double>());
  CHECK(fits["lower_bound_memory_s"].get<double>() > too_large["iteration_s"].get<double>());
  CHECK(fits["lower_bound_memory_s"].get<double>() <= fits["iteration_s"].get<double>());
  CHECK(run({"--delta-n", "1"}).find("within this memory)") != std::string::npos);
  CHECK(run({"--delta-n", "2"}).find("within this memory)") == std::string::npos);
  const CommandResult without =
      RunCommand("geopipectl", {"simulate", "-f", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "-o", "json"});
  CHECK(Json::parse(without.out)["lower_bound_memory_s"].is_null());
}

TEST_CASE("a case that makes no sense is one sentence at its place, and no output") {
  const TempFolder folder = TestFolder();
  const std::string path = (folder.path() / "case.yaml").string();
  const std::string exported = (folder.path() / "out.csv").string();
  const std::string head = "devices: 3\nmicro_batches: 6\nforward_s: 0.01\nbackward_s: 0.02\n";
  const auto after_head = [&](const std::string& more) { return fmt::format("{}{}\n", head, more); };
  const auto link = [&](const std::string& fields) {
    return after_head(fmt::format("message_bytes: 1e6\nlinks:\n- {{{}}}", fields));
  };
  struct Mistake {
    std::string text;
    std::string sentence;  // after the path
  };
  const std::vector<Mistake> mistakes = {
      {"devices: 3\nmicro_batches: 6\nforward_s: .nan\nbackward_s: 0.02\n",
       ":3:12: forward_s: '.nan' is not a number; write it like 3.0e-4"},
      {"devices: 3\nmicro_batches: 6\nforward_s: .inf\nbackward_s: 0.02\n",
       ":3:12: forward_s: '.inf' is not a number; write it like 3.0e-4"},
      {"devices: 3\nmicro_batches: 6\nforward_s: 0.01\nbackward_s: -0.02\n",
       ":4:13: backward_s: is -0.02; it must be from 1e-09 to 1000000000"},
      {"devices: 3\nmicro_batches: 6\nforward_s: 0\nbackward_s: 0.02\n",
       ":3:12: forward_s: is 0; it must be from 1e-09 to 1000000000"},
      {"devices: 3\nmicro_batches: 6\nforward_s: 1e300\nbackward_s: 0.02\n",
       ":3:12: forward_s: is 1e+300; it must be from 1e-09 to 1000000000"},
      {"devices: 3\nmicro_batches: 6000000\nforward_s: 1e9\nbackward_s: 1\n",
       ":1:1: all durations of an iteration add up to 1.8e+16 s: they must stay below 4e+09 s to be counted in "
       "nanoseconds"},
      {"devices: 0\nmicro_batches: 6\nforward_s: 1\nbackward_s: 1\n",
       ":1:10: devices: is 0; it must be from 1 to 65536"},
      {"devices: 3\nmicro_batches: 0\nforward_s: 1\nbackward_s: 1\n",
       ":2:16: micro_batches: is 0; it must be from 1 to 22369621"},
      {"devices: 3\nmicro_batches: 1000000000\nforward_s: 1\nbackward_s: 1\n",
       ":2:16: micro_batches: is 1000000000; it must be from 1 to 22369621"},
      {"devices: 3\nmicro_batches: 1.5\nforward_s: 1\nbackward_s: 1\n",
       ":2:16: micro_batches: '1.5' is not a whole number; write it like 1048576"},
      {"devices: 3\nmicro_batches: 22000000\nforward_s: 1e-9\nbackward_s: 1e-9\n",
       ": 3 stages times 22000000 micro-batches make 66000000; a timeline of at most 4194304 can be shown, give fewer "
       "micro-batches"},
      {after_head("placement: [0, 2, 2]"),
       ":5:1: placement: gives device 1 nothing to do; place a chunk on every device"},
      {after_head("placement: [0, 1, 3]"), ":5:19: placement[2]: is 3; it must be from 0 to 2"},
      {after_head("weight_grad_s: [1, 1]"), ":5:1: weight_grad_s: has 2 entries; give one number, or a list of 3"},
      {after_head("epilogue_s: -1"), ":5:13: epilogue_s: is -1; it must be from 0 to 1000000000"},
      {after_head("memory: {capacity_bytes: 0}"), ":5:26: memory.capacity_bytes: is 0; it must be from 1 to 1e+18"},
      {after_head("memory: {capacity_bytes: 1e9, activation_bytes: -1}"),
       ":5:49: memory.activation_bytes: is -1; it must be from 0 to 1e+18"},
      {after_head("memory: {capacity_bytes: 1e9, activation_bytes: 1e18}"),
       ":1:1: memory adds up to 1.8e+19 bytes over all micro-batches: it must stay below 4e+18"},
      {link("from_chunk: 2, latency_s: 0.1, bandwidth_Bps: 1e9"),
       ":7:16: links[0].from_chunk: is 2; no boundary follows that chunk, it must be from 0 to 1"},
      {link("from_chunk: -1, latency_s: 0.1, bandwidth_Bps: 1e9"),
       ":7:16: links[0].from_chunk: is -1; no boundary follows that chunk, it must be from 0 to 1"},
      {link("from_chunk: 1, latency_s: 0.1, bandwidth_Bps: 0"),
       ":7:50: links[0].bandwidth_Bps: is 0; it must be above 0 and at most 1e+18"},
      {link("from_chunk: 1, latency_s: 0.1, bandwidth_Bps: 1e300"),
       ":7:50: links[0].bandwidth_Bps: is 1e+300; it must be above 0 and at most 1e+18"},
      {link("from_chunk: 1, latency_s: nan, bandwidth_Bps: 1e9"),
       ":7:30: links[0].latency_s: 'nan' is not a number; write it like 3.0e-4"},
  };
  for (const auto& [text, sentence] : mistakes) {
    REQUIRE(WriteFileAtomically(path, text).ok());
    const CommandResult result = RunCommand(
        "geopipectl", {"simulate", "-f", path, "--schedule", "1f1b", "--export-csv", exported, "-o", "json"});
    INFO(text);
    CHECK(result.exit_status.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err == fmt::format("error: {}{}\n", path, sentence));
    CHECK_FALSE(std::filesystem::exists(exported));
  }
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

// Writes a case of 4 devices with `rest` added, and simulates it.
CommandResult SimulateCase(const TempFolder& folder, const std::string& rest, const std::string& schedule) {
  const std::string path = (folder.path() / "case.yaml").string();
  REQUIRE(WriteFileAtomically(path, fmt::format("devices: 4\nforward_s: 0.01\nbackward_s: 0.01\n{}", rest)).ok());
  return RunCommand("geopipectl", {"simulate", "-f", path, "--schedule", schedule, "-o", "json"});
}

TEST_CASE("every named schedule simulates where it is defined") {
  const TempFolder folder = TestFolder();
  const std::string split = "weight_grad_s: 0.01\nmicro_batches: 8\n";
  const std::string two_each = "chunks: 8\n";
  const std::string folded = "chunks: 8\nplacement: [0, 1, 2, 3, 3, 2, 1, 0]\n";
  const std::string crossing = "message_bytes: 1\nlinks: [{from_chunk: 1, latency_s: 0.02, bandwidth_Bps: 1e9}]\n";
  const std::vector<std::tuple<std::string, std::string, double>> table = {
      {"1f1b", split, 0.33},
      {"interleaved", split + two_each, 0.57},
      {"zb-h1", split, 0.27},
      {"zb-h2", split, 0.27},
      {"zb-v", split + folded, 0.51},
      {"geopipe-zb", split, 0.27},
      {"geopipe-zb", split + crossing, 0.32},
  };
  for (const auto& [schedule, rest, iteration_s] : table) {
    const CommandResult result = SimulateCase(folder, rest, schedule);
    INFO(schedule << "\n" << result.err);
    REQUIRE(result.exit_status.success());
    const Json json = Json::parse(result.out);
    CHECK(json["schedule"] == schedule);
    CHECK(json["iteration_s"].get<double>() == Approx(iteration_s));
    CHECK(json["delta_n"] == (rest.ends_with(crossing) ? Json::array({1}) : Json::array()));
  }
}

TEST_CASE("a schedule that is not defined for the case is refused in one sentence") {
  const TempFolder folder = TestFolder();
  const std::vector<std::tuple<std::string, std::string, std::string>> table = {
      {"zb-v", "micro_batches: 8\nweight_grad_s: 0.01\n",
       "schedule zb-v runs two stages per device: 4 stages on 4 devices given"},
      {"zb-v", "micro_batches: 8\nweight_grad_s: 0.01\nchunks: 8\n",
       "schedule zb-v runs stage 4 on device 3: placement[4] is 0"},
      {"zb-h1", "micro_batches: 8\n",
       "schedule zb-h1 splits the backward, but the costs give no weight gradient time (weight_grad_s)"},
      {"zb-h2", "micro_batches: 8\nweight_grad_s: 0.01\nplacement: [3, 2, 1, 0]\n",
       "schedule zb-h2 runs stage 0 on device 0: placement[0] is 3"},
      {"geopipe-zb", "micro_batches: 8\nweight_grad_s: 0.01\nchunks: 8\n",
       "schedule geopipe-zb runs one stage per device: 8 stages on 4 devices given"},
      {"zb", "micro_batches: 8\n",
       "unknown schedule 'zb': use one of gpipe, 1f1b, geopipe, interleaved, zb-h1, zb-h2, zb-v, geopipe-zb, auto"},
  };
  for (const auto& [schedule, rest, sentence] : table) {
    const CommandResult result = SimulateCase(folder, rest, schedule);
    CHECK(result.exit_status.exit_code == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Catch::StartsWith("error: ") && Catch::EndsWith(sentence + "\n"));
  }
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
            ": schedule CSV, row 1, cell 2: device 0 position 1, 0B0: deadlock: these actions wait for each other in a "
            "cycle: 0B0 (device 0 position 1) waits for 1B0 (device 1 position 2), which stands behind 1F1; 1F1 "
            "(device 1 position 1) "
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
