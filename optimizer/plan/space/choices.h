// The choices a job leaves open: recompute modes, ZeRO stages, and b and s that divide its tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"

namespace geopipe {

// The modes the job allows, the cheapest in time first: its own, or with auto none, selective, full.
inline std::vector<Recompute> RecomputeModes(const JobSpec& job) {
  if (job.parallelism.recompute.has_value()) {
    return {*job.parallelism.recompute};
  }
  return {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
}

// The ZeRO stages that the job, with its data degree (auto is 1), allows: its own, or with auto each; the one that is
// best for most jobs first, then those that divide more. With one replica there is nothing to divide (0).
inline std::vector<int32_t> ZeroStages(const JobSpec& job) {
  if (job.parallelism.data <= 1) {
    return {0};
  }
  if (job.parallelism.zero_stage.has_value()) {
    return {*job.parallelism.zero_stage};
  }
  return {1, 2, 3, 0};
}

// A way to hold less at the cost of time: activations that are made again, and states that replicas divide.
struct MemoryMode {
  Recompute recompute = Recompute::kNone;
  int32_t zero_stage = 0;

  friend bool operator==(const MemoryMode&, const MemoryMode&) = default;
};

// Sets the mode of a plan. Pipeline ranks that recompute differently keep their modes (`mode.recompute` is not read).
inline void SetMode(const MemoryMode& mode, Plan& plan) {
  if (plan.SameRecompute().has_value()) {
    plan.SetRecompute(mode.recompute);
  }
  plan.zero_stage = mode.zero_stage;
}

// All modes that the job allows, the same on every pipeline rank, by recompute mode.
inline std::vector<MemoryMode> MemoryModes(const JobSpec& job) {
  std::vector<MemoryMode> modes;
  for (const Recompute recompute : RecomputeModes(job)) {
    for (const int32_t zero_stage : ZeroStages(job)) {
      modes.push_back({recompute, zero_stage});
    }
  }
  return modes;
}

// Micro-batches of an iteration at this b and s; 0 when these do not divide its tokens, or make too many.
inline int32_t MicroBatchesOf(const JobSpec& job, int64_t micro_batch_size, int64_t sequence_length) {
  const int64_t product = micro_batch_size * sequence_length * std::max<int64_t>(1, job.parallelism.data);
  const int64_t count = job.training.tokens_per_iteration / product;
  return count * product == job.training.tokens_per_iteration && count <= kMaxMicroBatches ? static_cast<int32_t>(count)
                                                                                           : 0;
}

// The way in which a micro-batch runs on a stage.
struct WorkChoice {
  MemoryMode mode;
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;

  friend bool operator==(const WorkChoice&, const WorkChoice&) = default;
};

// All choices whose b and s divide the job's tokens, by mode, then b, then s.
inline std::vector<WorkChoice> WorkChoices(const JobSpec& job) {
  std::vector<WorkChoice> choices;
  for (const MemoryMode& mode : MemoryModes(job)) {
    for (const int64_t b : job.search.micro_batch_size) {
      for (const int64_t s : job.search.sequence_length) {
        if (MicroBatchesOf(job, b, s) > 0) {
          choices.push_back({mode, b, s});
        }
      }
    }
  }
  return choices;
}

// The layout of a plan's stages.
struct StageChoice {
  StageLayout layout = StageLayout::kLinear;
  int32_t per_rank = 1;

  friend bool operator==(const StageChoice&, const StageChoice&) = default;
};

// Layouts that the job allows on `pipeline` pipeline ranks: with its schedule, its stages per rank, a layer for each
// stage. Fewer stages on a rank come first.
inline std::vector<StageChoice> StageChoices(const JobSpec& job, int64_t pipeline) {
  const ScheduleRow& row = RowOf(job.search.schedule);
  std::vector<StageChoice> choices;
  const auto add = [&](StageLayout layout, int32_t per_rank) {
    const int32_t fixed = job.parallelism.stages_per_rank;
    const bool is_allowed =
        (fixed == 0 || fixed == per_rank) && (row.kind == ScheduleKind::kAuto || row.layout == layout);
    if (is_allowed && pipeline * per_rank <= job.model.num_hidden_layers) {
      choices.push_back({layout, per_rank});
    }
  };
  add(StageLayout::kLinear, 1);
  add(StageLayout::kFolded, 2);
  for (int32_t per_rank = 2; per_rank <= std::max(kMaxTriedStagesPerRank, job.parallelism.stages_per_rank);
       ++per_rank) {
    add(StageLayout::kLooped, per_rank);
  }
  return choices;
}

// "none", "selective", "full".
constexpr std::string_view RecomputeName(Recompute recompute) {
  constexpr std::array<std::string_view, 3> kNames{"none", "selective", "full"};
  return kNames[static_cast<size_t>(recompute)];
}

// Text of all pipeline ranks' modes: "full", or if they differ "full on ranks 0-2, none on 3-5, 7".
std::string RecomputeText(const Plan& plan);
// The same in one word: "full", or if they differ "mixed".
std::string_view RecomputeWord(const Plan& plan);

}  // namespace geopipe
