// A schedule in a file, as PyTorch writes it: simulated, planned with and trained with, or refused by its cell.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// A small job of 8 micro-batches (tests/golden/jobs/mini.yaml), a topology and a schedule.
class Folder : public CaseFolder {
 public:
  Folder() {
    ChangedJob(folder(), "metadata:", "metadata:");  // as it is
    Write("topology.yaml", kThreeSites);
    Write("s.csv", FoldedCsv());
  }

  CommandResult Plan(std::vector<std::string> more) const {
    more.insert(more.begin(), {"plan", "-f", Path("job.yaml"), "--topology", Path("topology.yaml")});
    return RunCommand("geopipectl", more);
  }
  CommandResult Playground(std::vector<std::string> more) const {
    more.insert(more.begin(), {"playground", "-f", Path("job.yaml"), "--iterations", "4", "--output", Path("out"),
                               "--sites", "3", "--link", "latency=2ms,bandwidth=1Gbps"});
    return RunCommand("geopipectl", more);
  }

 private:
  // Six stages on three ranks, there and back, with overlaps and what FSDP adds: all forwards of a micro-batch, then
  // its backwards beside the next one's forwards.
  static std::string FoldedCsv() {
    std::string csv;
    for (int rank = 0; rank < 3; ++rank) {
      const int near = rank;
      const int far = 5 - rank;
      csv += fmt::format("{}UNSHARD,{}UNSHARD,{}F0,{}F0", near, far, near, far);
      for (int m = 0; m < 8; ++m) {
        csv += m < 7 ? fmt::format(",({}F{};{}F{};{}B{})OVERLAP_F_B,{}B{}", near, m + 1, far, m + 1, far, m, near, m)
                     : fmt::format(",{}B{},{}B{},{}REDUCE_GRAD", far, m, near, m, near);
      }
      csv += "\r\n";
    }
    return csv;
  }
};

std::string Numbers(const Json& report) {
  REQUIRE(report["iterations"].size() == 4);
  std::string text;
  for (const Json& iteration : report["iterations"]) {
    text += fmt::format("{} {}\n", iteration["loss"].dump(), iteration["grad_norm"].dump());
  }
  return text;
}

TEST_CASE("a schedule of PyTorch's is planned with and trained with, to the same bits as any other") {
  const Folder folder;
  const CommandResult plan = folder.Plan({"--schedule-csv", folder.Path("s.csv"), "-o", "json"});
  CAPTURE(plan.err);
  REQUIRE(plan.exit_status.success());
  CHECK_THAT(plan.err, Catch::Contains("s.csv: 6 UNSHARD, 3 REDUCE_GRAD passed over") &&
                           Catch::Contains("21 OVERLAP_F_B read as their actions in order"));
  const Json planned = Json::parse(plan.out)["plan"];
  CHECK(planned["schedule"] == "csv");
  CHECK(planned["micro_batches"] == 8);
  REQUIRE(planned["stages"].size() == 6);
  CHECK(planned["stages"][5]["pipeline_rank"] == 0);

  const CommandResult given = folder.Playground({"--schedule-csv", folder.Path("s.csv"), "-o", "json"});
  CAPTURE(given.err);
  REQUIRE(given.exit_status.success());
  const CommandResult named = folder.Playground({"--schedule", "1f1b", "-o", "json"});
  CAPTURE(named.err);
  REQUIRE(named.exit_status.success());
  const Json report = Json::parse(given.out);
  CHECK(report["plan"]["schedule"] == "csv");
  CHECK(report["plan"]["stages"].size() == 6);
  CHECK(Numbers(report) == Numbers(Json::parse(named.out)));
}

TEST_CASE("what stands beside a given schedule and says otherwise is refused") {
  const Folder folder;
  struct Row {
    std::vector<std::string> args;
    std::vector<std::string> words;
  };
  const std::string csv = folder.Path("s.csv");
  const std::string job = folder.Path("job.yaml");
  const std::string topology = folder.Path("topology.yaml");
  const std::string sim = SourcePath("tests/golden/cases/uneven-stages.yaml");
  const std::vector<Row> rows{
      {{"simulate", "-f", sim, "--schedule-csv", csv, "--schedule", "geopipe"}, {"--schedule", "--schedule-csv"}},
      {{"simulate", "-f", sim, "--schedule-csv", csv, "--delta-n", "3"}, {"--delta-n", "--schedule-csv"}},
      {{"plan", "-f", job, "--topology", topology, "--schedule-csv", csv, "--sweep", "latency=1ms..2ms"},
       {"--schedule-csv", "--sweep"}},
      {{"playground", "-f", job, "--schedule-csv", csv, "--schedule", "1f1b"}, {"--schedule", "--schedule-csv"}},
      {{"playground", "-f", job, "--schedule-csv", csv, "--delta-n", "1"}, {"--delta-n", "--schedule-csv"}},
      {{"playground", "-f", job, "--schedule-csv", csv, "--compare", "1f1b,geopipe"}, {"--compare", "--schedule-csv"}},
      {{"apply", "-f", job, "--schedule-csv", csv, "--schedule", "1f1b"}, {"--schedule", "--schedule-csv"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.args);
    CheckEnded(RunCommand("geopipectl", row.args), 2, "", row.words);
  }
}

TEST_CASE("a job that says otherwise than its given schedule is refused by its key") {
  const Folder folder;
  const auto [change, words] = GENERATE(table<std::string, std::string>({
      {"precision: fp32\n  parallelism: {pipeline: 2}", "parallelism.pipeline"},
      {"precision: fp32\n  parallelism: {stages_per_rank: 3}", "parallelism.stages_per_rank"},
  }));
  std::string text = *ReadFile(folder.Path("job.yaml"), 1 << 20);
  text.replace(text.find("precision: fp32"), std::string("precision: fp32").size(), change);
  folder.Write("job.yaml", text);
  CAPTURE(change);
  CheckEnded(folder.Plan({"--schedule-csv", folder.Path("s.csv")}), 2, "",
             {"error: " + folder.Path("job.yaml") + ":", words, "the schedule has"});
  CheckEnded(folder.Playground({"--schedule-csv", folder.Path("s.csv")}), 2, "",
             {"error: " + folder.Path("job.yaml") + ":", words});
}

TEST_CASE("a file that is no schedule is refused by its cell, by every verb that takes one") {
  const Folder folder;
  folder.Write("bad.csv", "0F0,0B0\n1F0,1Q0\n");
  const std::string bad = folder.Path("bad.csv");
  const std::string begin = "error: " + bad + ": schedule CSV, row 2, cell 2: '1Q0' is not an action";
  CheckEnded(folder.Plan({"--schedule-csv", bad}), 2, begin, {});
  CheckEnded(folder.Playground({"--schedule-csv", bad}), 2, begin, {});
  CheckEnded(RunCommand("geopipectl", {"apply", "-f", folder.Path("job.yaml"), "--schedule-csv", bad}), 2, begin, {});
  CheckEnded(folder.Plan({"--schedule-csv", folder.Path("none.csv")}), 2, "error: cannot read ", {"none.csv"});
}

}  // namespace
}  // namespace geopipe
