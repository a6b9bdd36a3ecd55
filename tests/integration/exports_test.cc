// A command's output never takes the place of what it reads, and paths mean what people mean by them.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kThreeDevices = "devices: 3\nmicro_batches: 4\nforward_s: 0.01\nbackward_s: 0.02\n";

class Files : public CaseFolder {
 public:
  Files() {
    Write("case.yaml", kThreeDevices);
    fs::create_symlink("case.yaml", Path("link.yaml"));
    fs::create_hard_link(Path("case.yaml"), Path("hard.yaml"));
  }
  CommandResult Simulate(std::vector<std::string> more) const {
    more.insert(more.begin(), {"simulate", "-f", Path("case.yaml")});
    return RunCommand("geopipectl", more);
  }
};

TEST_CASE("an export is refused whose file is an input or another export") {
  const Files files;
  for (const char* flag : {"--export-csv", "--export-svg", "--export-trace"}) {
    for (const char* name : {"case.yaml", "link.yaml", "hard.yaml"}) {
      CAPTURE(flag, name);
      CheckEnded(files.Simulate({flag, files.Path(name)}), 2, "error: ", {flag, "-f", "would be lost"});
      CHECK(*ReadFile(files.Path("case.yaml"), 1000) == kThreeDevices);
    }
  }
  CheckEnded(files.Simulate({"--export-csv", files.Path("new"), "--export-svg", files.Path("new")}), 2,
             "error: ", {"--export-svg", "--export-csv", "written there too"});
  CHECK_FALSE(fs::exists(files.Path("new")));
}

TEST_CASE("an export to standard output takes the place of the report") {
  const Files files;
  const CommandResult csv =
      files.Simulate({"--schedule", "1f1b", "--export-csv", "-", "--export-svg", files.Path("x.svg")});
  CAPTURE(csv.err);
  CHECK(csv.exit_status.success());
  CHECK(csv.out.starts_with("0F0,"));
  CHECK(csv.out.find("iteration") == std::string::npos);
  CHECK(fs::exists(files.Path("x.svg")));
  CheckEnded(files.Simulate({"--export-csv", "-", "-o", "json"}), 2, "error: ", {"--format"});
  CheckEnded(files.Simulate({"--export-csv", "-", "--gantt"}), 2, "error: ", {"--gantt"});
  CheckEnded(files.Simulate({"--export-csv", "-", "--export-svg", "-"}), 2, "error: ", {"--export-svg"});
}

TEST_CASE("a path with ~ begins at the home of whoever types, and another's is refused") {
  const TempFolder home = TestFolder();
  const TempFolder elsewhere = TestFolder();
  REQUIRE(WriteFileAtomically(home.path() / "case.yaml", kThreeDevices).ok());
  const std::vector<std::pair<std::string, std::string>> environment{{"HOME", home.path().string()}};
  Command simulate("geopipectl", {"simulate", "-f", "~/case.yaml", "--export-csv=~/out.csv"}, environment);
  const CommandResult result = simulate.Finish(60'000'000'000);
  CAPTURE(result.err);
  CHECK(result.exit_status.success());
  CHECK(fs::exists(home.path() / "out.csv"));
  Command other("geopipectl", {"simulate", "-f", "~nobody/case.yaml"}, environment);
  CheckEnded(other.Finish(60'000'000'000), 2, "error: -f: '~nobody/case.yaml' begins with ~ and a name",
             {"whole path"});
}

TEST_CASE("paths of a job are whole, of this person, and no place of the system") {
  struct Row {
    std::string from, to;
    std::vector<std::string> words;
  };
  const std::vector<Row> rows{
      {"precision: fp32", "precision: fp32\n  checkpoint: {path: /}", {"checkpoint.path", "root of the file system"}},
      {"precision: fp32",
       "precision: fp32\n  checkpoint: {path: /x/..}",
       {"checkpoint.path", "root of the file system"}},
      {"precision: fp32", "precision: fp32\n  checkpoint: {path: /proc/self}", {"checkpoint.path", "keeps no files"}},
      {"precision: fp32", "precision: fp32\n  checkpoint: {path: /sys}", {"checkpoint.path", "keeps no files"}},
      {"precision: fp32", "precision: fp32\n  checkpoint: {path: /dev/sda}", {"checkpoint.path", "keeps no files"}},
      {"precision: fp32", "precision: fp32\n  checkpoint: {path: job.yaml}", {"checkpoint.path", "a file"}},
      {"precision: fp32", "precision: fp32\n  checkpoint: {path: ~nobody/x}", {"checkpoint.path", "begins with ~"}},
      {SourcePath("LICENSE"), "~nobody/x", {"data.path", "begins with ~"}},
      {"hidden_size: 32", "init_from: ~nobody/x\n    hidden_size: 32", {"init_from", "begins with ~"}},
  };
  for (const Row& row : rows) {
    const TempFolder folder = TestFolder();
    const std::string job = ChangedJob(folder, row.from, row.to);
    CAPTURE(row.to);
    CheckEnded(RunCommand("geopipectl", {"playground", "-f", job, "--output", folder.path().string()}), 2,
               "error: " + job + ":", row.words);
  }
}

TEST_CASE("a daemon takes no path that begins with ~") {
  CheckEnded(RunCommand("geopipe-coordinator", {"--state-dir", "~/x", "--listen", "127.0.0.1:0"}), 2,
             "geopipe-coordinator: '~/x' begins with ~", {"whole path"});
  std::vector<std::string> args = AgentArgs("127.0.0.1:1", "north", "~/x");
  CheckEnded(RunCommand("geopipe-agent", args), 2, "geopipe-agent: ", {"state_dir", "begins with ~"});
  CHECK_FALSE(fs::exists("~"));
}

TEST_CASE("a playground writes over nothing that it reads") {
  const TempFolder folder = TestFolder();
  const fs::path logs = folder.path() / "mini.playground" / "logs";
  fs::create_directories(logs);
  const std::string job = ChangedJob(folder, "kind", "kind");
  fs::copy_file(job, logs / "job.yaml");
  fs::copy_file(job, logs.parent_path() / "report.json");
  for (const fs::path& path : {logs / "job.yaml", logs.parent_path() / "report.json"}) {
    CAPTURE(path);
    CheckEnded(RunCommand("geopipectl", {"playground", "-f", path.string(), "--output", folder.path().string()}), 2,
               "error: ", {path.string()});
    CHECK(fs::exists(path));
  }
}

}  // namespace
}  // namespace geopipe
