// Measures the costs of a model's parts on this device, for the planner.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/model_spec.h"
#include "optimizer/model/profile.h"
#include "runtime/backend/backend.h"
#include "runtime/base/clock.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

struct StageProfilerOptions {
  ModelSpec model;
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  Precision precision = Precision::kFp32;
  // Each part is repeated until its share (a third) of the time is spent, but at least min_repetitions and at most
  // max_repetitions times, after one warm-up that is not counted.
  int64_t time_budget_ns = 1'000'000'000;
  int32_t min_repetitions = 3;
  int32_t max_repetitions = 50;
};

// The fields of a ProfileEntry that do not name its place.
struct StageProfile {
  PartCosts embedding;
  PartCosts block;
  PartCosts head;
  int64_t adamw_ns_per_million_parameters = 0;
};

// Profiles the parts: medians over the repetitions. Runs the very code that trains, on random weights and tokens: a
// stage with the embedding alone, one with a single layer, one with the head alone, one after the other. Errors: those
// of TransformerStage, e.g. ResourceExhausted when one of these does not fit into the allocator's memory.
absl::StatusOr<StageProfile> ProfileStage(const StageProfilerOptions& options, Allocator& allocator, Backend& backend,
                                          Clock& clock);

}  // namespace geopipe
