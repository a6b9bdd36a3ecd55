#include "optimizer/scheduler/local_search.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace geopipe {
namespace {

constexpr int64_t kCooling = 100;         // first threshold over last
constexpr int64_t kAskStopEvery = 64;     // evaluations
constexpr int32_t kTriesPerChange = 8;    // before giving up finding a change that is allowed
constexpr uint64_t kLongestMove = 4;      // positions
constexpr int64_t kThresholdSteps = 256;  // of the cooling

// A random threshold of mean 1.5 `scale`, nearly exponentially distributed: each further `scale` is half as likely.
int64_t RandomThreshold(int64_t scale_ns, Prng& prng) {
  const int doublings = std::countr_zero(prng.Next() | (uint64_t{1} << 20));
  return scale_ns * doublings + static_cast<int64_t>(prng.Below(static_cast<uint64_t>(scale_ns) + 1));
}

// A threshold that falls from `first` to first / kCooling, geometrically, in steps.
class Cooling {
 public:
  Cooling(int64_t first_ns, int64_t evaluations)
      : first_ns_(first_ns), evaluations_(std::max<int64_t>(1, evaluations)) {}

  int64_t At(int64_t evaluation) const {
    // 2^(-x * log2(kCooling)), with the exponent in 256ths; linear between powers of two.
    const int64_t done = evaluation * kThresholdSteps / evaluations_;
    constexpr int64_t kLog2Cooling256 = 1701;  // 256 * log2(100)
    const int64_t exponent = done * kLog2Cooling256 / kThresholdSteps;
    const int64_t whole = exponent / 256;
    const int64_t part = exponent % 256;
    return (first_ns_ >> whole) * (512 - part) / 512;
  }

 private:
  int64_t first_ns_;
  int64_t evaluations_;
};

}  // namespace

LocalSearch::LocalSearch(const Instance& instance, SequenceTimer& timer)
    : instance_(instance),
      timer_(timer),
      tracks_(static_cast<size_t>(instance.devices)),
      positions_(instance.duration_ns.size() * static_cast<size_t>(instance.micro_batches)) {}

void LocalSearch::Load(const Sequences& sequences) {
  current_ = sequences;
  std::vector<int32_t> next(instance_.duration_ns.size(), 0);
  for (int32_t device = 0; device < instance_.devices; ++device) {
    Track& track = tracks_[device];
    track.micro_batch.clear();
    track.bytes.clear();
    int64_t bytes = 0;
    for (const WorkIndex work : current_[device]) {
      const int32_t micro_batch = next[work]++;
      positions_[instance_.Index(work, micro_batch)] = static_cast<int32_t>(track.bytes.size());
      bytes += instance_.memory_bytes[work];
      track.micro_batch.push_back(micro_batch);
      track.bytes.push_back(bytes);
    }
  }
}

int64_t LocalSearch::BytesBefore(Place place) const {
  return place.position == 0 ? 0 : tracks_[place.device].bytes[place.position - 1];
}

// True when the action at `place` may run before the one that precedes it.
bool LocalSearch::MayPass(Place place) const {
  const WorkIndex before = current_[place.device][place.position - 1];
  const WorkIndex work = current_[place.device][place.position];
  if (before == work) {
    return false;
  }
  const std::vector<int32_t>& micro_batch = tracks_[place.device].micro_batch;
  if (micro_batch[place.position - 1] == micro_batch[place.position]) {
    // Actions of one micro-batch: a stage runs F, I, W in this order, and neighbouring stages on one device wait for
    // each other.
    const bool same_phase = PhaseOf(before) == PhaseOf(work);
    const int32_t step = StageOf(work) - StageOf(before);
    if (step == 0 || (same_phase && PhaseOf(work) == Phase::kForward && step == 1) ||
        (same_phase && PhaseOf(work) == Phase::kInput && step == -1)) {
      return false;
    }
  }
  if (work == WorkOf(StageOf(work), Phase::kForward) && before == WorkOf(StageOf(work), Phase::kInput) &&
      micro_batch[place.position] - micro_batch[place.position - 1] >= instance_.most_in_flight[StageOf(work)]) {
    return false;
  }
  return BytesBefore({place.device, place.position - 1}) + instance_.memory_bytes[work] <=
         instance_.room_bytes[place.device];
}

void LocalSearch::SwapUnchecked(Place place) {
  const auto [device, position] = place;
  Track& track = tracks_[device];
  std::swap(current_[device][position - 1], current_[device][position]);
  std::swap(track.micro_batch[position - 1], track.micro_batch[position]);
  track.bytes[position - 1] =
      BytesBefore({device, position - 1}) + instance_.memory_bytes[current_[device][position - 1]];
  for (const int32_t moved : {position - 1, position}) {
    positions_[instance_.Index(current_[device][moved], track.micro_batch[moved])] = moved;
  }
}

bool LocalSearch::Swap(Place place) {
  if (place.position < 1 || place.position >= std::ssize(current_[place.device]) || !MayPass(place)) {
    return false;
  }
  SwapUnchecked(place);
  swapped_.push_back(place);
  return true;
}

LocalSearch::Place LocalSearch::ProducerOf(int64_t output) const {
  const auto kind = static_cast<int32_t>(output / instance_.micro_batches);
  const auto micro_batch = static_cast<int32_t>(output % instance_.micro_batches);
  const int32_t stage = kind % instance_.stages;
  const WorkIndex work = WorkOf(stage, kind < instance_.stages ? Phase::kForward : Phase::kInput);
  return {instance_.device_of[stage], positions_[instance_.Index(work, micro_batch)]};
}

// Follows one longest path back from the end: from an action to the one it started after, that of its input (and the
// messages in front of it) or the one before it on its device. If both ended at its start, either.
void LocalSearch::FindWaits(Prng& prng) {
  waits_.clear();
  Place place{timer_.last_device(), static_cast<int32_t>(current_[timer_.last_device()].size()) - 1};
  while (place.position >= 0) {
    const auto [device, position] = place;
    const WorkIndex work = current_[device][position];
    const int32_t micro_batch = tracks_[device].micro_batch[position];
    const int64_t start_ns = timer_.StartNs(work, micro_batch);
    const int32_t input = instance_.input[work];
    int64_t output = input == kNoOutput ? -1 : instance_.Index(input, micro_batch);
    const bool input_binds = output >= 0 && timer_.ArrivalNs(output) == start_ns;
    const bool device_binds =
        position > 0 && timer_.StartNs(current_[device][position - 1], tracks_[device].micro_batch[position - 1]) +
                                instance_.duration_ns[current_[device][position - 1]] ==
                            start_ns;
    if (device_binds && !input_binds) {
      waits_.push_back(place);
    }
    if (input_binds && !(device_binds && prng.Chance(1, 2))) {
      while (timer_.QueuedBehind(output) >= 0) {
        output = timer_.QueuedBehind(output);
      }
      place = ProducerOf(output);
    } else if (device_binds) {
      --place.position;
    } else {
      return;
    }
  }
}

// Moves a waiting action forward past a few others, or the one before it back past a few. False: no change found.
bool LocalSearch::Change(Prng& prng) {
  swapped_.clear();
  for (int32_t attempt = 0; attempt < kTriesPerChange && swapped_.empty() && !waits_.empty(); ++attempt) {
    const auto [device, position] = waits_[prng.Below(waits_.size())];
    const uint64_t way = prng.Below(4);
    const auto longest = static_cast<int32_t>(way <= 1 ? 1 + prng.Below(kLongestMove) : 1);
    const int32_t step = way == 1 ? 1 : -1;
    for (int32_t moved = 0; moved < longest; ++moved) {
      if (!Swap({device, position + step * moved})) {
        break;
      }
    }
  }
  return !swapped_.empty();
}

int64_t LocalSearch::Run(const Sequences& sequences, const LocalSearchOptions& options, Prng& prng) {
  Load(sequences);
  best_ = sequences;
  best_ns_ = timer_.Run(current_);
  int64_t current_ns = best_ns_;
  int64_t evaluations = 1;
  const Cooling cooling(options.threshold_ns, options.evaluations);
  FindWaits(prng);
  while (evaluations < options.evaluations && best_ns_ > options.enough_ns && Change(prng)) {
    if (options.stop && evaluations % kAskStopEvery == 0 && options.stop()) {
      break;
    }
    const int64_t changed_ns = timer_.Run(current_);
    const int64_t threshold_ns = RandomThreshold(cooling.At(evaluations), prng);
    ++evaluations;
    if (changed_ns == SequenceTimer::kDeadlock || changed_ns - current_ns > threshold_ns) {
      for (auto place = swapped_.rbegin(); place != swapped_.rend(); ++place) {
        SwapUnchecked(*place);
      }
      continue;
    }
    current_ns = changed_ns;
    if (current_ns < best_ns_) {
      best_ns_ = current_ns;
      best_ = current_;
    }
    FindWaits(prng);
  }
  return evaluations;
}

}  // namespace geopipe
