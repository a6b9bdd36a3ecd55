#include "optimizer/scheduler/list_scheduler.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <tuple>

namespace geopipe {
namespace {

constexpr int64_t kUnknown = -1;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

ListScheduler::ListScheduler(const Instance& instance)
    : instance_(instance),
      deadlines_(instance),
      last_calls_(instance),
      reserve_bytes_(static_cast<size_t>(instance.stages), 0),
      arrival_ns_(instance.routes.size() * static_cast<size_t>(instance.micro_batches)),
      fifo_free_ns_(static_cast<size_t>(instance.fifo_count)),
      next_(instance.duration_ns.size()),
      devices_(static_cast<size_t>(instance.devices)),
      first_leaf_(std::bit_ceil(static_cast<size_t>(instance.devices))),
      wake_ns_(2 * first_leaf_, kNever),
      sequences_(static_cast<size_t>(instance.devices)) {
  last_calls_.Compute(0, std::vector<int64_t>(instance.duration_ns.size(), 0));
  for (const std::vector<int32_t>& stages : instance.stages_of) {
    int64_t reserve_bytes = 0;
    for (const int32_t stage : stages) {
      reserve_bytes = std::max(reserve_bytes, instance.memory_bytes[WorkOf(stage, Phase::kInput)]);
    }
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
      reserve_bytes_[*stage] = reserve_bytes;
      reserve_bytes += instance.memory_bytes[WorkOf(*stage, Phase::kForward)];
    }
  }
}

void ListScheduler::Reset(const ListOptions& options) {
  options_ = options;
  options_.earlier_ns.resize(instance_.duration_ns.size(), 0);
  deadlines_.Compute(options.target_ns, options_.earlier_ns);
  std::fill(arrival_ns_.begin(), arrival_ns_.end(), kUnknown);
  std::fill(fifo_free_ns_.begin(), fifo_free_ns_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(wake_ns_.begin(), wake_ns_.end(), kNever);
  ended_ = 0;
  too_late_ = false;
  for (int32_t device = 0; device < instance_.devices; ++device) {
    devices_[device] = Device{};
    devices_[device].left_ns = instance_.micro_batches * instance_.DeviceWorkNs(device);
    sequences_[device].clear();
  }
}

bool ListScheduler::Build(const ListOptions& options) {
  Reset(options);
  for (int32_t device = 0; device < instance_.devices; ++device) {
    Decide(device, 0);
  }
  while (wake_ns_[1] < kNever && !too_late_) {
    const int64_t now_ns = wake_ns_[1];
    awake_.clear();
    while (wake_ns_[1] == now_ns) {
      const int32_t device = NextAwake();
      SetWake(device, kNever);
      awake_.push_back(device);
      if (devices_[device].busy) {
        End(device, now_ns);
      }
    }
    for (const int32_t device : awake_) {
      if (!devices_[device].busy) {
        Decide(device, now_ns);
      }
    }
  }
  return !too_late_ && ended_ == instance_.ActionCount();
}

void ListScheduler::SetWake(int32_t device, int64_t at_ns) {
  size_t node = first_leaf_ + static_cast<size_t>(device);
  wake_ns_[node] = at_ns;
  for (node /= 2; node > 0; node /= 2) {
    wake_ns_[node] = std::min(wake_ns_[2 * node], wake_ns_[2 * node + 1]);
  }
}

// The first of the devices that wake first.
int32_t ListScheduler::NextAwake() const {
  size_t node = 1;
  while (node < first_leaf_) {
    node *= 2;
    node += wake_ns_[node] == wake_ns_[1] ? 0 : 1;
  }
  return static_cast<int32_t>(node - first_leaf_);
}

// Wakes a device for an arrival, unless it is busy: then it decides when it ends its action.
void ListScheduler::Arrive(int32_t device, int64_t at_ns) {
  if (!devices_[device].busy && at_ns < WakeNs(device)) {
    SetWake(device, at_ns);
  }
}

void ListScheduler::AddCandidate(WorkIndex work, int64_t ready_ns, int64_t latest_ns, int64_t now_ns) {
  if (ready_ns <= now_ns) {
    ready_.push_back({work, now_ns, latest_ns});
  } else {
    coming_.push_back({work, ready_ns, latest_ns});
  }
}

// Finds the actions that memory allows and whose input is there, or on its way with a known arrival.
void ListScheduler::FindCandidates(int32_t device, int64_t now_ns) {
  ready_.clear();
  coming_.clear();
  const int64_t room_bytes = instance_.room_bytes[device] - devices_[device].bytes;
  int64_t barred_latest_ns = kNever;  // of an F or I that only memory keeps from running
  for (const int32_t stage : instance_.stages_of[device]) {
    const WorkIndex forward = WorkOf(stage, Phase::kForward);
    const WorkIndex input = WorkOf(stage, Phase::kInput);
    if (const int32_t j = next_[forward];
        j < instance_.micro_batches && j - next_[input] < instance_.most_in_flight[stage]) {
      const int32_t source = instance_.input[forward];
      const int64_t ready_ns = source == kNoOutput ? now_ns : arrival_ns_[instance_.Index(source, j)];
      const int64_t latest_ns = deadlines_.LatestStartNs(forward, j);
      if (ready_ns != kUnknown && instance_.memory_bytes[forward] + reserve_bytes_[stage] <= room_bytes) {
        AddCandidate(forward, ready_ns, latest_ns, now_ns);
      } else if (ready_ns != kUnknown) {
        barred_latest_ns = std::min(barred_latest_ns, latest_ns);
      }
    }
    if (const int32_t j = next_[input]; j < next_[forward]) {
      const int64_t ready_ns = arrival_ns_[instance_.Index(instance_.input[input], j)];
      const int64_t latest_ns = deadlines_.LatestStartNs(input, j);
      if (ready_ns != kUnknown && instance_.memory_bytes[input] <= room_bytes) {
        AddCandidate(input, ready_ns, latest_ns, now_ns);
      } else if (ready_ns != kUnknown) {
        barred_latest_ns = std::min(barred_latest_ns, latest_ns);
      }
    }
  }
  if (!instance_.split) {
    return;
  }
  for (const int32_t stage : instance_.stages_of[device]) {
    const WorkIndex weight = WorkOf(stage, Phase::kWeight);
    const int32_t j = next_[weight];
    if (j < next_[WorkOf(stage, Phase::kInput)]) {
      // All remaining W have to run; one that makes room is as urgent as the action that waits for the room.
      const int64_t duration_ns = instance_.duration_ns[weight];
      const int64_t latest_ns = options_.target_ns - (instance_.micro_batches - j) * duration_ns;
      const int64_t room_latest_ns = barred_latest_ns == kNever ? kNever : barred_latest_ns - duration_ns;
      AddCandidate(weight, now_ns, std::min(latest_ns, room_latest_ns), now_ns);
    }
  }
}

// True when waiting for `coming` is better than running `ready` and being late for it. `slack_ns`: time that the device
// may stand still and still end by the target.
bool ListScheduler::WaitsBetter(const Candidate& ready, const Candidate& coming, int64_t now_ns,
                                int64_t slack_ns) const {
  const int64_t end_ns = now_ns + instance_.duration_ns[ready.work];
  const int64_t coming_late_ns = std::max<int64_t>(0, end_ns - coming.latest_ns);
  if (coming.ready_ns >= end_ns || coming_late_ns == 0) {
    return false;
  }
  const int64_t idle_ns = coming.ready_ns - now_ns;
  const int64_t after_ns = coming.ready_ns + instance_.duration_ns[coming.work];
  const int64_t ready_late_ns = std::max<int64_t>(0, after_ns - ready.latest_ns);
  // Lateness that neither choice can avoid.
  const int64_t coming_anyway_ns = std::max<int64_t>(0, coming.ready_ns - coming.latest_ns);
  const int64_t ready_anyway_ns = std::max<int64_t>(0, now_ns - ready.latest_ns);
  if (options_.lookahead == Lookahead::kAddedLateness) {
    const int64_t lost_ns = std::max<int64_t>(0, idle_ns - std::max<int64_t>(0, slack_ns));
    return coming_late_ns - coming_anyway_ns > ready_late_ns - ready_anyway_ns + lost_ns;
  }
  const int64_t device_late_ns = std::max<int64_t>(0, idle_ns - slack_ns);
  return std::max(coming_late_ns, ready_anyway_ns) > std::max({ready_late_ns, coming_anyway_ns, device_late_ns});
}

void ListScheduler::Decide(int32_t device, int64_t now_ns) {
  FindCandidates(device, now_ns);
  std::sort(ready_.begin(), ready_.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.latest_ns, a.work) < std::tie(b.latest_ns, b.work);
  });
  const int64_t slack_ns = options_.target_ns - now_ns - devices_[device].left_ns;
  for (const Candidate& candidate : ready_) {
    const bool waits = std::any_of(coming_.begin(), coming_.end(), [&](const Candidate& coming) {
      return WaitsBetter(candidate, coming, now_ns, slack_ns);
    });
    if (!waits) {
      Start(device, candidate.work, now_ns);
      return;
    }
  }
  for (const Candidate& coming : coming_) {
    Arrive(device, coming.ready_ns);
  }
}

// True when actions that must follow the next one of this kind end after the limit.
bool ListScheduler::IsTooLate(int32_t device, WorkIndex work, int64_t now_ns) const {
  if (now_ns > options_.limit_ns - devices_[device].left_ns) {
    return true;
  }
  return PhaseOf(work) != Phase::kWeight && now_ns > options_.limit_ns + last_calls_.LatestStartNs(work, next_[work]);
}

void ListScheduler::Start(int32_t device, WorkIndex work, int64_t now_ns) {
  const int64_t end_ns = now_ns + instance_.duration_ns[work];
  too_late_ = too_late_ || IsTooLate(device, work, now_ns);
  const int32_t micro_batch = next_[work]++;
  sequences_[device].push_back(work);
  Device& state = devices_[device];
  state.busy = true;
  state.running = work;
  state.bytes += instance_.memory_bytes[work];
  state.left_ns -= instance_.duration_ns[work];
  SetWake(device, end_ns);
  const int32_t output = instance_.output[work];
  if (output == kNoOutput) {
    return;
  }
  const OutputRoute& route = instance_.routes[output];
  int64_t& arrival_ns = arrival_ns_[instance_.Index(output, micro_batch)];
  if (route.fifo < 0) {
    arrival_ns = end_ns;
  } else {
    const int64_t entry_ns = std::max(end_ns, fifo_free_ns_[route.fifo]);
    arrival_ns = entry_ns + route.delay_ns();
    if (!route.ordered) {
      return;  // another device's message may still come first
    }
    fifo_free_ns_[route.fifo] = entry_ns + route.serialization_ns;
  }
  Arrive(route.consumer, arrival_ns);
}

void ListScheduler::End(int32_t device, int64_t now_ns) {
  ++ended_;
  end_ns_ = now_ns;
  devices_[device].busy = false;
  const WorkIndex work = devices_[device].running;
  const int32_t output = instance_.output[work];
  if (output == kNoOutput) {
    return;
  }
  const OutputRoute& route = instance_.routes[output];
  if (route.fifo < 0 || route.ordered) {
    return;
  }
  const int64_t entry_ns = std::max(now_ns, fifo_free_ns_[route.fifo]);
  fifo_free_ns_[route.fifo] = entry_ns + route.serialization_ns;
  const int64_t arrival_ns = entry_ns + route.delay_ns();
  arrival_ns_[instance_.Index(output, next_[work] - 1)] = arrival_ns;
  Arrive(route.consumer, arrival_ns);
}

}  // namespace geopipe
