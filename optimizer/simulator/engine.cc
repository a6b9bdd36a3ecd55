// The engine runs every device's list as far as it can, until an input is not made yet. As long as every link FIFO is
// entered in a known order (by one device after the other), start = max(device free, input arrived) needs no clock that
// all devices share: each action is visited once, with no event queue and no allocation.
//
// The order of devices does not matter then. Sweeps over all devices, the last one first because backwards come from
// there, are the quickest way while they find actions to run: in a steady schedule each visit finds the same few. If
// they do not, a device that has to wait sleeps until the device that makes its input wakes it up, so that the time
// stays linear in the number of actions whatever the schedule.
//
// If entries of several devices meet in one FIFO (or receivers decide, with rendezvous), their order matters. Such
// entries wait in a heap until no device can proceed; then the earliest is safe to take, because all that it triggers
// ends later. "Earlier" at one instant follows the normative order: an instant consists of rounds (ends, link entries,
// arrivals, starts), of which there is more than one only when actions of no duration start and end in it; so an entry
// is ordered by (instant, round, producing device).
//
// Runs follow each other on one clock: outputs made before a run began count as not made. So memory need not be cleared
// between two runs.
#include "optimizer/simulator/engine.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "optimizer/simulator/engine_time.h"
#include "optimizer/simulator/routes.h"

namespace geopipe {
namespace {

// Latest start of a run; one that would start later starts at 0, with no outputs made.
constexpr int64_t kLatestBeginNs = int64_t{1} << 61;

// Visits per device that sweeps may waste, at the beginning and later, before devices are woken up instead.
constexpr int64_t kSweepCredit = 8;
constexpr int64_t kMaxSweepCredit = 64;

// kOrders: some FIFO is not ordered. Time is RoundTime only then, and only where an action has no duration.
template <class Time, bool kOrders, CommMode kComm>
class EngineOf : public Engine {
 public:
  EngineOf(const PipelineCosts& costs, OperationTable table)
      : table_(std::move(table)),
        placement_(costs.shape.placement),
        stages_(costs.shape.stages),
        micro_batches_(costs.shape.micro_batches),
        columns_(2 * int64_t{costs.shape.stages}),
        made_(static_cast<size_t>(columns_ * costs.shape.micro_batches), Time{-1}),
        devices_(static_cast<size_t>(costs.shape.devices)),
        waits_for_(devices_.size()),
        outcomes_(devices_.size()),
        fifo_free_ns_(static_cast<size_t>(table_.fifo_count)) {
    runnable_.reserve(devices_.size());
  }

  End Run(const Schedule& schedule, SimulationResult* record) override {
    Begin(schedule);
    if (record == nullptr) {
      RunAll<false>();
    } else {
      record_ = record;
      record->timeline.resize(devices_.size());
      for (size_t device = 0; device < devices_.size(); ++device) {
        record->timeline[device].reserve(schedule.devices[device].size());
      }
      RunAll<true>();
      SortMessages(record->messages);
    }
    return Finish(schedule);
  }

  std::span<const DeviceOutcome> outcomes() const override { return outcomes_; }

 private:
  static constexpr bool kRendezvous = kComm == CommMode::kRendezvous;
  static constexpr bool kBlocking = kComm == CommMode::kBlocking;
  static constexpr int64_t kNothing = -1;

  struct Device {
    const Action* next = nullptr;
    const Action* end = nullptr;
    Time free;
    int64_t busy_ns = 0;
    int64_t bytes = 0;
    int64_t peak_bytes = 0;
    int64_t last_end_ns = 0;
    bool transferred = false;  // rendezvous: the input of the next action has been through its link
  };

  // A message that wants to enter an unordered FIFO.
  struct Entry {
    Time at;
    Time ready;
    const Route* route = nullptr;
    int64_t output = 0;

    // Messages of one producing device at one instant (rendezvous) enter in the order in which they were made.
    friend bool operator>(const Entry& a, const Entry& b) {
      return std::tie(a.at, a.route->producer, a.ready) > std::tie(b.at, b.route->producer, b.ready);
    }
  };

  void Begin(const Schedule& schedule) {
    if (begin_ns_ > kLatestBeginNs) {
      std::fill(made_.begin(), made_.end(), Time{-1});
      begin_ns_ = 0;
    }
    std::fill(fifo_free_ns_.begin(), fifo_free_ns_.end(), begin_ns_);
    std::fill(waits_for_.begin(), waits_for_.end(), kNothing);
    bad_action_ = false;
    runnable_.clear();
    entries_.clear();
    for (size_t device = 0; device < devices_.size(); ++device) {
      const std::vector<Action>& actions = schedule.devices[device];
      devices_[device] = Device{.next = actions.data(), .end = actions.data() + actions.size(), .free = {begin_ns_}};
      devices_[device].last_end_ns = begin_ns_;
    }
  }

  template <bool kRecord>
  void RunAll() {
    if constexpr (kOrders) {
      for (size_t device = devices_.size(); device-- > 0;) {
        runnable_.push_back(static_cast<int32_t>(device));
      }
    } else {
      Sweep<kRecord>();
    }
    RunRunnable<kRecord>();
    if constexpr (kOrders) {
      while (!entries_.empty() && !bad_action_) {
        std::pop_heap(entries_.begin(), entries_.end(), std::greater<>());
        const Entry entry = entries_.back();
        entries_.pop_back();
        TakeEntry<kRecord>(entry);
        RunRunnable<kRecord>();
      }
    }
  }

  // Sweeps until no device proceeds, or the visits that found nothing to run outnumber the actions by too much; then
  // devices that can proceed become runnable.
  template <bool kRecord>
  void Sweep() {
    int64_t credit = kSweepCredit * std::ssize(devices_);
    bool got_on = true;
    while (got_on && credit > 0 && !bad_action_) {
      got_on = false;
      for (int32_t index = static_cast<int32_t>(devices_.size()) - 1; index >= 0; --index) {
        const Action* const before = devices_[index].next;
        RunDevice<kRecord, false>(index);
        const int64_t actions = devices_[index].next - before;
        got_on = got_on || actions > 0;
        credit = std::min(credit + actions - 1, kMaxSweepCredit * std::ssize(devices_));
      }
    }
    for (size_t index = 0; got_on && index < devices_.size(); ++index) {
      if (waits_for_[index] != kNothing && made_[waits_for_[index]].ns >= begin_ns_) {
        runnable_.push_back(static_cast<int32_t>(index));
      }
    }
  }

  template <bool kRecord>
  void RunRunnable() {
    while (!runnable_.empty()) {
      const int32_t device = runnable_.back();
      runnable_.pop_back();
      RunDevice<kRecord, true>(device);
    }
  }

  // Runs the device until it has to wait or has finished.
  template <bool kRecord, bool kWake>
  void RunDevice(int32_t index) {
    Device device = devices_[index];
    waits_for_[index] = kNothing;
    for (; device.next != device.end; ++device.next) {
      const Action action = *device.next;
      // One comparison per bound: negative numbers wrap to large ones.
      if (static_cast<uint32_t>(action.stage) >= stages_ ||
          static_cast<uint32_t>(action.micro_batch) >= micro_batches_) {
        bad_action_ = true;
        break;
      }
      const size_t kind = IsCompute(action.kind) ? static_cast<size_t>(action.kind) : 0;
      const Operation& operation = table_.operations[action.stage * kComputeKinds + kind];
      if (operation.device != index) {
        bad_action_ = true;
        break;
      }
      if (!IsCompute(action.kind)) {
        continue;
      }
      const int64_t row = action.micro_batch * columns_;
      Time start = device.free;
      if (operation.input >= 0 && !Receive<kRecord>(row + operation.input, operation.input, index, device, start)) {
        break;
      }
      const Time end = start.After(operation.duration_ns);
      device.free = end;
      device.last_end_ns = end.ns;
      device.busy_ns += operation.duration_ns;
      device.bytes += operation.bytes;
      device.peak_bytes = std::max(device.peak_bytes, device.bytes);
      if constexpr (kRecord) {
        record_->timeline[index].push_back({action, start.ns - begin_ns_, end.ns - begin_ns_});
      }
      if (operation.output >= 0 && !Send<kRecord, kWake>(operation, row + operation.output, device)) {
        ++device.next;
        break;
      }
    }
    devices_[index] = device;
  }

  // Moves `start` to where the input has arrived; false if the device has to wait for it.
  template <bool kRecord>
  bool Receive(int64_t input, int32_t column, int32_t index, Device& device, Time& start) {
    Time arrived = made_[input];
    if (arrived.ns < begin_ns_) {
      waits_for_[index] = input;
      return false;
    }
    if constexpr (kRendezvous) {
      const Route& route = table_.routes[column];
      if (route.fifo != kNoFifo) {
        const Time at = std::max(arrived, device.free);
        if (route.ordered) {
          arrived = Transfer<kRecord>(route, input, arrived, at);
        } else if (!device.transferred) {
          PushEntry(Entry{at, arrived, &route, input});
          return false;
        }
        device.transferred = false;
      }
    }
    start = start < arrived ? arrived : start;
    return true;
  }

  // Sends the output that `device` has just made; false if the device is held until its message is in order.
  template <bool kRecord, bool kWake>
  bool Send(const Operation& operation, int64_t output, Device& device) {
    Time arrival = device.free;
    if (!kRendezvous && operation.fifo != kNoFifo) {
      if (kOrders && !operation.ordered) {
        PushEntry(Entry{device.free, device.free, &table_.routes[operation.output], output});
        return !kBlocking;
      }
      arrival = Transfer<kRecord>(operation, output, device.free, device.free);
      if constexpr (kBlocking) {
        device.free = arrival.Until(arrival.ns + table_.routes[operation.output].acknowledgement_ns);
      }
    }
    Make<kWake>(output, arrival, operation.consumer);
    return true;
  }

  template <bool kWake>
  void Make(int64_t output, Time time, int32_t consumer) {
    made_[output] = time;
    if constexpr (kWake) {
      if (consumer != kNoDevice && waits_for_[consumer] == output) {
        waits_for_[consumer] = kNothing;
        runnable_.push_back(consumer);
      }
    }
  }

  // The arrival of a message that joins the FIFO of `by`, a Route or an Operation, at `at`.
  template <bool kRecord, class By>
  Time Transfer(const By& by, int64_t output, Time ready, Time at) {
    int64_t& free_ns = fifo_free_ns_[by.fifo];
    const int64_t enter_ns = std::max(at.ns, free_ns);
    free_ns = enter_ns + by.serialization_ns;
    const int64_t arrive_ns = free_ns + by.latency_ns;
    if constexpr (kRecord) {
      const auto column = static_cast<int32_t>(output % columns_);
      const bool backward = column >= static_cast<int32_t>(stages_);
      const Action send{backward ? column - static_cast<int32_t>(stages_) : column,
                        backward ? ActionKind::kSendBackward : ActionKind::kSendForward,
                        static_cast<int32_t>(output / columns_)};
      record_->messages.push_back({send, ready.ns - begin_ns_, enter_ns - begin_ns_, arrive_ns - begin_ns_});
    }
    return at.Until(arrive_ns);
  }

  void PushEntry(const Entry& entry) {
    if constexpr (kOrders) {
      entries_.push_back(entry);
      std::push_heap(entries_.begin(), entries_.end(), std::greater<>());
    }
  }

  template <bool kRecord>
  void TakeEntry(const Entry& entry) {
    const Route& route = *entry.route;
    const Time arrival = Transfer<kRecord>(route, entry.output, entry.ready, entry.at);
    if constexpr (kRendezvous) {
      made_[entry.output] = arrival;
      devices_[route.consumer].transferred = true;
      runnable_.push_back(route.consumer);
      return;
    }
    Make<true>(entry.output, arrival, route.consumer);
    if constexpr (kBlocking) {
      devices_[route.producer].free = arrival.Until(arrival.ns + route.acknowledgement_ns);
      runnable_.push_back(route.producer);
    }
  }

  void SortMessages(std::vector<MessageTiming>& messages) const {
    const auto key = [this](const MessageTiming& message) {
      return std::tuple(message.enter_ns, placement_[message.send.stage], message.ready_ns);
    };
    std::stable_sort(messages.begin(), messages.end(),
                     [&key](const MessageTiming& a, const MessageTiming& b) { return key(a) < key(b); });
  }

  End Finish(const Schedule& schedule) {
    bool finished = true;
    int64_t latest_ns = begin_ns_;
    for (size_t index = 0; index < devices_.size(); ++index) {
      const Device& device = devices_[index];
      finished = finished && device.next == device.end;
      outcomes_[index] = {.position = device.next - schedule.devices[index].data(),
                          .busy_ns = device.busy_ns,
                          .peak_bytes = device.peak_bytes,
                          .last_end_ns = device.last_end_ns - begin_ns_};
      latest_ns = std::max(latest_ns, device.free.ns);
    }
    // No message can arrive later than this.
    for (const int64_t free_ns : fifo_free_ns_) {
      latest_ns = std::max(latest_ns, free_ns + table_.longest_latency_ns);
    }
    begin_ns_ = latest_ns + 1;
    if (bad_action_) {
      return End::kBadAction;
    }
    return finished ? End::kFinished : End::kStuck;
  }

  const OperationTable table_;
  const std::vector<int32_t> placement_;
  const uint32_t stages_;
  const uint32_t micro_batches_;
  const int64_t columns_;

  // [micro-batch * columns + column]: time at which the output is with the device that needs it; with rendezvous, until
  // its transfer, time at which it was made. Before begin_ns_: not made.
  std::vector<Time> made_;
  std::vector<Device> devices_;
  std::vector<int64_t> waits_for_;  // [device]: the output whose making wakes it up
  std::vector<DeviceOutcome> outcomes_;
  std::vector<int64_t> fifo_free_ns_;  // [fifo]: when the last message that entered has left the sender
  std::vector<int32_t> runnable_;
  std::vector<Entry> entries_;  // a heap, the earliest first
  SimulationResult* record_ = nullptr;
  int64_t begin_ns_ = 0;
  bool bad_action_ = false;
};

template <class Time, bool kOrders>
std::unique_ptr<Engine> MakeEngineOf(const PipelineCosts& costs, OperationTable table) {
  switch (costs.comm) {
    case CommMode::kNonBlocking:
      return std::make_unique<EngineOf<Time, kOrders, CommMode::kNonBlocking>>(costs, std::move(table));
    case CommMode::kBlocking:
      return std::make_unique<EngineOf<Time, kOrders, CommMode::kBlocking>>(costs, std::move(table));
    case CommMode::kRendezvous:
      break;
  }
  return std::make_unique<EngineOf<Time, kOrders, CommMode::kRendezvous>>(costs, std::move(table));
}

bool EveryActionLasts(const PipelineCosts& costs) {
  const auto lasts = [](int64_t duration_ns) { return duration_ns > 0; };
  return std::all_of(costs.forward_ns.begin(), costs.forward_ns.end(), lasts) &&
         std::all_of(costs.input_grad_ns.begin(), costs.input_grad_ns.end(), lasts) &&
         std::all_of(costs.weight_grad_ns.begin(), costs.weight_grad_ns.end(), lasts);
}

}  // namespace

std::unique_ptr<Engine> MakeEngine(const PipelineCosts& costs) {
  OperationTable table = BuildOperations(costs);
  if (table.all_ordered) {
    return MakeEngineOf<PlainTime, false>(costs, std::move(table));
  }
  return EveryActionLasts(costs) ? MakeEngineOf<PlainTime, true>(costs, std::move(table))
                                 : MakeEngineOf<RoundTime, true>(costs, std::move(table));
}

}  // namespace geopipe
