// Pipelines for checking the schedule `auto`: the published columns of CrossPipe's Table 5, and random federations of
// sites.
#pragma once

#include <cstdint>
#include <span>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

// Two sites split in the middle of 8 devices; latency and serialization of the crossing in units of T_F.
struct CrossPipeColumn {
  double latency = 0;
  double serialization = 0;
  int32_t micro_batches = 0;
  int64_t cap = 0;         // activations that a device can hold
  double at_most_s = 0;    // what `auto` must reach, per micro-batch
  double bound_s = 0;      // a bound that memory and round trip prove, per micro-batch
  double published_s = 0;  // CrossPipe's solver, measured
};

// m = 16 with a cap of 8, then m = 32 with a cap of 16.
std::span<const CrossPipeColumn> CrossPipeColumns();
PipelineCosts CrossPipeCosts(const CrossPipeColumn& column);

struct SitedCase {
  PipelineCosts costs;
  int32_t sites = 0;
  bool shared = false;  // boundaries share a link
  // Memory lets a schedule reach the lower bound: every device has room for the activations that 1F1B needs (twice as
  // many where the backward is split) plus ceil(2 D / t) for each crossing at or after it, or for all micro-batches.
  bool ample = false;
};

// 2 to 6 sites, 4 to 32 devices, 8 to 256 micro-batches (log-uniform), even and uneven stages, private and shared links
// with latencies from 0.05 to 3 micro-batches' work, memory from 1 to 3 times what 1F1B needs on each device or on the
// one that needs most; half of them with a backward that can be split. Non-blocking. Valid.
SitedCase MakeSitedCase(uint64_t seed);

// The same with 2 to 4 sites, as many devices or up to 4, 4 to 8 micro-batches and private links: small enough for an
// exact search.
SitedCase MakeSmallSitedCase(uint64_t seed);

}  // namespace geopipe
