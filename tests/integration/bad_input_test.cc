// Mistakes that people make, through the programs: one clear sentence and the right exit code each.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {
namespace {

TempFolder Folder() {
  absl::StatusOr<TempFolder> folder = TempFolder::Create("geopipe-test-");
  REQUIRE(folder.ok());
  return *std::move(folder);
}

// The small job with one line changed, written to `folder`.
std::string ChangedJob(const TempFolder& folder, const std::string& from, const std::string& to) {
  const absl::StatusOr<std::string> text = ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
  REQUIRE(text.ok());
  std::string job = *text;
  const std::string relative = "../../../LICENSE";
  job.replace(job.find(relative), relative.size(), SourcePath("LICENSE"));
  REQUIRE(job.find(from) != std::string::npos);
  job.replace(job.find(from), from.size(), to);
  const std::string path = (folder.path() / "job.yaml").string();
  REQUIRE(WriteFileAtomically(path, job).ok());
  return path;
}

void CheckRefused(const std::vector<std::string>& args, int exit_code, const std::vector<std::string>& words) {
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.out);
  INFO(result.err);
  CHECK(result.exit_status.exit_code == exit_code);
  CHECK(result.err.starts_with("error: "));
  for (const std::string& word : words) {
    INFO("expected: " << word);
    CHECK(result.err.find(word) != std::string::npos);
  }
}

std::vector<std::string> Playground(const TempFolder& folder, const std::string& job) {
  return {"playground", "--job", job, "--output", folder.path().string(), "--iterations", "2"};
}

TEST_CASE("a coordinator that is not there is unreachable") {
  const std::vector<std::string> server{"--server", "127.0.0.1:1", "--timeout", "2s"};
  for (std::vector<std::string> args : {std::vector<std::string>{"get", "jobs"}, {"describe", "x"}, {"cancel", "x"}}) {
    args.insert(args.end(), server.begin(), server.end());
    CheckRefused(args, 4, {"no answer from a coordinator at 127.0.0.1:1", "--server"});
  }
}

TEST_CASE("unknown and duplicate keys are named with file, line and column") {
  const TempFolder folder = Folder();
  const std::string unknown = ChangedJob(folder, "grad_clip: 1.0", "grad_clipp: 1.0");
  CheckRefused(Playground(folder, unknown), 2, {"job.yaml:24:5", "grad_clipp", "grad_clip"});
  const std::string twice = ChangedJob(folder, "grad_clip: 1.0", "iterations: 3");
  CheckRefused(Playground(folder, twice), 2, {"job.yaml:24:5", "iterations"});
}

TEST_CASE("tokens that do not divide into micro-batches are refused") {
  const TempFolder folder = Folder();
  const std::string job = ChangedJob(folder, "tokens_per_iteration: 512", "tokens_per_iteration: 500");
  CheckRefused(Playground(folder, job), 2, {"tokens_per_iteration", "500"});
}

TEST_CASE("a missing data file fails the job in one sentence") {
  const TempFolder folder = Folder();
  const std::string job = ChangedJob(folder, SourcePath("LICENSE"), "/nowhere/at-all.txt");
  CheckRefused(Playground(folder, job), 1, {"FAILED", "/nowhere/at-all.txt"});
}

TEST_CASE("weights that cannot be read are refused: truncated file, missing tensor, wrong shape") {
  const TempFolder folder = Folder();
  const std::string golden = SourcePath("tests/golden/engine/untied");
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(golden + "/" + name, folder.path() / name);
  }
  std::filesystem::resize_file(folder.path() / "model.safetensors",
                               std::filesystem::file_size(folder.path() / "model.safetensors") - 100);
  const absl::StatusOr<std::string> text = ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
  REQUIRE(text.ok());
  std::string job = *text;
  const size_t begin = job.find("    hidden_size");
  const size_t end = job.find("  data:");
  job.replace(begin, end - begin, "    init_from: " + folder.path().string() + "\n");
  job.replace(job.find("../../../LICENSE"), 16, SourcePath("LICENSE"));
  const std::string path = (folder.path() / "job.yaml").string();
  REQUIRE(WriteFileAtomically(path, job).ok());
  CheckRefused(Playground(folder, path), 1, {"FAILED", "model.safetensors", "truncated"});
}

TEST_CASE("a port in use is one sentence") {
  const TempFolder folder = Folder();
  const std::string state = (folder.path() / "a").string();
  Command first("geopipe-coordinator", {"--listen", "127.0.0.1:0", "--state-dir", state});
  std::string endpoint;
  while (endpoint.empty()) {
    REQUIRE_FALSE(first.process().Wait(20'000'000).has_value());
    const std::string log = first.err();
    const size_t at = log.find("127.0.0.1:");
    const size_t stop = at == std::string::npos ? at : log.find_first_not_of("0123456789", at + 10);
    if (stop != std::string::npos) {
      endpoint = log.substr(at, stop - at);
    }
  }
  const CommandResult second =
      RunCommand("geopipe-coordinator", {"--listen", endpoint, "--state-dir", (folder.path() / "b").string()});
  INFO(second.err);
  CHECK(second.exit_status.exit_code == 1);
  CHECK(second.err.find(endpoint) != std::string::npos);
  CHECK(second.err.find("in use") != std::string::npos);
}

TEST_CASE("words that are not verbs, flags or choices are bad input") {
  CheckRefused({"plam"}, 2, {"plam", "did you mean plan"});
  CheckRefused({"plan", "--topologi", "x"}, 2, {"--topologi", "--topology"});
  CheckRefused({"plan"}, 2, {"-f JOB.yaml"});
  CheckRefused({"plan", "-f", "/nowhere/job.yaml", "--topology", "x"}, 2, {"/nowhere/job.yaml"});
  CheckRefused({"simulate", "-f", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "--delta-n", "1,2,3"}, 2,
               {"3 numbers", "1 crossings"});
}

}  // namespace
}  // namespace geopipe
