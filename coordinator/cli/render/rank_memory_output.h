// Memory of a job's ranks as planned and as measured, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "optimizer/model/plan/rank_memory.h"

namespace geopipe {

// The devices of one pipeline rank, which are planned alike.
struct StageRanksMemory {
  struct Measured {
    int32_t rank = 0;
    RankMemory peaks;
  };

  std::string site;
  int32_t first_rank = 0;
  int32_t ranks = 1;  // data times tensor
  RankMemory planned;
  std::vector<Measured> measured;  // of those that have told
};

// Shows for each run of ranks that are planned alike what is planned and, where some have told, the greatest that was
// measured; a value that exceeds what was planned for its rank bears a '!', and a line below says by how much the worst
// does. Folded: of more than twelve rows those that follow each other at one site with as much of weights, gradients
// and optimizer states share one, that of the greatest of each category. Empty without ranks.
std::string RankMemoryText(const std::vector<StageRanksMemory>& all, View view = Rows::kFolded);

// One object for each pipeline rank: {"pipeline_rank", "site", "first_rank", "ranks" (how many it has, from first_rank
// on), "planned": peaks, "measured": [{"rank", peaks}, ...] (of those that have told), "exceeded": [...]}. Peaks are
// "weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "workspace_bytes", "transport_bytes",
// "recovery_bytes", "total_bytes" (of all at once) and "host_bytes" (of the host for it); "exceeded" names those of
// which some rank has measured more than is planned.
Json RankMemoryToJson(const std::vector<StageRanksMemory>& all);

}  // namespace geopipe
