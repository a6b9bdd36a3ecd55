#include "optimizer/scheduler/deadlines.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace geopipe {

Deadlines::Deadlines(const Instance& instance)
    : instance_(instance),
      stages_(static_cast<size_t>(instance.stages)),
      latest_start_ns_(static_cast<size_t>(instance.stages) * kPhases * static_cast<size_t>(instance.micro_batches)),
      latest_entry_ns_(instance.routes.size()) {
  for (int32_t c = 0; c < instance.stages; ++c) {
    Stage& stage = stages_[c];
    stage.way_out_ns = c == 0 ? Duration(0, Phase::kWeight)
                              : stages_[c - 1].way_out_ns + instance.routes[instance.stages + c].delay_ns() +
                                    Duration(c - 1, Phase::kInput);
    for (const int32_t other : instance.stages_of[instance.device_of[c]]) {
      const int64_t backward_ns = Duration(other, Phase::kInput) + Duration(other, Phase::kWeight);
      stage.device_work_ns += backward_ns + (other >= c ? Duration(other, Phase::kForward) : 0);
      stage.device_backward_ns += other <= c ? backward_ns : 0;
    }
    stage.held = instance.most_in_flight[c];
    stage.deferred = instance.micro_batches;
    if (instance.stages_of[instance.device_of[c]].size() == 1) {
      LimitByMemory(c);
    }
  }
}

// Limits a stage that has its device for itself.
void Deadlines::LimitByMemory(int32_t c) {
  Stage& stage = stages_[c];
  const int64_t room_bytes = instance_.room_bytes[instance_.device_of[c]];
  const int64_t activation_bytes = instance_.memory_bytes[WorkOf(c, Phase::kForward)];
  const int64_t kept_bytes = -instance_.memory_bytes[WorkOf(c, Phase::kWeight)];
  if (activation_bytes <= 0) {
    return;
  }
  const int64_t micro_batches = instance_.micro_batches;
  // At least one: with less room no schedule exists, which a deadline cannot report.
  stage.held = static_cast<int32_t>(std::clamp<int64_t>(room_bytes / activation_bytes, 1, stage.held));
  if (kept_bytes > 0) {
    const int64_t beside_last = std::max<int64_t>(room_bytes - std::max(activation_bytes, kept_bytes), 0) / kept_bytes;
    stage.deferred = static_cast<int32_t>(std::min(beside_last + 1, micro_batches));
  }
  if (room_bytes - stage.held * activation_bytes < kept_bytes) {
    // Time of its W, or else of the next I.
    stage.release_ns = std::min(Duration(c, Phase::kWeight), Duration(c, Phase::kInput));
  }
}

// Latest time at which a message must enter its link so that the action waiting for it can start by `latest_start_ns`,
// and the message behind it (that of the last call) can enter in time too.
int64_t Deadlines::LatestEntry(int32_t output, int64_t latest_start_ns) {
  const OutputRoute& route = instance_.routes[output];
  int64_t& entry_ns = latest_entry_ns_[output];
  entry_ns = std::min(latest_start_ns - route.delay_ns(), entry_ns - route.spacing_ns());
  return entry_ns;
}

void Deadlines::ComputeInput(int32_t c, int32_t j, int64_t target_ns, int64_t earlier_ns) {
  const Stage& stage = stages_[c];
  const int64_t forward_ns = Duration(c, Phase::kForward);
  const int64_t input_ns = Duration(c, Phase::kInput);
  const int64_t weight_ns = Duration(c, Phase::kWeight);
  const int32_t m = instance_.micro_batches;
  // Forwards that have to wait for this or a later I, and weight gradients that cannot be postponed to the end.
  const int64_t forwards_ns = std::max(0, m - j - stage.held) * forward_ns;
  const int64_t weights_ns = std::max(0, m - j - stage.deferred) * weight_ns;
  int64_t latest_ns = target_ns - std::max(stage.way_out_ns, weight_ns) - input_ns;
  latest_ns = std::min(latest_ns, target_ns - (m - j) * stage.device_backward_ns - forwards_ns);
  latest_ns = std::min(latest_ns, target_ns - stage.way_out_ns - (m - j) * input_ns - forwards_ns - weights_ns);
  if (j + 1 < m) {
    latest_ns = std::min(latest_ns, LatestStart(c, Phase::kInput, j + 1) - input_ns);
  }
  if (c > 0) {
    const int64_t entry_ns = LatestEntry(instance_.stages + c, LatestStart(c - 1, Phase::kInput, j));
    latest_ns = std::min(latest_ns, entry_ns - input_ns);
  }
  if (j + stage.held < m) {
    latest_ns = std::min(latest_ns, LatestStart(c, Phase::kForward, j + stage.held) - input_ns - stage.release_ns);
  }
  LatestStart(c, Phase::kInput, j) = latest_ns - earlier_ns;
}

void Deadlines::ComputeForward(int32_t c, int32_t j, int64_t target_ns, int64_t earlier_ns) {
  const Stage& stage = stages_[c];
  const int64_t forward_ns = Duration(c, Phase::kForward);
  const int64_t input_ns = Duration(c, Phase::kInput);
  const int32_t m = instance_.micro_batches;
  const int64_t weights_ns = std::max(0, m - j - stage.deferred) * Duration(c, Phase::kWeight);
  int64_t latest_ns = target_ns - (m - j) * stage.device_work_ns;
  latest_ns = std::min(latest_ns, target_ns - stage.way_out_ns - (m - j) * (forward_ns + input_ns) - weights_ns);
  if (c + 1 == instance_.stages) {
    latest_ns = std::min(latest_ns, LatestStart(c, Phase::kInput, j) - forward_ns);
  } else {
    latest_ns = std::min(latest_ns, LatestEntry(c, LatestStart(c + 1, Phase::kForward, j)) - forward_ns);
  }
  if (j + 1 < m) {
    latest_ns = std::min(latest_ns, LatestStart(c, Phase::kForward, j + 1) - forward_ns);
  }
  LatestStart(c, Phase::kForward, j) = latest_ns - earlier_ns;
}

void Deadlines::Compute(int64_t target_ns, std::span<const int64_t> earlier_ns) {
  std::fill(latest_entry_ns_.begin(), latest_entry_ns_.end(), std::numeric_limits<int64_t>::max());
  for (int32_t j = instance_.micro_batches - 1; j >= 0; --j) {
    for (int32_t c = 0; c < instance_.stages; ++c) {
      ComputeInput(c, j, target_ns, earlier_ns[WorkOf(c, Phase::kInput)]);
    }
    for (int32_t c = instance_.stages - 1; c >= 0; --c) {
      ComputeForward(c, j, target_ns, earlier_ns[WorkOf(c, Phase::kForward)]);
    }
  }
}

}  // namespace geopipe
