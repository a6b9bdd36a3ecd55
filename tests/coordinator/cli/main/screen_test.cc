// People read everything on terminals of different widths: no line is wider than the terminal, and nothing is lost.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/wrap.h"
#include "tests/support/command.h"

namespace geopipe {
namespace {

const std::string kClusters = SourcePath("tests/golden/clusters");
const std::string kCases = SourcePath("tests/golden/cases");

std::string Output(const std::string& program, std::vector<std::string> args, int32_t columns) {
  setenv("COLUMNS", std::to_string(columns).c_str(), 1);
  const CommandResult result = RunCommand(program, std::move(args));
  unsetenv("COLUMNS");
  INFO(result.err);
  CHECK(result.exit_status.exit_code == 0);
  CHECK_FALSE(result.out.empty());
  return result.out;
}

void CheckWidth(const std::string& program, const std::vector<std::string>& args, int32_t columns) {
  std::istringstream lines(Output(program, args, columns));
  for (std::string line; std::getline(lines, line);) {
    INFO(args.front() << " at " << columns << ": " << line);
    CHECK(DisplayWidth(line) <= columns);
  }
}

TEST_CASE("nothing is wider than the terminal") {
  const int32_t columns = GENERATE(80, 100, 200);
  CAPTURE(columns);
  for (const char* verb : {"playground", "plan",       "simulate", "apply",     "get",     "describe",   "watch",
                           "profile",    "trace",      "cancel",   "pause",     "resume",  "checkpoint", "drain",
                           "uncordon",   "stop-stray", "backup",   "export-hf", "explain", "version"}) {
    CheckWidth("geopipectl", {verb, "--help"}, columns);
  }
  for (const char* program : {"geopipectl", "geopipe-agent", "geopipe-coordinator", "geopipe-worker"}) {
    CheckWidth(program, {"--help"}, columns);
  }
  for (const char* subject : {"job", "topology", "case", "profile", "agent", "coordinator", "search.max_delta_n",
                              "job.spec.search", "job.parallelism"}) {
    CheckWidth("geopipectl", {"explain", subject}, columns);
  }
  CheckWidth("geopipectl", {"simulate", "-f", kCases + "/three-sites-paper-shape.yaml"}, columns);
}

TEST_CASE("a plan and a sweep are as wide as the terminal, and name every site") {
  const int32_t columns = GENERATE(80, 100, 200);
  CAPTURE(columns);
  const std::vector<std::string> plan{"plan", "-f", kClusters + "/llama-2-70b-4mi.yaml", "--topology",
                                      kClusters + "/two-h100-sites.yaml"};
  CheckWidth("geopipectl", plan, columns);
  std::vector<std::string> sweep = plan;
  sweep.insert(sweep.end(), {"--sweep", "latency=5ms..20ms", "--steps", "2", "--sweep-schedules", "geopipe,1f1b"});
  CheckWidth("geopipectl", sweep, columns);
}

TEST_CASE("each site of a plan stands in its table of stages") {
  const std::string text = Output(
      "geopipectl",
      {"plan", "-f", kClusters + "/llama-2-70b-4mi.yaml", "--topology", kClusters + "/two-h100-sites.yaml"}, 100);
  const size_t begin = text.find("STAGE  SITE");
  REQUIRE(begin != std::string::npos);
  const std::string table = text.substr(begin, text.find("\n\n", begin) - begin);
  CHECK(table.find(" oslo ") != std::string::npos);
  CHECK(table.find(" dublin ") != std::string::npos);
}

TEST_CASE("explain says what one key means, or which one may have been meant") {
  const std::string text = Output("geopipectl", {"explain", "job.spec.search.max_delta_n"}, 80);
  CHECK(text.starts_with("spec.search.max_delta_n (job file)\n\nKEY "));
  CHECK(text == Output("geopipectl", {"explain", "search.max_delta_n"}, 80));
  CHECK(Output("geopipectl", {"explain", "job.parallelism"}, 80).find("\n  zero_stage") != std::string::npos);
  const std::string both = Output("geopipectl", {"explain", "network.bandwidth"}, 80);
  CHECK(both.find("(topology file)") != std::string::npos);
  CHECK(both.find("(agent file)") != std::string::npos);
  const CommandResult wrong = RunCommand("geopipectl", {"explain", "search.max_delta"});
  CHECK(wrong.exit_status.exit_code == 2);
  CHECK(wrong.err == "error: nothing to explain about 'search.max_delta'; did you mean search.max_delta_n?\n");
  CHECK(RunCommand("geopipectl", {"explain", "xyz"}).err.find("; give job, topology, case, ") != std::string::npos);
}

}  // namespace
}  // namespace geopipe
