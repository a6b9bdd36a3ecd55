// Lower bounds, for every schedule, on the time that boundaries cost each other by sharing one direction of a link.
//
// Before the n-th F of a stage starts, n messages have passed each of the boundaries below it. Those that share a link
// were on it one after the other, n * (sum of their serializations), since the first F below ended, and the last of
// them then still has to travel. The same holds for the I that come down, and, seen from the end of the iteration, for
// the messages of the last micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/simulator/shortest_path.h"

namespace geopipe {

// base_ns + n * rate_ns, for n micro-batches.
struct LinkLine {
  int64_t base_ns = 0;
  int64_t rate_ns = 0;
};

struct LinkLines {
  // Time from the start of the iteration to the start of the n-th F, and I, that starts.
  std::vector<LinkLine> forward_heads;
  std::vector<LinkLine> input_heads;
  // Time from the start of the n-th last F, and I, to the end of the iteration.
  std::vector<LinkLine> forward_tails;
  std::vector<LinkLine> input_tails;
};

// Greatest of `lines` for n micro-batches; 0 if there is none.
int64_t GreatestNs(const std::vector<LinkLine>& lines, int64_t n);

// The lines of each stage; none where no link is shared. `paths` are ShortestPaths(costs). REQUIRES:
// ValidateCosts(costs).ok().
std::vector<LinkLines> FindLinkLines(const PipelineCosts& costs, const std::vector<StagePath>& paths);

}  // namespace geopipe
