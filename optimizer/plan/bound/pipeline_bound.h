// The least time that any pipeline over a chain of sites can take, whatever its split of the layers, its number of
// ranks, how each of these recomputes, and its schedule: it uses only the costs that are known from sites, degrees, b,
// s and ZeRO stage. Every rank has the mode with which it may have the most layers; the times it waits for are those of
// the fastest mode.
//
// One stage on each rank. A rank with x layers, of which S lie before it, works for m x (F + I + W), and is idle
// - before: until one forward has come down to it, S F; and until its first I may start, except for the forwards that
//   its memory holds by then;
// - after: from its last I until that gradient has come up, S I, except for the W that its memory lets it postpone; and
//   from its last F for a round trip and the way up, except for the work that the micro-batches in flight leave.
// (device_bound.h has the same for a whole plan.) A micro-batch in flight holds its activations for a round trip, R =
// (L - S)(F + I) and the crossings' time; with n = floor(free memory / activations) in flight they come in ceil(m / n)
// rounds, all but one of which add to the way of one micro-batch from end to end. The first rank's update follows. All
// limits give way as S grows, no faster than S itself, so the most layers at every rank in turn place the most layers
// in all.
//
// Two stages on each rank (folded: down and back again; looped: down twice), with a and b layers, u of the first stages
// and v of the second ones before them. As above with m (a + b) layers of work, F of u layers on the way in. The first
// stage's round trip is (L - u)(F + I); the second's (b + v)(F + I) folded and (B - v)(F + I) looped, B being all
// layers in second stages; a micro-batch in flight at the second is so at the first. The areas of memory and time of
// both have to fit into those that the device has until the end. Of all splits with the same v the most u is best;
// layers that leave too little for the last rank are given back.
//
// Looped with three stages or more on each rank. A rank with x layers works as above. Each of the r ranks before it has
// at least one layer in its first stage, so it is idle until F of r layers has come down, and until the first I may
// start (after all of F) except for the forwards that its memory holds by then; and from its last I until that of r
// layers has come up, except for the W postponed. Its memory has room for the activations of one micro-batch in all its
// stages: none of them is free before the last has turned. Over all devices the areas of memory and time fit: in a
// layer with n behind it a micro-batch stays for n (F + I), m (F + I) L (L - 1) / 2 in all. A crossing carries as many
// messages each way as there are rounds; between two sites it is the way back, too. Nothing depends on which layers a
// rank has, except the first one's update, so each takes as many as it may; if sites differ, each number of ranks on
// each of them is tried.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/profile.h"

namespace geopipe {

// Costs of one micro-batch.
struct BoundCosts {
  PartCosts embedding;
  PartCosts block;  // one layer
  PartCosts head;

  friend bool operator==(const BoundCosts&, const BoundCosts&) = default;
};

// A site of the chain.
struct BoundSite {
  int64_t max_ranks = 0;           // that it has devices for
  std::vector<BoundCosts> modes;   // on its fastest device, of each mode of recomputation that a rank may have
  int64_t memory_bytes = 0;        // of a device
  std::vector<int64_t> update_ns;  // at least, of a first rank, by its number of layers, from one on

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

// Schedules that a plan may have: the layout of a rank's stages, and whether W may follow later than I.
struct BoundSchedules {
  bool linear = true;
  bool folded = false;
  bool looped = false;
  int32_t rounds = 0;  // looped with at least this many stages on each rank, three or more; 0: none such
  bool splits_backward = true;
};

// `limit_ns` if no pipeline takes less than that, else the least time (of the bound) in which one may be done. `memory`
// is of each of the sites' modes. REQUIRES: limit_ns > 0, at least one site and one mode, update_ns of all layers.
int64_t PipelineBoundNs(const BoundChain& chain, std::span<const StageMemoryModel> memory, int64_t layers,
                        int64_t micro_batches, const BoundSchedules& schedules, int64_t limit_ns);

}  // namespace geopipe
