// A pipeline rank as bounds see it: its work, the limits on how busy it can be, and its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/profile.h"

namespace geopipe::bound {

// A time that is practically never, and several of which still have a sum.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 16;
inline int64_t CeilDivide(int64_t value, int64_t by) { return (value + by - 1) / by; }

inline int64_t Product(int64_t count, int64_t each) {
  int64_t product = 0;
  return __builtin_mul_overflow(count, each, &product) ? kNever : std::min(product, kNever);
}

// count x each / by, rounded up.
inline int64_t Scaled(int64_t count, int64_t each, int64_t by) {
  const __int128 scaled = (static_cast<__int128>(count) * each + by - 1) / by;
  return scaled > kNever ? kNever : static_cast<int64_t>(scaled);
}

// The parts of a layer (or of a head) on one site.
struct Part {
  int64_t forward_ns = 0;
  int64_t back_ns = 0;  // on the way of a micro-batch back: I, and W where the backward is not split
  int64_t late_ns = 0;  // W where it is
  int64_t all_ns() const { return forward_ns + back_ns + late_ns; }
};

inline Part PartOf(const PartCosts& costs, bool splits_backward) {
  return splits_backward ? Part{costs.forward_ns, costs.input_grad_ns, costs.weight_grad_ns}
                         : Part{costs.forward_ns, costs.input_grad_ns + costs.weight_grad_ns, 0};
}

// A rank: its work, and the limits on how busy it can be.
struct RankTimes {
  int64_t work_ns = 0;
  int64_t in_ns = 0;          // its first F is no earlier,
  int64_t first_back_ns = 0;  // nor its first I than this,
  int64_t fill_ns = 0;        // by when it can have done this much work
  int64_t tail_ns = 0;        // from the start of the last F of its first stage to the end,
  int64_t drain_ns = 0;       // in which it can do this much work
  int64_t out_ns = 0;         // from its last I to the end,
  int64_t late_ns = 0;        // in which it can do this much work
  bool apart = false;         // its first I comes before that last F

  // The work, and the idle time before and after it.
  int64_t IterationNs() const {
    const int64_t before_ns = std::max(in_ns, first_back_ns - fill_ns);
    const int64_t out_idle_ns = std::max<int64_t>(0, out_ns - late_ns);
    const int64_t after_ns = std::max(out_idle_ns, tail_ns - drain_ns);
    const int64_t idle_ns = apart ? before_ns + after_ns : std::max(before_ns + out_idle_ns, in_ns + after_ns);
    return work_ns + idle_ns;
  }
};

// A site's devices in one recompute mode: their times and their memory.
struct RankMode {
  Part embedding;
  Part layer;
  Part head;
  std::vector<int64_t> free_bytes;         // by number of layers, beside their constant needs; negative: no fit
  std::vector<int64_t> free_of_two_bytes;  // the same as two stages
  int64_t activation_bytes = 0;            // of one layer and micro-batch
  int64_t late_bytes = 0;                  // the part that W needs

  // Rounds in which all micro-batches have been in flight, each with the activations of `held` layers.
  int64_t Rounds(int64_t free, int64_t held, int64_t micro_batches) const {
    const int64_t bytes = held * activation_bytes;
    if (free < bytes) {
      return kNever;
    }
    return bytes == 0 ? 1 : CeilDivide(micro_batches, std::min(micro_batches, free / bytes));
  }
  // W that can be postponed: of as many layers as memory keeps. A full backward, of at most `layers`, keeps activations
  // until it ends, which may be less than W needs.
  int64_t LateNs(int64_t free, int64_t layers) const {
    if (layer.late_ns == 0 || late_bytes == 0) {
      return layer.late_ns == 0 ? 0 : kNever;
    }
    const int64_t in_full = late_bytes > activation_bytes ? layers : 0;
    return in_full * layer.late_ns +
           Scaled(std::max<int64_t>(0, free - in_full * activation_bytes), layer.late_ns, late_bytes);
  }
};

// The mode of a device with `memory_bytes`, for a model with `layers`.
RankMode MakeRankMode(const PartCosts& embedding, const PartCosts& block, const PartCosts& head,
                      const StageMemoryModel& memory, int64_t memory_bytes, int64_t layers, bool splits_backward);

}  // namespace geopipe::bound
