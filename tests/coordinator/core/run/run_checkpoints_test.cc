#include "coordinator/core/run/run_checkpoints.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

const std::vector<WorkerKey> kMembers = {{"east", "n0", 0}, {"east", "n1", 0}, {"west", "n0", 0}};

// All ranks have written a file of their own, and all nodes the manifest. Orders of copies: source -> holder.
std::vector<std::string> CopiesOf(const std::set<NodeKey>& avoid) {
  Epoch epoch;
  epoch.number = 3;
  for (const WorkerKey& worker : kMembers) {
    epoch.members.push_back({worker, 1});
  }
  RunCheckpoints checkpoints;
  checkpoints.BeginEpoch(epoch, 7, 64, false);
  checkpoints.Ask(5, {.wanted = true, .avoid = avoid});
  for (int32_t rank = 0; rank < 3; ++rank) {
    v1::CheckpointReport report;
    report.set_iteration(5);
    report.set_rank(rank);
    report.add_files()->set_name("of-" + DisplayName(kMembers[rank].node_key()));
    checkpoints.OnFiles(100, kMembers[rank], 3, report);
  }
  RunCheckpoints::Outcome outcome;
  for (const WorkerKey& worker : kMembers) {
    v1::ManifestReport report;
    report.set_iteration(5);
    outcome = checkpoints.OnManifest(200, worker, 3, report);
  }
  CHECK(outcome.complete.has_value());
  std::vector<std::string> copies;
  for (const RunCheckpoints::CopyOrder& order : outcome.copies) {
    for (const RunCheckpoints::CopyOrder::Source& source : order.sources) {
      copies.push_back(source.files.at(0) + " -> " + DisplayName(order.worker.node_key()));
    }
  }
  return copies;
}

TEST_CASE(
    "parts of nodes that are left are copied to nodes of their site that stay, else to the first site that does") {
  using Copies = std::vector<std::string>;
  CHECK(CopiesOf({}) == Copies{"of-west/n0 -> east/n0", "of-east/n0 -> west/n0", "of-east/n1 -> west/n0"});
  CHECK(CopiesOf({{"east", "n1"}}) == Copies{"of-east/n1 -> east/n0"});
  CHECK(CopiesOf({{"east", "n0"}, {"east", "n1"}}) == Copies{"of-east/n0 -> west/n0", "of-east/n1 -> west/n0"});
  CHECK(CopiesOf({{"west", "n0"}}) == Copies{"of-west/n0 -> east/n0"});
}

}  // namespace
}  // namespace geopipe
