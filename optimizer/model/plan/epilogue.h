// The time between the end of stage 0's last backward and its next iteration's first forward.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

struct EpilogueParts {
  std::vector<int64_t> update_ns;                  // per stage: synchronisation and AdamW
  bool clips = false;                              // every update waits for the gradient norm
  std::vector<std::vector<int64_t>> latencies_ns;  // of norm terms, [from][to]
  int64_t tied_ns = 0;                             // the tied embedding's gradient, one way; 0: none
};

// Computes that time, counted from the end of stage 0's last backward, which is the last of all. Stage p's own ended
// earlier by at least the time its gradient took to stage 0, and its next forward starts later by at least the time of
// its input. A latency of the norm terms hides behind these two: stage 0 has all terms when it has made its own, and
// stage 0's reach stage p before its next activation does, unless they travel on a slower link, or (comm blocking)
// their sender was held until its last gradient was acknowledged. A device that runs several stages is ready when all
// of them are, and continues with the first that has input. REQUIRES: sizes of `parts` are the stages'.
int64_t EpilogueNs(const PipelineCosts& costs, const EpilogueParts& parts);
// Does the same with these in place of parts.update_ns.
int64_t EpilogueNs(const PipelineCosts& costs, const EpilogueParts& parts, const std::vector<int64_t>& update_ns);

}  // namespace geopipe
