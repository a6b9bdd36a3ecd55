#include "tests/support/case_fixture.h"

#include <yaml-cpp/yaml.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace geopipe {
namespace {

std::vector<double> PerItem(const YAML::Node& node, int32_t count) {
  if (node.IsSequence()) {
    return node.as<std::vector<double>>();
  }
  return std::vector<double>(static_cast<size_t>(count), node.as<double>());
}

std::vector<int64_t> Nanoseconds(const YAML::Node& node, int32_t count) {
  std::vector<int64_t> durations;
  for (const double seconds : PerItem(node, count)) {
    durations.push_back(SecondsToNs(seconds));
  }
  return durations;
}

std::vector<int64_t> Bytes(const YAML::Node& node, int32_t count) {
  if (!node) {
    return std::vector<int64_t>(static_cast<size_t>(count), 0);
  }
  std::vector<int64_t> bytes;
  for (const double value : PerItem(node, count)) {
    bytes.push_back(std::llround(value));
  }
  return bytes;
}

PipelineCosts LoadCosts(const std::string& path) {
  const YAML::Node root = YAML::LoadFile(path);
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(root["devices"].as<int32_t>(), root["micro_batches"].as<int32_t>());
  const int32_t stages = costs.shape.stages;
  REQUIRE(!root["stages"]);
  REQUIRE(!root["weight_grad_s"]);
  costs.forward_ns = Nanoseconds(root["forward_s"], stages);
  costs.input_grad_ns = Nanoseconds(root["backward_s"], stages);
  costs.boundaries.resize(static_cast<size_t>(stages) - 1);
  const std::vector<double> message_bytes = PerItem(root["message_bytes"], stages - 1);
  for (const YAML::Node& link : root["links"]) {
    const auto index = link["from_chunk"].as<size_t>();
    BoundaryCost& boundary = costs.boundaries.at(index);
    boundary.crosses = true;
    boundary.link = link["link"].as<std::string>("");
    boundary.message_bytes = std::llround(message_bytes[index]);
    boundary.latency_ns = SecondsToNs(link["latency_s"].as<double>());
    boundary.serialization_ns = SecondsToNs(message_bytes[index] / link["bandwidth_Bps"].as<double>());
  }
  if (const YAML::Node memory = root["memory"]) {
    const int32_t devices = costs.shape.devices;
    costs.memory = MemoryCosts{Bytes(memory["capacity_bytes"], devices), Bytes(memory["static_bytes"], devices),
                               Bytes(memory["activation_bytes"], stages), Bytes(memory["wgrad_bytes"], stages)};
  }
  return costs;
}

ExpectedRow LoadRow(const nlohmann::json& json) {
  ExpectedRow row;
  row.schedule = ParseScheduleKind(json.at("schedule").get<std::string>()).value();
  row.comm = ParseCommMode(json.at("comm").get<std::string>()).value();
  row.delta_n = json.value("delta_n", std::vector<int32_t>());
  row.iteration_s = json.at("iteration_s").get<double>();
  row.bubble_ratio = json.at("bubble_ratio").get<double>();
  row.fits = json.at("fits").get<bool>();
  if (!json.at("peak_bytes").is_null()) {
    row.peak_bytes.emplace();
    for (const nlohmann::json& bytes : json.at("peak_bytes")) {
      row.peak_bytes->push_back(std::llround(bytes.get<double>()));
    }
  }
  return row;
}

}  // namespace

std::vector<GoldenCase> LoadGoldenCases() {
  const std::string folder = std::string(GEOPIPE_SOURCE_DIR) + "/tests/golden/cases/";
  std::ifstream file(folder + "expected.json");
  REQUIRE(file.is_open());
  const nlohmann::json root = nlohmann::json::parse(file);
  std::vector<GoldenCase> cases;
  for (const auto& [name, expected] : root.items()) {
    GoldenCase golden{name, LoadCosts(folder + name + ".yaml"), expected.at("lower_bound_s").get<double>(), {}};
    for (const nlohmann::json& row : expected.at("rows")) {
      golden.rows.push_back(LoadRow(row));
    }
    cases.push_back(std::move(golden));
  }
  return cases;
}

std::vector<int32_t> SpreadDeltaN(const PipelineCosts& costs, const std::vector<int32_t>& delta_n) {
  std::vector<int32_t> spread(costs.boundaries.size(), 0);
  size_t crossing = 0;
  for (size_t boundary = 0; boundary < spread.size(); ++boundary) {
    if (costs.boundaries[boundary].crosses && crossing < delta_n.size()) {
      spread[boundary] = delta_n[crossing++];
    }
  }
  REQUIRE(crossing == delta_n.size());
  return spread;
}

}  // namespace geopipe
