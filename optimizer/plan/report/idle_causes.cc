#include "optimizer/plan/report/idle_causes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace geopipe {
namespace {

struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  Interval Clip(int64_t begin, int64_t end) const { return {std::max(begin_ns, begin), std::min(end_ns, end)}; }
  bool empty() const { return begin_ns >= end_ns; }
};

// A stretch of the chain to which idle time is attributed.
struct Stretch {
  IdleCause cause = IdleCause::kWork;
  int32_t index = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Divides the chain into stretches: on devices where it stays, and over crossings between them. Actions between two
// messages belong to the message before; those before the first message since the chain last stayed, to that message;
// without any message each to its own device.
std::vector<Stretch> Stretches(const std::vector<ChainSegment>& chain, int64_t iteration_ns) {
  const auto stays_ns = static_cast<int64_t>(kStays * static_cast<double>(iteration_ns));
  std::vector<Stretch> stretches;
  size_t begin = 0;
  while (begin < chain.size()) {
    size_t end = begin + 1;
    while (end < chain.size() && chain[end].kind == chain[begin].kind && chain[end].index == chain[begin].index &&
           chain[end].kind == ChainSegment::Kind::kAction) {
      ++end;
    }
    Stretch stretch{IdleCause::kWork, chain[begin].index, chain[begin].begin_ns, chain[end - 1].end_ns};
    if (chain[begin].kind != ChainSegment::Kind::kAction) {
      stretch.cause = chain[begin].kind == ChainSegment::Kind::kHold ? IdleCause::kHold : IdleCause::kLink;
    }
    stretches.push_back(stretch);
    begin = end;
  }
  const auto stays = [&](const Stretch& stretch) {
    return stretch.cause == IdleCause::kWork && stretch.end_ns - stretch.begin_ns >= stays_ns;
  };
  const auto passes = [](const Stretch& stretch) { return stretch.cause != IdleCause::kWork; };
  for (size_t from = 0; from < stretches.size();) {
    size_t to = from;
    while (to < stretches.size() && !stays(stretches[to])) {
      ++to;
    }
    const auto first = std::find_if(stretches.begin() + static_cast<std::ptrdiff_t>(from),
                                    stretches.begin() + static_cast<std::ptrdiff_t>(to), passes);
    if (first != stretches.begin() + static_cast<std::ptrdiff_t>(to)) {
      Stretch over = *first;
      for (size_t i = from; i < to; ++i) {
        over = passes(stretches[i]) ? stretches[i] : over;
        stretches[i].cause = over.cause;
        stretches[i].index = over.index;
      }
    }
    from = to + 1;
  }
  return stretches;
}

class IdleCauses {
 public:
  IdleCauses(const SimulationResult& result, const PipelineCosts& costs)
      : result_(result),
        costs_(costs),
        last_ns_(result.iteration_ns - costs.epilogue_ns),
        stretches_(Stretches(LongestChain(result, costs), result.iteration_ns)) {}

  DeviceTime OfDevice(size_t device) {
    idle_.clear();
    const std::vector<ActionTiming>& lane = result_.timeline[device];
    const Interval steady = SteadyPhase(lane);
    DeviceTime time;
    time.steady_ns = steady.end_ns - steady.begin_ns;
    int64_t free_ns = 0;
    for (size_t position = 0; position <= lane.size(); ++position) {
      const bool after_all = position == lane.size();
      const Interval gap{free_ns, after_all ? last_ns_ : lane[position].start_ns};
      Add(IdleCause::kWarmUp, 0, gap.Clip(0, steady.begin_ns));
      Add(IdleCause::kDrain, 0, gap.Clip(steady.end_ns, last_ns_));
      Blame(gap.Clip(steady.begin_ns, steady.end_ns));
      if (!after_all) {
        time.busy_ns += lane[position].end_ns - lane[position].start_ns;
        free_ns = lane[position].end_ns;
      }
    }
    Add(IdleCause::kEpilogue, 0, {last_ns_, result_.iteration_ns});
    for (const auto& [key, ns] : idle_) {
      time.idle.push_back({key.first, key.second, ns});
    }
    std::stable_sort(time.idle.begin(), time.idle.end(),
                     [](const IdleTime& a, const IdleTime& b) { return a.ns > b.ns; });
    return time;
  }

 private:
  Interval SteadyPhase(const std::vector<ActionTiming>& lane) const {
    Interval steady{last_ns_, 0};
    for (const ActionTiming& timing : lane) {
      if (timing.action.kind == ActionKind::kForward) {
        steady.end_ns = timing.end_ns;
      } else {
        steady.begin_ns = std::min(steady.begin_ns, timing.start_ns);
      }
    }
    steady.end_ns = std::max(steady.begin_ns, steady.end_ns);
    return steady;
  }

  void Add(IdleCause cause, int32_t index, Interval interval) {
    if (!interval.empty()) {
      idle_[{cause, index}] += interval.end_ns - interval.begin_ns;
    }
  }

  // Attributes idle time in the steady phase to the place of the chain meanwhile.
  void Blame(Interval gap) {
    auto stretch = std::upper_bound(stretches_.begin(), stretches_.end(), gap.begin_ns,
                                    [](int64_t ns, const Stretch& of) { return ns < of.end_ns; });
    for (; stretch != stretches_.end() && stretch->begin_ns < gap.end_ns; ++stretch) {
      Add(stretch->cause, stretch->index, gap.Clip(stretch->begin_ns, stretch->end_ns));
    }
  }

  const SimulationResult& result_;
  const PipelineCosts& costs_;
  const int64_t last_ns_;  // end of the last action
  const std::vector<Stretch> stretches_;
  std::map<std::pair<IdleCause, int32_t>, int64_t> idle_;
};

}  // namespace

std::vector<DeviceTime> FindIdleCauses(const SimulationResult& result, const PipelineCosts& costs) {
  IdleCauses causes(result, costs);
  std::vector<DeviceTime> times;
  for (size_t device = 0; device < result.timeline.size(); ++device) {
    times.push_back(causes.OfDevice(device));
  }
  return times;
}

}  // namespace geopipe
