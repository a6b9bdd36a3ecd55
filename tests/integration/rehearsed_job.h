// A job that the playground trains on processors of this machine, over sites that a test describes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {

struct RehearsedSite {
  std::string name;
  int32_t nodes = 1;
  int32_t devices = 2;  // of each node
  std::string memory = "64MiB";
};

// Writes job.yaml and topology.yaml into `folder`, trains and returns the report. `spec`: lines of the job's spec,
// indented by two; the sites are its placement. Links between sites are of 2 ms. REQUIREs that the job completes.
nlohmann::json Rehearse(const TempFolder& folder, const std::string& spec, const std::vector<RehearsedSite>& sites);

}  // namespace geopipe
