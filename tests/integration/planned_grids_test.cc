// Runs what the planner may choose: small jobs whose plans are uneven, replicated over nodes, on sites of unequal size
// or short of memory, with real programs. Each trains, and no rank takes more memory than its plan says.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr size_t kIterations = 8;

struct SmallJob {
  int layers = 5;
  std::string precision = "bf16";
  std::string parallelism;
  std::string schedule = "auto";
  int hidden = 32;
  int micro_batch = 1;
};

std::string SpecOf(const SmallJob& job) {
  return fmt::format(
      "  model: {{hidden_size: {}, intermediate_size: {}, num_hidden_layers: {}, num_attention_heads: 4,\n"
      "    num_key_value_heads: 2, vocab_size: 258, max_position_embeddings: 32}}\n"
      "  data: {{format: text, path: [{}], tokenizer: byte}}\n"
      "  training: {{iterations: {}, tokens_per_iteration: 1024, learning_rate: 5.0e-3, warmup_iterations: 2}}\n"
      "  precision: {}\n"
      "  parallelism: {{{}}}\n"
      "  search: {{micro_batch_size: [{}], sequence_length: [32], schedule: {}}}\n",
      job.hidden, 2 * job.hidden, job.layers, SourcePath("LICENSE"), kIterations, job.precision, job.parallelism,
      job.micro_batch, job.schedule);
}

// The job learns, and every rank has reported no more memory than planned.
void CheckTrained(const Json& report) {
  REQUIRE(report["iterations"].size() == kIterations);
  const double first = report["iterations"][0]["loss"];
  const double last = report["iterations"][kIterations - 1]["loss"];
  CHECK(last < 0.9 * first);
  const Json& plan = report["plan"];
  std::set<int> pipeline_ranks;
  for (const Json& stage : plan["stages"]) {
    pipeline_ranks.insert(stage["pipeline_rank"].get<int>());
  }
  REQUIRE(report["memory"].size() == pipeline_ranks.size());
  for (const Json& rank : report["memory"]) {
    INFO(rank.dump());
    CHECK(rank["exceeded"] == Json::array());
    CHECK(rank["measured"].size() == plan["tensor"].get<size_t>() * plan["data"].get<size_t>());
  }
}

Json Train(const SmallJob& job, const std::vector<GridSite>& sites) {
  const TempFolder folder = TestFolder();
  Json report = TrainOnSites(folder, SpecOf(job), sites);
  INFO(report["plan"].dump());
  CheckTrained(report);
  return report;
}

// Number of layers of each stage, in order.
std::vector<int> LayersOf(const Json& report) {
  std::vector<int> layers;
  for (const Json& stage : report["plan"]["stages"]) {
    layers.push_back(stage["layers"][1].get<int>() - stage["layers"][0].get<int>() + 1);
  }
  return layers;
}

std::string LossesOf(const Json& report) {
  std::string text;
  for (const Json& iteration : report["iterations"]) {
    text += iteration["loss"].dump() + "\n";
  }
  return text;
}

const GridSite kOneNode{.name = "a"};
const GridSite kTwoNodes{.name = "b", .nodes = 2, .devices_per_node = 2};

TEST_CASE("grids: five layers over two pipeline ranks of tensor 2 x data 2") {
  const std::string precision = GENERATE("fp32", "bf16");
  const Json report = Train({.precision = precision, .parallelism = "tensor: 2, data: 2, stages_per_rank: 1"},
                            {kOneNode, {.name = "b"}});
  CHECK(LayersOf(report) == std::vector<int>{2, 3});
}

TEST_CASE("grids: two stages on each rank of tensor 2 x data 2, in turns") {
  const Json report =
      Train({.precision = "fp32", .parallelism = "tensor: 2, data: 2, stages_per_rank: 2", .schedule = "interleaved"},
            {kOneNode, {.name = "b"}});
  CHECK(LayersOf(report) == std::vector<int>{1, 1, 2, 1});
  CHECK(report["plan"]["stages"][2]["pipeline_rank"] == 0);
  CHECK(report["plan"]["stages"][3]["pipeline_rank"] == 1);
}

TEST_CASE("grids: replicas over the nodes of a site train as on one node, bit for bit") {
  const SmallJob job{.parallelism = "tensor: 2, data: 2, pipeline: 1"};
  const Json over_nodes = Train(job, {kTwoNodes});
  const Json on_one = Train(job, {kOneNode});
  CHECK(over_nodes["plan"]["stages"][0]["nodes"] == Json{0, 1});
  CHECK(on_one["plan"]["stages"][0]["nodes"] == Json{0});
  CHECK(LossesOf(over_nodes) == LossesOf(on_one));
}

TEST_CASE("grids: sites of one node with four devices and of two nodes with two") {
  const Json report = Train({.layers = 6, .parallelism = "tensor: 2, data: 2"}, {kOneNode, kTwoNodes});
  CHECK(report["plan"]["stages"][0]["nodes"] == Json{0});
  CHECK(report["plan"]["stages"].back()["nodes"] == Json{0, 1});
  Train({.layers = 6, .precision = "fp32", .parallelism = "tensor: auto, data: auto"}, {kOneNode, kTwoNodes});
}

TEST_CASE("grids: a site has room for two pipeline ranks of tensor 2, and another for one") {
  const Json report = Train({.parallelism = "tensor: 2, data: 1, stages_per_rank: 1"},
                            {kOneNode, {.name = "b", .devices_per_node = 2}});
  CHECK(report["memory"].size() == 3);
  CHECK(report["memory"][2]["site"] == "b");
  CHECK(LayersOf(report) == std::vector<int>{1, 2, 2});
}

TEST_CASE("grids: devices short of memory are given ZeRO and recomputation, and have room for what was planned") {
  const SmallJob job{.layers = 6,
                     .parallelism = "data: 2, zero_stage: auto, recompute: auto, stages_per_rank: 1",
                     .hidden = 64,
                     .micro_batch = 4};
  const Json report = Train(job, {{.name = "a", .devices_per_node = 2, .memory = "5MiB"},
                                  {.name = "b", .devices_per_node = 2, .memory = "5MiB"}});
  CHECK(report["plan"]["zero_stage"].get<int>() >= 1);
  std::set<std::string> modes;
  for (const Json& stage : report["plan"]["stages"]) {
    modes.insert(stage["recompute"].get<std::string>());
    CHECK(stage["peak_bytes"].get<int64_t>() <= stage["capacity_bytes"].get<int64_t>());
  }
  CHECK(modes.contains("full"));
}

TEST_CASE("grids: a job file asks for AdamW's states in the host's memory") {
  const SmallJob job{.parallelism = "tensor: 2, data: 2, pipeline: 1, zero_stage: 1"};
  SmallJob offloaded = job;
  offloaded.parallelism += ", offload: optimizer";
  const Json kept = Train(job, {kOneNode});
  const Json moved = Train(offloaded, {kOneNode});
  CHECK(LossesOf(moved) == LossesOf(kept));
  const auto most = [](const Json& report, const std::string& key) {
    int64_t bytes = 0;
    for (const Json& measured : report["memory"][0]["measured"]) {
      bytes = std::max(bytes, measured[key].get<int64_t>());
    }
    return bytes;
  };
  CHECK(most(kept, "host_bytes") == 0);
  CHECK(most(moved, "host_bytes") > 0);
  CHECK(most(moved, "host_bytes") + most(moved, "optimizer_bytes") == most(kept, "optimizer_bytes"));
}

}  // namespace
}  // namespace geopipe
