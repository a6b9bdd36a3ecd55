// A small job and small sites for runs on grids of ranks: six layers, four heads of which two share a key-value head,
// and a vocabulary that four tensor ranks can divide.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {

struct GridJob {
  std::string name;
  std::string parallelism;  // "tensor: 2, data: 2"
  std::string sites = "east, west";
  std::string more = {};  // lines of the spec, indented by two
  int64_t iterations = 20;
  int64_t tokens_per_iteration = 512;
  std::string schedule = "auto";
};

struct GridSite {
  std::string name;
  int32_t nodes = 1;
  int32_t devices_per_node = 4;
  std::string memory = "1GiB";  // of a device
};

std::string GridJobText(const GridJob& job);

// Both write a file to `folder` and return its path. Each two sites have a link of 2 ms and 1 Gbps.
std::string WriteGridJob(const TempFolder& folder, const GridJob& job);
std::string WriteGridSites(const TempFolder& folder, const std::string& name, const std::vector<GridSite>& sites);

// The report of a playground that completes. `more` are flags.
nlohmann::json TrainGridJob(const TempFolder& folder, const std::string& job, const std::string& topology,
                            int64_t iterations, const std::vector<std::string>& more = {});

// The same of any job: `spec` has the lines of its spec, indented by two, all but its placement, which is the sites.
nlohmann::json TrainOnSites(const TempFolder& folder, const std::string& spec, const std::vector<GridSite>& sites);

// "loss grad_norm" of the report's iterations, line by line: equal text is equal bits.
std::string GridNumbers(const nlohmann::json& report);

// CHECKs that these losses are those of the report's iterations within 2e-5.
void CheckSameLosses(const nlohmann::json& report, const std::vector<double>& expected);
std::vector<double> GridLosses(const nlohmann::json& report);

}  // namespace geopipe
