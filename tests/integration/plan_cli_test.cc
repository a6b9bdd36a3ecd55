// geopipectl plan on the example jobs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

std::vector<std::string> PlanArgs(const std::string& job, const std::string& topology) {
  return {"plan", "-f", SourcePath("deploy/examples/" + job), "--topology", topology, "-o", "json"};
}

Json PlanOf(const std::vector<std::string>& args) {
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  return Json::parse(result.out);
}

TEST_CASE("the paper's shape is planned in its own terms, the same way every time, and as well as can be") {
  const std::vector<std::string> args = PlanArgs("llama-2-13b.yaml", SourcePath("deploy/examples/three-regions.yaml"));
  const Json plan = PlanOf(args);
  const size_t stages = plan["plan"]["stages"].size();
  CHECK(stages >= 8);
  CHECK(stages % 8 == 0);  // of eight pipeline ranks
  size_t crossings = 0;
  for (size_t stage = 1; stage < stages; ++stage) {
    crossings += plan["plan"]["stages"][stage]["site"] == plan["plan"]["stages"][stage - 1]["site"] ? 0 : 1;
  }
  CHECK(plan["plan"]["delta_n"].size() == crossings);
  CHECK(plan["predicted"]["iteration_s"].get<double>() >= plan["predicted"]["lower_bound_s"].get<double>());
  for (const Json& stage : plan["plan"]["stages"]) {
    CHECK(stage["devices"].size() == 8);
    CHECK(stage["peak_bytes"].get<int64_t>() > 0);
    CHECK(stage["peak_bytes"].get<int64_t>() <= stage["capacity_bytes"].get<int64_t>());
  }
  CHECK(plan["baselines"].size() >= 5);

  const Json again = PlanOf(args);
  CHECK(again["plan"] == plan["plan"]);
  CHECK(again["predicted"] == plan["predicted"]);

  std::vector<std::string> exhaustive = args;
  exhaustive.insert(exhaustive.end(), {"--search", "exhaustive"});
  const Json optimum = PlanOf(exhaustive);
  CHECK(optimum["plan"] == plan["plan"]);
  CHECK(optimum["predicted"] == plan["predicted"]);
}

TEST_CASE("the 70B model is planned too") {
  const Json plan = PlanOf(PlanArgs("llama-2-70b.yaml", SourcePath("deploy/examples/three-regions.yaml")));
  CHECK(plan["plan"]["stages"].back()["layers"][1] == 79);
}

// The limits are a percent above the plans that are known.
TEST_CASE("clusters of real size are planned with all their devices, over the nodes of each site") {
  struct Case {
    std::string job;
    std::string topology;
    double most_s;
    int64_t devices;
  };
  for (const Case& each : {Case{"llama-2-70b-4mi", "two-h100-sites", 17.3, 256},
                           Case{"llama-2-70b-16mi", "four-h100-sites", 8.89, 2048}}) {
    const std::string folder = SourcePath("tests/golden/clusters/");
    std::vector<std::string> command{
        "plan", "-f", folder + each.job + ".yaml", "--topology", folder + each.topology + ".yaml", "-o", "json"};
    const Json blocked = PlanOf(command);
    command.insert(command.end(), {"--attention", "dense", "--roofline", "block", "--reserve", "0B"});
    const Json plan = PlanOf(command);
    INFO(plan["plan"].dump(2));
    const double bound_s = plan["figures"]["cluster_bound_s"].get<double>();
    CHECK(plan["predicted"]["iteration_s"].get<double>() >= bound_s);
    CHECK(plan["predicted"]["iteration_s"].get<double>() <= bound_s / 0.93);
    CHECK(blocked["plan"]["stages"][0]["capacity_bytes"] < plan["plan"]["stages"][0]["capacity_bytes"]);
    CHECK(plan["predicted"]["iteration_s"].get<double>() <= each.most_s);
    CHECK(plan["plan"]["idle"].empty());
    for (const Json& stage : plan["plan"]["stages"]) {
      CHECK(stage["nodes"].size() > 1);
    }
    CHECK(plan["figures"]["used"] == each.devices);
  }
}

TEST_CASE("degrees that are left open are never worse than those that are fixed") {
  const std::string folder = SourcePath("tests/golden/clusters/");
  const std::string text = ReadFile(folder + "llama-2-70b-4mi.yaml", 1 << 20).value();
  const std::string open =
      "tensor: auto, pipeline: auto, data: auto, sequence_parallel: true, zero_stage: 1, recompute: auto";
  REQUIRE(text.find(open) != std::string::npos);
  const TempFolder temporary = TestFolder();
  const auto iteration_s = [&](const std::string& parallelism) {
    std::string job = text;
    job.replace(job.find(open), open.size(), parallelism + ", sequence_parallel: true, zero_stage: 1");
    const std::string path = (temporary.path() / "job.yaml").string();
    REQUIRE(WriteFileAtomically(path, job).ok());
    const Json plan = PlanOf({"plan", "-f", path, "--topology", folder + "two-h100-sites.yaml", "-o", "json"});
    return plan["predicted"]["iteration_s"].get<double>();
  };
  const double best_s = iteration_s("tensor: auto, pipeline: auto, data: auto, recompute: auto");
  for (const std::string fixed :
       {"tensor: auto, pipeline: auto, data: auto, recompute: selective", "tensor: 8, pipeline: 8, data: 4",
        "tensor: 4, pipeline: 4, data: 16", "tensor: 2, pipeline: 8, data: 16"}) {
    INFO(fixed);
    CHECK(best_s <= iteration_s(fixed) * 1.001);  // a plan by other degrees must gain so much to be taken
  }
}

TEST_CASE("a plan shows itself with the names of its sites: on the terminal, as a picture, as a trace") {
  const TempFolder folder = TestFolder();
  std::vector<std::string> args = PlanArgs("llama-2-13b.yaml", SourcePath("deploy/examples/three-regions.yaml"));
  args.resize(args.size() - 2);  // a table
  const std::string svg = (folder.path() / "plan.svg").string();
  const std::string trace = (folder.path() / "plan.json").string();
  std::vector<std::string> shown = args;
  shown.insert(shown.end(), {"--gantt", "--export-svg", svg, "--export-trace", trace});
  const CommandResult result = RunCommand("geopipectl", shown);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  for (const std::string_view text : {"\ntimeline of one iteration\nnorth  0 ", "\n       2 ", "╌╌ 3 ms, 400 Gbps ╌",
                                      "\neast   3 ", "╌╌ 5 ms, 400 Gbps ╌", "\nwest   5 "}) {
    INFO(text);
    CHECK(result.out.find(text) != std::string::npos);
  }
  const absl::StatusOr<std::string> picture = ReadFile(svg, 1 << 24);
  REQUIRE(picture.ok());
  for (const std::string_view text : {">north</text>", ">pipeline rank 7</text>", ">5 ms, 400 Gbps</text>"}) {
    INFO(text);
    CHECK(picture->find(text) != std::string::npos);
  }
  const absl::StatusOr<std::string> events = ReadFile(trace, 1 << 24);
  REQUIRE(events.ok());
  CHECK(events->find("pipeline rank 7 (west, node 2)") != std::string::npos);
  // No chart is drawn without a terminal unless asked for.
  CHECK(RunCommand("geopipectl", args).out.find("timeline of one iteration") == std::string::npos);
}

TEST_CASE("what if: the plan beside that of other figures, in a table of 80 columns and as JSON") {
  const std::vector<std::string> json = PlanArgs("llama-2-13b.yaml", SourcePath("deploy/examples/three-regions.yaml"));
  const Json plan = PlanOf(json);
  std::vector<std::string> args = json;
  args.insert(args.end(), {"--what-if", "bandwidth=40Gbps,latency=20ms", "--what-if", "search.schedule=geopipe"});
  const Json both = PlanOf(args);
  CHECK(both["changed"].size() == 3);
  CHECK(both["changed"][0] == Json({{"key", "bandwidth"}, {"from", "400Gbps"}, {"to", "40Gbps"}}));
  CHECK(both["now"]["plan"] == plan["plan"]);
  CHECK(both["now"]["predicted"] == plan["predicted"]);
  CHECK(both["then"]["plan"]["schedule"] == "geopipe");
  CHECK(both["then"]["figures"]["links"][0]["bandwidth_Bps"] == 5e9);
  const double now_s = both["now"]["predicted"]["iteration_s"].get<double>();
  const double then_s = both["then"]["predicted"]["iteration_s"].get<double>();
  CHECK(then_s > now_s);
  CHECK(both["change"]["iteration"].get<double>() == Approx(then_s / now_s - 1));

  std::vector<std::string> table(json.begin(), json.end() - 2);
  table.insert(table.end(), {"--what-if", "learning_rate=1e-3"});
  const CommandResult same = RunCommand("geopipectl", table);
  INFO(same.out);
  REQUIRE(same.exit_status.success());
  CHECK(same.out.starts_with("what if  training.learning_rate "));
  CHECK(same.out.ends_with(
      "\nnothing changes: with another training.learning_rate the plan and its times are the same\n"));

  table.back() = "device.memory=4GiB";  // there is no plan with it
  const CommandResult none = RunCommand("geopipectl", table);
  CHECK(none.exit_status.exit_code == 3);
  CHECK(none.out.find("\nno plan then: the job does not fit: pipeline rank ") != std::string::npos);
  CHECK(none.err.find("error: --what-if device.memory=4GiB: the job does not fit: pipeline rank ") !=
        std::string::npos);

  table.back() = "bandwith=1Gbps";
  CheckEnded(RunCommand("geopipectl", table), 2,
             "error: --what-if bandwith=1Gbps: unknown key; did you mean bandwidth?", {});
  table.back() = "bandwidth=1Gbps";
  table.emplace_back("--explain");
  CheckEnded(RunCommand("geopipectl", table), 2, "error: --explain is about one plan and --what-if about two", {});
  table.back() = "--sweep=latency=1ms..2ms";
  CheckEnded(RunCommand("geopipectl", table), 2, "error: --sweep is about many plans and --what-if about two", {});
}

TEST_CASE("a plan says why it is what it is") {
  std::vector<std::string> args = PlanArgs("llama-2-13b.yaml", SourcePath("deploy/examples/three-regions.yaml"));
  args.emplace_back("--explain");
  const Json plan = PlanOf(args);
  const Json& explanation = plan["explanation"];
  REQUIRE(explanation["stages"].size() == 8);
  CHECK(explanation["stages"][7]["bound_by"] == "compute");
  double bubble = 0;
  for (const Json& part : explanation["bubble"]) {
    bubble += part["ratio"].get<double>();
  }
  CHECK(bubble == Approx(plan["predicted"]["bubble_ratio"].get<double>()));
  double time_s = 0;
  for (const Json& part : explanation["time"]) {
    time_s += part["s"].get<double>();
  }
  CHECK(time_s == Approx(plan["predicted"]["iteration_s"].get<double>()));
  const auto choice = [&](std::string_view key, std::string_view instead) {
    return std::ranges::count_if(explanation["choices"],
                                 [&](const Json& each) { return each["choice"] == key && each["instead"] == instead; });
  };
  CHECK(choice("micro_batch_size", "1") + choice("micro_batch_size", "2") + choice("micro_batch_size", "4") == 2);
  CHECK(choice("schedule", "zb-h1") == 1);
  for (const Json& rank : plan["memory"]) {
    const Json& stage = plan["plan"]["stages"][rank["pipeline_rank"].get<size_t>()];
    CHECK(rank["peak_bytes"] == stage["peak_bytes"]);
    CHECK(rank["capacity_bytes"] == stage["capacity_bytes"]);
  }
  // A table; of a job with few choices, which are soon tried.
  const TempFolder folder = TestFolder();
  const std::string path = (folder.path() / "job.yaml").string();
  std::string job = ReadFile(args[2], 1 << 20).value();
  constexpr std::string_view kSearch = "  search: {";
  REQUIRE(job.find(kSearch) != std::string::npos);
  job.insert(job.find(kSearch) + kSearch.size(), "schedule: 1f1b, ");
  REQUIRE(WriteFileAtomically(path, job).ok());
  const CommandResult table = RunCommand("geopipectl", {"plan", "-f", path, "--topology", args[4], "--explain"});
  REQUIRE(table.exit_status.success());
  for (const std::string text :
       {"what binds each rank", "its own compute", "where the bubble of ", "warm-up", "drain",
        "plain work: ", "\nwhat each choice costs: ", "\nmemory of a device at its peak in GiB", "\ntightest: "}) {
    INFO(text);
    CHECK(table.out.find(text) != std::string::npos);
  }
}

TEST_CASE("a plan stands beside its alternatives, of which local steps are never called faster") {
  const std::string folder = SourcePath("tests/golden/clusters/");
  std::vector<std::string> args{
      "plan", "-f", folder + "llama-2-70b-4mi.yaml", "--topology", folder + "two-h100-sites.yaml", "-o", "json"};
  const Json plan = PlanOf(args);
  const Json& alternatives = plan["alternatives"];
  REQUIRE(alternatives.size() == 4);
  CHECK(alternatives[0]["kind"] == "single-site");
  CHECK(alternatives[0]["iteration_s"].get<double>() > 1.5 * plan["predicted"]["iteration_s"].get<double>());
  CHECK(alternatives[1]["is_plan"] == true);
  CHECK(alternatives[1]["iteration_s"] == plan["predicted"]["iteration_s"]);
  const Json& replicas = alternatives[2];
  REQUIRE(replicas["sites"].size() == 2);
  int64_t tokens = 0;
  for (const Json& site : replicas["sites"]) {
    tokens += site["tokens"].get<int64_t>();
    CHECK(site["plan"]["stages"].back()["layers"].back() == 79);
    for (const Json& stage : site["plan"]["stages"]) {
      CHECK(stage["site"] == site["site"]);
      CHECK(stage["peak_bytes"].get<int64_t>() <= stage["capacity_bytes"].get<int64_t>());
    }
  }
  CHECK(tokens == 4'194'304);
  // 69.0 billion gradients of four bytes over 100 Gbps, and 15 ms there and back; the backward hides the first of them.
  CHECK(replicas["reduction"]["alone_s"].get<double>() == Approx(22.0725 + 0.03).epsilon(1e-3));
  CHECK(replicas["reduction"]["exposed_s"].get<double>() > 10);
  CHECK(replicas["reduction"]["exposed_s"].get<double>() < replicas["reduction"]["alone_s"].get<double>());
  CHECK(alternatives[3]["changes_training"] == true);
  CHECK(alternatives[3]["iteration_s"].get<double>() < plan["predicted"]["iteration_s"].get<double>());
  const auto baseline =
      std::ranges::find_if(plan["baselines"], [](const Json& each) { return each["scope"] == "site-replicas"; });
  REQUIRE(baseline != plan["baselines"].end());
  CHECK((*baseline)["iteration_s"] == replicas["iteration_s"]);

  args.resize(args.size() - 2);
  const CommandResult table = RunCommand("geopipectl", args);
  REQUIRE(table.exit_status.success());
  for (const std::string_view text :
       {"\nALTERNATIVE ", "\nsingle site ", "\npipeline over sites (this plan) ", "\nreplica per site ",
        "\nlocal steps (changes the training) ", " and is never chosen\n"}) {
    INFO(text);
    CHECK(table.out.find(text) != std::string::npos);
  }
  CHECK(table.out.find("\nfaster ") == std::string::npos);
  CHECK(table.out.find("site-replicas") == std::string::npos);  // not twice
  args.insert(args.end(), {"-o", "wide"});
  const CommandResult wide = RunCommand("geopipectl", args);
  CHECK(wide.out.find("\nreplica per site at dublin: 2,097,152 tokens in ") != std::string::npos);
}

TEST_CASE("a sweep shows which alternative is fastest where") {
  const std::string folder = SourcePath("tests/golden/clusters/");
  const std::vector<std::string> args{"plan",
                                      "-f",
                                      folder + "llama-2-70b-4mi.yaml",
                                      "--topology",
                                      folder + "two-h100-sites.yaml",
                                      "--sweep",
                                      "bandwidth=1Gbps..6400Gbps",
                                      "--steps",
                                      "4"};
  const CommandResult line = RunCommand("geopipectl", args);
  INFO(line.out);
  REQUIRE(line.exit_status.success());
  CHECK(line.out.find("\nfastest: single site up to 18.6 Gbps, pipeline over sites from 345 Gbps on\n") !=
        std::string::npos);
  std::vector<std::string> grid = args;
  grid.insert(grid.end() - 2, {"--sweep", "latency=1ms..2ms"});
  grid.back() = "4,2";
  const CommandResult map = RunCommand("geopipectl", grid);
  INFO(map.out);
  REQUIRE(map.exit_status.success());
  CHECK(map.out.find("\nfastest: P pipeline over sites, R replica per site, S single site") != std::string::npos);
  CHECK(map.out.find("\nlatency of every link, one way, ms\n") == std::string::npos);  // it goes to the right
  CHECK(map.out.find("\n   1 Gbps  S S\n") != std::string::npos);
}

TEST_CASE("a sweep is a table with its knee, a CSV, a picture and JSON") {
  const TempFolder folder = TestFolder();
  const std::vector<std::string> json = PlanArgs("llama-2-13b.yaml", SourcePath("deploy/examples/three-regions.yaml"));
  const std::vector<std::string> table(json.begin(), json.end() - 2);
  const std::string csv = (folder.path() / "sweep.csv").string();
  const std::string svg = (folder.path() / "sweep.svg").string();
  std::vector<std::string> args = table;
  args.insert(args.end(),
              {"--sweep", "bandwidth=10Gbps..800Gbps", "--steps", "4", "--export-csv", csv, "--export-svg", svg});
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  CHECK(result.out.find("BANDWIDTH") == 0);
  CHECK(result.out.find("< knee") != std::string::npos);
  CHECK(result.err.find("error") == std::string::npos);  // on a slow machine it says how far it is
  const absl::StatusOr<std::string> rows = ReadFile(csv, 1 << 20);
  REQUIRE(rows.ok());
  CHECK(std::count(rows->begin(), rows->end(), '\n') == 5);
  const absl::StatusOr<std::string> picture = ReadFile(svg, 1 << 20);
  REQUIRE(picture.ok());
  CHECK(picture->find(">knee: ") != std::string::npos);

  std::vector<std::string> grid = json;
  grid.insert(grid.end(), {"--sweep", "latency=1ms..50ms", "--sweep", "delta_n=0..2", "--steps", "2,3"});
  const Json swept = PlanOf(grid);
  CHECK(swept["points"].size() == 6);
  CHECK(swept["points"][5]["results"][0]["delta_n"] == Json::array({2, 2}));
  CHECK(swept["summary"][0]["greatest_bubble_reduction"].get<double>() > 0.5);

  std::vector<std::string> wrong = table;
  wrong.insert(wrong.end(), {"--sweep", "bandwidth=10..400Gbps"});
  CheckEnded(RunCommand("geopipectl", wrong), 2, "error: --sweep bandwidth=10..400Gbps: ", {"10"});
  wrong.back() = "latency=1ms..2ms";
  wrong.emplace_back("--gantt");
  CheckEnded(RunCommand("geopipectl", wrong), 2, "error: --gantt shows one plan and --sweep makes many", {});
}

TEST_CASE("a row of a sweep is the plan that is made there alone") {
  std::vector<std::string> args = PlanArgs("llama-2-13b.yaml", SourcePath("deploy/examples/three-regions.yaml"));
  args.insert(args.end(), {"--sweep", "bandwidth=400Gbps..800Gbps", "--steps", "2"});
  const Json rows = PlanOf(args)["points"];
  args.resize(args.size() - 4);
  args.insert(args.end(), {"--what-if", "bandwidth=800Gbps"});
  const Json plans = PlanOf(args);
  for (const auto& [row, plan] : {std::pair(rows[0], plans["now"]), std::pair(rows[1], plans["then"])}) {
    const Json& result = row["results"][0];
    for (const std::string_view key : {"schedule", "micro_batch_size", "sequence_length", "delta_n"}) {
      CHECK(result[key] == plan["plan"][key]);
    }
    for (const std::string_view key : {"iteration_s", "bubble_ratio", "lower_bound_s"}) {
      CHECK(result[key] == plan["predicted"][key]);
    }
  }
}

TEST_CASE("devices that are too small are infeasible, with the tightest constraint and what would relax it") {
  const absl::StatusOr<TempFolder> folder = TempFolder::Create("geopipe-test-");
  REQUIRE(folder.ok());
  const absl::StatusOr<std::string> topology = ReadFile(SourcePath("deploy/examples/three-regions.yaml"), 1 << 20);
  REQUIRE(topology.ok());
  const std::string small = (folder->path() / "small.yaml").string();
  REQUIRE(WriteFileAtomically(small, std::regex_replace(*topology, std::regex("64GiB"), "4GiB")).ok());
  const CommandResult result = RunCommand("geopipectl", PlanArgs("llama-2-13b.yaml", small));
  CHECK(result.exit_status.exit_code == 3);
  CHECK(result.out.empty());
  INFO(result.err);
  CHECK(result.err.find("pipeline rank 0 on site \"north\" needs") != std::string::npos);
  CHECK(result.err.find("of 2.00 GiB (4.00 GiB less a reserve of 2.00 GiB)") != std::string::npos);
  CHECK(result.err.find("would relax it") != std::string::npos);
}

TEST_CASE("a job that no plan fits ends as such in a run, too") {
  const TempFolder folder = TestFolder();
  const std::string topology = (folder.path() / "topology.yaml").string();
  const std::string device = "device: {memory: 64KiB, peak_flops: 1e12, memory_bandwidth: 100GB/s}}";
  REQUIRE(WriteFileAtomically(topology, "sites:\n  - {name: north, nodes: 1, devices_per_node: 1, " + device +
                                            "\n  - {name: east, nodes: 1, devices_per_node: 1, " + device +
                                            "\nlinks:\n  - {between: [north, east], latency: 1ms, bandwidth: 1Gbps}\n")
              .ok());
  const std::string job = ChangedJob(folder, "[north, east, west]", "[north, east]");
  CheckEnded(RunCommand("geopipectl", {"playground", "--job", job, "--topology", topology, "--backend", "modelled",
                                       "--output", folder.path().string()}),
             3, "error: job mini FAILED: no plan: ", {"pipeline rank ", "needs", "of 64.0 KiB"});
}

}  // namespace
}  // namespace geopipe
