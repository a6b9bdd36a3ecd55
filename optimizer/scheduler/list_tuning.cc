#include "optimizer/scheduler/list_tuning.h"

#include <cstddef>
#include <cstdint>

namespace geopipe {
namespace {

constexpr uint64_t kMaxChanges = 4;
// One in this many changes is to the target, one to the lookahead, one to the urgency of everything.
constexpr uint64_t kChangesPerKind = 10;
// The target moves by up to this fraction of it, halved a random number of times.
constexpr int64_t kTargetPart = 16;
constexpr uint64_t kTargetHalvings = 7;
// One urgency moves by up to the work of a micro-batch on its device, halved a random number of times.
constexpr uint64_t kUrgencyHalvings = 3;

// A shift, sooner or later, of up to `most_ns`, halved up to `halvings` times.
int64_t RandomShiftNs(int64_t most_ns, uint64_t halvings, Prng& prng) {
  const int64_t halved_ns = most_ns >> prng.Below(halvings + 1);
  return prng.Between(-halved_ns, halved_ns);
}

void ShiftEverything(const Instance& instance, ListOptions& options, Prng& prng) {
  for (int32_t stage = 0; stage < instance.stages; ++stage) {
    for (const Phase phase : {Phase::kForward, Phase::kInput}) {
      const WorkIndex work = WorkOf(stage, phase);
      options.earlier_ns[work] += RandomShiftNs(instance.duration_ns[work] / 2, 0, prng);
    }
  }
}

void ShiftOne(const Instance& instance, ListOptions& options, Prng& prng) {
  const auto stage = static_cast<int32_t>(prng.Below(static_cast<uint64_t>(instance.stages)));
  const Phase phase = prng.Chance(1, 2) ? Phase::kForward : Phase::kInput;
  const int64_t work_ns = instance.DeviceWorkNs(instance.device_of[stage]);
  options.earlier_ns[WorkOf(stage, phase)] += RandomShiftNs(work_ns, kUrgencyHalvings, prng);
}

}  // namespace

ListOptions Retuned(const Instance& instance, ListOptions options, Prng& prng) {
  options.earlier_ns.resize(instance.duration_ns.size(), 0);
  for (uint64_t left = 1 + prng.Below(kMaxChanges); left > 0; --left) {
    switch (prng.Below(kChangesPerKind)) {
      case 0:
        options.target_ns += RandomShiftNs(options.target_ns / kTargetPart, kTargetHalvings, prng);
        break;
      case 1:
        options.lookahead =
            options.lookahead == Lookahead::kWorstLateness ? Lookahead::kAddedLateness : Lookahead::kWorstLateness;
        break;
      case 2:
        ShiftEverything(instance, options, prng);
        break;
      default:
        ShiftOne(instance, options, prng);
    }
  }
  return options;
}

}  // namespace geopipe
