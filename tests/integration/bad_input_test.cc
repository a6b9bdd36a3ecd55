// Mistakes that people make, through the programs: one clear sentence and the right exit code each.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

void CheckRefused(const std::vector<std::string>& args, int exit_code, const std::vector<std::string>& words) {
  CheckEnded(RunCommand("geopipectl", args), exit_code, "error: ", words);
}

std::vector<std::string> PlaygroundCommand(const TempFolder& folder, const std::string& job) {
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
  const TempFolder folder = TestFolder();
  const std::string unknown = ChangedJob(folder, "grad_clip: 1.0", "grad_clipp: 1.0");
  CheckRefused(PlaygroundCommand(folder, unknown), 2, {"job.yaml:24:5", "grad_clipp", "grad_clip"});
  const std::string twice = ChangedJob(folder, "grad_clip: 1.0", "iterations: 3");
  CheckRefused(PlaygroundCommand(folder, twice), 2, {"job.yaml:24:5", "iterations"});
}

TEST_CASE("tokens that do not divide into micro-batches are refused") {
  const TempFolder folder = TestFolder();
  const std::string job = ChangedJob(folder, "tokens_per_iteration: 512", "tokens_per_iteration: 500");
  CheckRefused(PlaygroundCommand(folder, job), 2, {"tokens_per_iteration", "500"});
}

TEST_CASE("degrees that do not divide the model or its tokens are refused where they stand") {
  const TempFolder folder = TestFolder();
  struct Case {
    std::string parallelism;
    std::string words;
  };
  const Case cases[] = {
      {"tensor: 3", "spec.parallelism.tensor: is 3; it must be a divisor of model.num_attention_heads 4"},
      {"tensor: 4",
       "spec.parallelism.tensor: is 4; it must be a divisor of model.vocab_size 258; or pad the vocabulary, "
       "model.padded_vocab_size: 260"},
      {"data: 3",
       "spec.training.tokens_per_iteration: 512 is not a multiple of micro_batch_size x sequence_length x data"},
      {"sequence_parallel: true", "spec.parallelism.sequence_parallel: is true"},
  };
  const std::string topology = SourcePath("deploy/examples/two-sites.yaml");
  for (const auto& [parallelism, words] : cases) {
    INFO(parallelism);
    const std::string job =
        ChangedJob(folder, "precision: fp32", fmt::format("precision: fp32\n  parallelism: {{{}}}", parallelism));
    CheckRefused(PlaygroundCommand(folder, job), 2, {"job.yaml:", words});
    CheckRefused({"apply", "-f", job}, 2, {"job.yaml:", words});
  }
}

TEST_CASE("more ranks than devices are refused where they stand") {
  const TempFolder folder = TestFolder();
  const std::string topology = (folder.path() / "topology.yaml").string();
  REQUIRE(WriteFileAtomically(topology,
                              "sites:\n  - {name: north, nodes: 1, devices_per_node: 2, device: {memory: 1GiB, "
                              "peak_flops: 1e12, memory_bandwidth: 10GB/s, intra_node_bandwidth: 1GB/s}}\n")
              .ok());
  const std::string text = ChangedJob(folder, "[north, east, west]", "[north]");
  const absl::StatusOr<std::string> job = ReadFile(text, 1 << 20);
  REQUIRE(job.ok());
  struct Case {
    std::string parallelism;
    std::string words;
  };
  const Case cases[] = {
      {"tensor: 2, data: 2",
       "parallelism.data: is 2; without a network between its nodes the replicas of a stage share one node, 4 devices "
       "with tensor 2, and a node of site \"north\" has 2; lower it, or give the site's network in the topology"},
      {"tensor: 2, pipeline: 2", "parallelism.pipeline: is 2, but the "},
  };
  for (const auto& [parallelism, words] : cases) {
    INFO(parallelism);
    REQUIRE(WriteFileAtomically(text, fmt::format("{}  parallelism: {{{}}}\n", *job, parallelism)).ok());
    CheckRefused({"plan", "-f", text, "--topology", topology}, 2, {"job.yaml:30:", words});
    CheckRefused(
        {"playground", "--job", text, "--topology", topology, "--output", folder.path().string(), "--iterations", "2"},
        2, {"job.yaml:30:", words});
  }
}

TEST_CASE("ZeRO 3 with many micro-batches is done, with a warning of what it costs") {
  const TempFolder folder = TestFolder();
  const std::string topology = (folder.path() / "topology.yaml").string();
  REQUIRE(WriteFileAtomically(topology,
                              "sites:\n  - {name: north, nodes: 1, devices_per_node: 2, device: {memory: 1GiB, "
                              "peak_flops: 1e12, memory_bandwidth: 10GB/s, intra_node_bandwidth: 1GB/s}}\n")
              .ok());
  const std::string path = ChangedJob(folder, "[north, east, west]", "[north]");
  const absl::StatusOr<std::string> job = ReadFile(path, 1 << 20);
  REQUIRE(job.ok());
  REQUIRE(WriteFileAtomically(path, *job + "  parallelism: {data: 2, zero_stage: 3}\n").ok());
  const CommandResult plan = RunCommand("geopipectl", {"plan", "-f", path, "--topology", topology});
  INFO(plan.err);
  CHECK(plan.exit_status.success());
  CHECK(plan.out.find("warning       parallelism.zero_stage is 3 with 4 micro-batches: every forward and backward "
                      "gathers the weights anew, ") != std::string::npos);
  CHECK(plan.out.find(" and with ZeRO 1 ") != std::string::npos);
  const CommandResult applied = RunCommand("geopipectl", {"apply", "-f", path, "--server", "127.0.0.1:1"});
  CHECK(applied.err.find("warning: parallelism.zero_stage is 3 with at least 4 micro-batches: ") == 0);
}

TEST_CASE("a missing data file fails the job in one sentence") {
  const TempFolder folder = TestFolder();
  const std::string job = ChangedJob(folder, SourcePath("LICENSE"), "/nowhere/at-all.txt");
  CheckRefused(PlaygroundCommand(folder, job), 1, {"FAILED", "/nowhere/at-all.txt"});
}

// A copy of the golden Hugging Face directory in `folder`, with one text of its config.json replaced.
void CopyModel(const TempFolder& folder, const std::string& from, const std::string& to) {
  const std::filesystem::path golden = SourcePath("tests/golden/engine/untied");
  std::filesystem::copy_file(golden / "model.safetensors", folder.path() / "model.safetensors");
  const absl::StatusOr<std::string> config = ReadFile(golden / "config.json", 1 << 20);
  REQUIRE(config.ok());
  std::string changed = *config;
  REQUIRE(changed.find(from) != std::string::npos);
  changed.replace(changed.find(from), from.size(), to);
  REQUIRE(WriteFileAtomically(folder.path() / "config.json", changed).ok());
}

// The small job with the model of `folder`.
std::string ImportingJob(const TempFolder& folder) {
  std::string path = ChangedJob(folder, "precision: fp32", "precision: fp32");
  const absl::StatusOr<std::string> text = ReadFile(path, 1 << 20);
  REQUIRE(text.ok());
  const size_t model = text->find("    hidden_size");
  const size_t data = text->find("  data:");
  const size_t training = text->find("  training:");
  const std::string job = fmt::format("{}    init_from: {}\n  data: {{format: tokens, path: {}, dtype: uint16}}\n{}",
                                      text->substr(0, model), folder.path().string(),
                                      SourcePath("tests/golden/engine/tokens.u16"), text->substr(training));
  REQUIRE(data < training);
  REQUIRE(WriteFileAtomically(path, job).ok());
  return path;
}

TEST_CASE("a truncated weight file is named") {
  const TempFolder folder = TestFolder();
  CopyModel(folder, "{", "{");
  const std::filesystem::path weights = folder.path() / "model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 100);
  CheckRefused(PlaygroundCommand(folder, ImportingJob(folder)), 2,
               {"job.yaml:", "spec.model.init_from: ", "model.safetensors", "truncated"});
}

TEST_CASE("a missing tensor is named") {
  const TempFolder folder = TestFolder();
  CopyModel(folder, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
  CheckRefused(PlaygroundCommand(folder, ImportingJob(folder)), 2,
               {"job.yaml:", "spec.model.init_from: ", "tensor model.layers.3.", "is missing"});
}

TEST_CASE("a tensor of the wrong shape is named with both shapes") {
  const TempFolder folder = TestFolder();
  CopyModel(folder, "\"intermediate_size\": 112", "\"intermediate_size\": 111");
  CheckRefused(PlaygroundCommand(folder, ImportingJob(folder)), 2, {"spec.model.init_from: ", "mlp.", "111", "112"});
}

TEST_CASE("a weight that is not a number is named, with its file, before anything is trained") {
  const TempFolder folder = TestFolder();
  CopyModel(folder, "{", "{");
  const std::filesystem::path path = folder.path() / "model.safetensors";
  absl::StatusOr<std::string> weights = ReadFile(path, 1 << 20);
  REQUIRE(weights.ok());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, weights->data(), sizeof(header_bytes));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(weights->data() + sizeof(header_bytes) + header_bytes + 5 * sizeof(float), &nan, sizeof(nan));
  REQUIRE(WriteFileAtomically(path, *weights).ok());
  CheckRefused(PlaygroundCommand(folder, ImportingJob(folder)), 1,
               {"FAILED: worker ", "tensor model.embed_tokens.weight of " + folder.path().string(),
                "has nan at element 5; restore the file"});
}

TEST_CASE("text that a terminal would obey, and text without end, are not printed") {
  const TempFolder folder = TestFolder();
  const std::filesystem::path csv = folder.path() / "schedule.csv";
  REQUIRE(WriteFileAtomically(csv, "\x1b[31m\xff" + std::string(5000, 'x')).ok());
  const std::string schedule = SourcePath("tests/golden/cases/two-sites-20ms.yaml");
  const CommandResult garbage = RunCommand("geopipectl", {"simulate", "-f", schedule, "--schedule-csv", csv.string()});
  CHECK(garbage.exit_status.exit_code == 2);
  CHECK(garbage.err.find("?[31m?xxx") != std::string::npos);
  CHECK(garbage.err.find('\x1b') == std::string::npos);
  CHECK(garbage.err.size() < 500);
  const std::filesystem::path deep = folder.path() / "deep.yaml";
  REQUIRE(WriteFileAtomically(deep, "a: " + std::string(50'000, '[')).ok());
  CheckRefused({"plan", "-f", deep.string(), "--topology", "x"}, 2, {"deep.yaml:1:", "nested deeper than"});
}

TEST_CASE("a job comes from standard input, and output that is lost is an error") {
  const std::string plan = SourcePath("deploy/examples/llama-2-13b.yaml");
  const std::string topology = SourcePath("deploy/examples/three-regions.yaml");
  const auto shell = [&](const std::string& tail) {
    return RunCommand(
        "/bin/sh", {"-c", fmt::format("{} plan --topology {} {}", std::string(GEOPIPE_BINARY_DIR) + "/bin/geopipectl",
                                      topology, tail)});
  };
  CHECK(shell("-f - < " + plan).out.find("plan          made to measure") == 0);
  for (const std::string format : {"table", "json"}) {
    const CommandResult lost = shell(fmt::format("-f {} -o {} > /dev/full", plan, format));
    CHECK(lost.exit_status.exit_code == 1);
    CHECK(lost.err == "error: cannot write to standard output: No space left on device\n");
  }
}

TEST_CASE("of a file of several jobs one that is refused is said, and holds up none after it") {
  const TempFolder folder = TestFolder();
  const RunningCoordinator coordinator((folder.path() / "state").string());
  const std::string one = *ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
  const auto file_of = [&](const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) {
      std::string job = one;
      job.replace(job.find("name: mini"), 10, "name: " + name);
      all += "---\n" + job;
    }
    const std::string path = (folder.path() / "jobs.yaml").string();
    REQUIRE(WriteFileAtomically(path, all).ok());
    return path;
  };
  // A file with an error submits nothing.
  CheckEnded(coordinator.Ask({"apply", "-f", file_of({"first", "second", "first"})}), 2,
             "error: " + (folder.path() / "jobs.yaml").string() + ":", {"a job named first is in line 1 already"});
  CHECK(coordinator.Ask({"get", "jobs"}).out == "no jobs\n");

  const CommandResult all = coordinator.Ask({"apply", "-f", file_of({"first", "second"})});
  CHECK(all.exit_status.success());
  CHECK(all.out ==
        "job first PENDING\njob second PENDING\n2 jobs submitted; list them with: geopipectl get jobs --server " +
            coordinator.endpoint() + "\n");
  const CommandResult more = coordinator.Ask({"apply", "-f", file_of({"third", "second", "fourth"}), "-o", "json"});
  CheckEnded(more, 1, "error: job second is PENDING; cancel it first", {"\nerror: 1 of 3 jobs were refused\n"});
  CHECK(nlohmann::json::parse(more.out) == nlohmann::json::parse(R"([{"name": "third", "state": "PENDING"},
                                                                      {"name": "fourth", "state": "PENDING"}])"));
}

TEST_CASE("help and version are where people look for them") {
  CHECK(RunCommand("geopipectl", {"--version"}).out.find("geopipectl ") == 0);
  CHECK(RunCommand("geopipectl", {"help", "plan"}).out == RunCommand("geopipectl", {"plan", "--help"}).out);
  CheckRefused({"help", "plam"}, 2, {"plam", "did you mean plan"});
}

TEST_CASE("a port in use is one sentence") {
  const TempFolder folder = TestFolder();
  const RunningCoordinator first((folder.path() / "a").string());
  CheckEnded(
      RunCommand("geopipe-coordinator", {"--listen", first.endpoint(), "--state-dir", (folder.path() / "b").string()}),
      1, "geopipe-coordinator: ", {first.endpoint(), "in use"});
}

TEST_CASE("words that are not verbs, flags or choices are bad input") {
  CheckRefused({"plam"}, 2, {"plam", "did you mean plan"});
  CheckRefused({"paln"}, 2, {"paln", "did you mean plan"});
  CheckRefused({"plan", "--topologi", "x"}, 2, {"--topologi", "--topology"});
  CheckRefused({"plan"}, 2, {"-f JOB.yaml"});
  CheckRefused({"plan", "-f", "/nowhere/job.yaml", "--topology", "x"}, 2, {"/nowhere/job.yaml"});
  CheckRefused({"simulate", "-f", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "--delta-n", "1,2,3"}, 2,
               {"3 numbers", "1 crossings"});
  const std::string job = SourcePath("deploy/examples/tiny.yaml");
  CheckRefused({"playground", "--job", job, "--schedule", "zb-h1", "--delta-n", "1"}, 2,
               {"--delta-n belongs to geopipe"});
}

}  // namespace
}  // namespace geopipe
