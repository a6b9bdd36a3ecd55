// The least time that any pipeline over a chain of sites can take, whatever its split of the layers, its number of
// ranks and its schedule: what is left of the costs when only sites, degrees, b, s and recompute mode are known.
//
// One stage on each rank. A rank with x layers, of which S lie before it, begins when one forward has come down to it
// and ends one way back (I alone, where the backward is split) before the end: m x t + S c <= T, with t what a layer
// takes in all and c what it takes in F and I. Each micro-batch in flight holds its activations for the way to the end
// and back, R = (L - S) c and twice what each crossing takes; with n = floor(free memory / activations) in flight they
// come in rounds: ceil(m / n) R <= T. The first rank's update follows. Both limits give way as S grows, no faster than
// S itself, so the most layers at every rank in turn place the most layers in all.
//
// Two stages on each rank (folded: down and back again; looped: down twice). Its first stage, with a layers, has u
// layers in first stages before it, its second, with b, has v in second ones: m (a + b) t + u c <= T. The first holds
// for R1 = (L - u) c; the second for R2, which is (b + v) c folded and (B - v) c looped, B being all layers in second
// stages; a micro-batch in flight at the second is so at the first. Rounds as before, and the areas of memory and time
// of both have to fit into what the device has in T. Of all splits with the same v the most u is best.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/profile.h"

namespace geopipe {

// A site of the chain.
struct BoundSite {
  int64_t max_ranks = 0;  // that it has devices for
  PartCosts embedding;    // of one micro-batch on its fastest device
  PartCosts block;        // one layer
  PartCosts head;
  int64_t memory_bytes = 0;        // of a device
  std::vector<int64_t> update_ns;  // at least, by layers of the first rank; from 1 layer on

  friend bool operator==(const BoundSite&, const BoundSite&) = default;
};

struct BoundCrossing {
  int64_t latency_ns = 0;
  int64_t serialization_ns = 0;  // of one message
};

struct BoundChain {
  std::vector<BoundSite> sites;
  std::vector<BoundCrossing> crossings;  // sites.size() - 1
  std::vector<BoundCrossing> elsewhere;  // that a micro-batch takes besides, between whichever ranks
  int64_t way_back_ns = -1;              // from the last site to the first; -1: there is no link
};

// Schedules that a plan may have: where a rank's stages are, and whether W may follow later than I.
struct BoundSchedules {
  bool linear = true;
  bool folded = false;
  bool looped = false;
  bool splits_backward = true;
};

// `limit_ns` where no pipeline takes less than that, else the least time (of the bound) in which one may be done.
// `memory` is of the micro-batches' own config. REQUIRES: limit_ns > 0, at least one site, update_ns of all layers.
int64_t PipelineBoundNs(const BoundChain& chain, const StageMemoryModel& memory, int64_t layers, int64_t micro_batches,
                        const BoundSchedules& schedules, int64_t limit_ns);

}  // namespace geopipe
