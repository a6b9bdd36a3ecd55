#include "tests/integration/grid_job.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr double kLossTolerance = 2e-5;

std::string Written(const TempFolder& folder, const std::string& name, const std::string& text) {
  const std::string path = (folder.path() / (name + ".yaml")).string();
  REQUIRE(WriteFileAtomically(path, text).ok());
  return path;
}

}  // namespace

std::string WriteGridJob(const TempFolder& folder, const GridJob& job) {
  return Written(
      folder, job.name,
      fmt::format("apiVersion: geopipe/v1\n"
                  "kind: TrainingJob\n"
                  "metadata: {{name: {}}}\n"
                  "spec:\n"
                  "  model: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 6, num_attention_heads: 4,\n"
                  "    num_key_value_heads: 2, vocab_size: 260, max_position_embeddings: 32}}\n"
                  "  data: {{format: text, path: [{}/LICENSE], tokenizer: byte}}\n"
                  "  training: {{iterations: 20, tokens_per_iteration: 512, learning_rate: 5.0e-3,\n"
                  "    warmup_iterations: 4, grad_clip: 1.0}}\n"
                  "  precision: fp32\n"
                  "  parallelism: {{{}}}\n"
                  "  search: {{micro_batch_size: [2], sequence_length: [32]}}\n"
                  "  placement: {{sites: [{}]}}\n{}",
                  job.name, GEOPIPE_SOURCE_DIR, job.parallelism, job.sites, job.more));
}

std::string WriteGridSites(const TempFolder& folder, const std::string& name, const std::vector<GridSite>& sites) {
  std::string text = "sites:\n";
  std::string links;
  for (size_t i = 0; i < sites.size(); ++i) {
    text += fmt::format(
        "- {{name: {}, nodes: {}, devices_per_node: {}, network: {{bandwidth: 10Gbps, latency: 20us}},\n"
        "   device: {{kind: rehearsed, memory: 1GiB, peak_flops: 20e9, memory_bandwidth: 10GB/s,\n"
        "     intra_node_bandwidth: 200MB/s}}}}\n",
        sites[i].name, sites[i].nodes, sites[i].devices_per_node);
    for (size_t other = 0; other < i; ++other) {
      links +=
          fmt::format("- {{between: [{}, {}], latency: 2ms, bandwidth: 1Gbps}}\n", sites[other].name, sites[i].name);
    }
  }
  return Written(folder, name, links.empty() ? text : text + "links:\n" + links);
}

Json TrainGridJob(const TempFolder& folder, const std::string& job, const std::string& topology, int64_t iterations,
                  const std::vector<std::string>& more) {
  std::vector<std::string> args{"playground",
                                "--job",
                                job,
                                "--topology",
                                topology,
                                "--iterations",
                                fmt::format("{}", iterations),
                                "--output",
                                folder.path().string(),
                                "-o",
                                "json"};
  args.insert(args.end(), more.begin(), more.end());
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  return Json::parse(result.out);
}

std::string GridNumbers(const Json& report) {
  std::string text;
  for (const Json& iteration : report["iterations"]) {
    text += fmt::format("{} {}\n", iteration["loss"].dump(), iteration["grad_norm"].dump());
  }
  return text;
}

std::vector<double> GridLosses(const Json& report) {
  std::vector<double> losses;
  for (const Json& iteration : report["iterations"]) {
    losses.push_back(iteration["loss"].get<double>());
  }
  return losses;
}

void CheckSameLosses(const Json& report, const std::vector<double>& expected) {
  const std::vector<double> losses = GridLosses(report);
  REQUIRE(losses.size() == expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    INFO("iteration " << i);
    CHECK(losses[i] == Approx(expected[i]).epsilon(kLossTolerance));
  }
}

}  // namespace geopipe
