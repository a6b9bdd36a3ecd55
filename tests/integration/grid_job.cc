#include "tests/integration/grid_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

Json Trained(const TempFolder& folder, const std::string& job, const std::string& topology,
             const std::vector<std::string>& flags) {
  std::vector<std::string> args{"playground",           "--job", job,   "--topology", topology, "--output",
                                folder.path().string(), "-o",    "json"};
  args.insert(args.end(), flags.begin(), flags.end());
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  return Json::parse(result.out);
}

}  // namespace

std::string GridJobText(const GridJob& job) {
  return fmt::format(
      "apiVersion: geopipe/v1\n"
      "kind: TrainingJob\n"
      "metadata: {{name: {}}}\n"
      "spec:\n"
      "  model: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 6, num_attention_heads: 4,\n"
      "    num_key_value_heads: 2, vocab_size: 260, max_position_embeddings: 32}}\n"
      "  data: {{format: text, path: [{}/LICENSE], tokenizer: byte}}\n"
      "  training: {{iterations: {}, tokens_per_iteration: {}, learning_rate: 5.0e-3,\n"
      "    warmup_iterations: 4, grad_clip: 1.0}}\n"
      "  precision: fp32\n"
      "  parallelism: {{{}}}\n"
      "  search: {{micro_batch_size: [2], sequence_length: [32], schedule: {}}}\n"
      "  placement: {{sites: [{}]}}\n{}",
      job.name, GEOPIPE_SOURCE_DIR, job.iterations, job.tokens_per_iteration, job.parallelism, job.schedule, job.sites,
      job.more);
}

std::string WriteGridJob(const TempFolder& folder, const GridJob& job) {
  return Written(folder, job.name, GridJobText(job));
}

std::string WriteGridSites(const TempFolder& folder, const std::string& name, const std::vector<GridSite>& sites) {
  std::string text = "sites:\n";
  std::string links;
  for (size_t i = 0; i < sites.size(); ++i) {
    text += fmt::format(
        "- {{name: {}, nodes: {}, devices_per_node: {}, network: {{bandwidth: 10Gbps, latency: 20us}},\n"
        "   device: {{kind: rehearsed, memory: {}, peak_flops: 20e9, memory_bandwidth: 10GB/s,\n"
        "     intra_node_bandwidth: 200MB/s}}}}\n",
        sites[i].name, sites[i].nodes, sites[i].devices_per_node, sites[i].memory);
    for (size_t other = 0; other < i; ++other) {
      links +=
          fmt::format("- {{between: [{}, {}], latency: 2ms, bandwidth: 1Gbps}}\n", sites[other].name, sites[i].name);
    }
  }
  return Written(folder, name, links.empty() ? text : text + "links:\n" + links);
}

Json TrainGridJob(const TempFolder& folder, const std::string& job, const std::string& topology, int64_t iterations,
                  const std::vector<std::string>& more) {
  std::vector<std::string> flags{"--iterations", fmt::format("{}", iterations)};
  flags.insert(flags.end(), more.begin(), more.end());
  return Trained(folder, job, topology, flags);
}

Json TrainOnSites(const TempFolder& folder, const std::string& spec, const std::vector<GridSite>& sites) {
  std::vector<std::string> names;
  for (const GridSite& site : sites) {
    names.push_back(site.name);
  }
  const std::string job =
      Written(folder, "job",
              fmt::format("apiVersion: geopipe/v1\nkind: TrainingJob\nmetadata: {{name: grid}}\nspec:\n{}"
                          "  placement: {{sites: [{}]}}\n",
                          spec, fmt::join(names, ", ")));
  INFO(spec);
  return Trained(folder, job, WriteGridSites(folder, "topology", sites), {});
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
