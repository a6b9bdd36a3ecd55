#include "optimizer/plan/bound/rank_mode.h"

namespace geopipe::bound {

RankMode MakeRankMode(const PartCosts& embedding, const PartCosts& block, const PartCosts& head,
                      const StageMemoryModel& memory, int64_t memory_bytes, int64_t layers, bool splits_backward) {
  RankMode mode;
  mode.embedding = PartOf(embedding, splits_backward);
  mode.layer = PartOf(block, splits_backward);
  mode.head = PartOf(head, splits_backward);
  const StageMemory one = memory.Of({.first = 0, .last = 0});
  mode.activation_bytes = one.activation_bytes;
  mode.late_bytes = one.weight_grad_bytes;
  mode.free_bytes.push_back(memory_bytes);
  mode.free_of_two_bytes.push_back(memory_bytes);
  for (int64_t count = 1; count <= layers; ++count) {
    const StageMemory need = memory.Of({.first = 0, .last = count - 1});
    mode.free_bytes.push_back(memory_bytes - need.static_bytes());
    mode.free_of_two_bytes.push_back(memory_bytes - need.model_state_bytes() - need.recovery_bytes -
                                     one.workspace_bytes);
  }
  return mode;
}

}  // namespace geopipe::bound
