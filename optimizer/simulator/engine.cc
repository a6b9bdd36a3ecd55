// How it works. Every device runs its list as far as it can; a device whose input is not made yet sleeps until the
// device that makes it wakes it up. As long as every link FIFO is entered in a known order (by one device after the
// other), start = max(device free, input arrived) needs no clock that all devices share: each action is visited once,
// with no event queue and no allocation.
//
// Where entries of several devices meet in one FIFO (or receivers decide, with rendezvous), their order matters. Such
// entries wait in a heap until no device can go on; then the earliest is safe to take, because whatever it sets off
// ends later. "Earlier" at one instant follows the normative order: an instant consists of rounds (ends, link entries,
// arrivals, starts), of which there is more than one only when actions of no duration start and end in it; so an entry
// is ordered by (instant, round, producing device).
#include "optimizer/simulator/engine.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "optimizer/schedule/dependencies.h"
#include "optimizer/simulator/routes.h"

namespace geopipe {
namespace {

// Time where rounds make no difference.
struct PlainTime {
  int64_t ns = 0;

  PlainTime After(int64_t duration_ns) const { return {ns + duration_ns}; }
  PlainTime Until(int64_t later_ns) const { return {later_ns}; }
  friend bool operator==(const PlainTime&, const PlainTime&) = default;
  friend bool operator<(const PlainTime& a, const PlainTime& b) { return a.ns < b.ns; }
};

// Time with the round of the instant.
struct RoundTime {
  int64_t ns = 0;
  int64_t round = 0;

  // The end of an action that starts here.
  RoundTime After(int64_t duration_ns) const {
    return duration_ns == 0 ? RoundTime{ns, round + 1} : RoundTime{ns + duration_ns, 0};
  }
  // The arrival of a message that enters its link here. REQUIRES: later_ns >= ns.
  RoundTime Until(int64_t later_ns) const { return later_ns == ns ? *this : RoundTime{later_ns, 0}; }
  friend bool operator==(const RoundTime&, const RoundTime&) = default;
  friend bool operator<(const RoundTime& a, const RoundTime& b) {
    return a.ns < b.ns || (a.ns == b.ns && a.round < b.round);
  }
};

template <class Time>
class Engine {
 public:
  Engine(const Schedule& schedule, const PipelineCosts& costs, OperationTable table, bool record,
         SimulationResult& result)
      : schedule_(schedule),
        costs_(costs),
        table_(std::move(table)),
        record_(record),
        rendezvous_(costs.comm == CommMode::kRendezvous),
        blocking_(costs.comm == CommMode::kBlocking),
        outputs_(schedule.shape),
        result_(result),
        made_(static_cast<size_t>(outputs_.size()), kNotMade),
        devices_(schedule.devices.size()),
        fifo_free_ns_(static_cast<size_t>(table_.fifo_count), 0) {}

  absl::Status Run() {
    const auto device_count = static_cast<int32_t>(devices_.size());
    if (record_) {
      result_.timeline.resize(devices_.size());
      for (int32_t device = 0; device < device_count; ++device) {
        result_.timeline[device].reserve(schedule_.devices[device].size());
      }
    }
    runnable_.reserve(devices_.size());
    for (int32_t device = device_count - 1; device >= 0; --device) {
      runnable_.push_back(device);
    }
    RunRunnable();
    if constexpr (kOrdersEntries) {
      while (!entries_.empty()) {
        const Entry entry = entries_.top();
        entries_.pop();
        TakeEntry(entry);
        RunRunnable();
      }
    }
    return Finish();
  }

 private:
  static constexpr bool kOrdersEntries = std::is_same_v<Time, RoundTime>;
  static constexpr Time kNotMade{-1};

  struct Device {
    Time free;
    int64_t position = 0;
    int64_t waits_for = kNoInput;  // output whose making wakes the device up
    int64_t busy_ns = 0;
    int64_t last_end_ns = 0;
    bool transferred = false;  // rendezvous: the input of the next action has been through its link
  };

  // A message that wants to enter an unordered FIFO.
  struct Entry {
    Time at;
    Time ready;
    const Route* route = nullptr;
    int64_t output = 0;

    // Several messages of one producing device at one instant (rendezvous): in the order in which they were made.
    friend bool operator>(const Entry& a, const Entry& b) {
      return std::tie(a.at, a.route->producer, a.ready) > std::tie(b.at, b.route->producer, b.ready);
    }
  };

  void RunRunnable() {
    while (!runnable_.empty()) {
      const int32_t device = runnable_.back();
      runnable_.pop_back();
      RunDevice(device);
    }
  }

  // Runs the device until it has to wait or has finished.
  void RunDevice(int32_t index) {
    Device device = devices_[index];
    device.waits_for = kNoInput;
    const std::vector<Action>& actions = schedule_.devices[index];
    const auto count = std::ssize(actions);
    for (; device.position < count; ++device.position) {
      const Action& action = actions[device.position];
      if (!IsCompute(action.kind)) {
        continue;
      }
      const Operation& operation = table_.operations[action.stage * kComputeKinds + static_cast<size_t>(action.kind)];
      Time start = device.free;
      if (operation.input_base >= 0 && !Receive(operation, action.micro_batch, device, start)) {
        break;
      }
      const Time end = start.After(operation.duration_ns);
      device.free = end;
      device.last_end_ns = end.ns;
      device.busy_ns += operation.duration_ns;
      if (record_) {
        result_.timeline[index].push_back({action, start.ns, end.ns});
      }
      if (operation.output_base >= 0 && !Send(operation, action.micro_batch, device)) {
        ++device.position;
        break;
      }
    }
    devices_[index] = device;
  }

  // Moves `start` to where the input has arrived; false if the device has to wait for it.
  bool Receive(const Operation& operation, int32_t micro_batch, Device& device, Time& start) {
    const int64_t input = operation.input_base + micro_batch;
    Time arrived = made_[input];
    if (arrived == kNotMade) {
      device.waits_for = input;
      return false;
    }
    if (rendezvous_ && operation.input.fifo != kNoFifo) {
      const Time at = std::max(arrived, device.free);
      if (operation.input.ordered) {
        arrived = Transfer(operation.input, input, arrived, at);
      } else if (!device.transferred) {
        PushEntry(Entry{at, arrived, &operation.input, input});
        return false;
      }
      device.transferred = false;
    }
    start = std::max(start, arrived);
    return true;
  }

  // Sends the output that `device` has just made; false if the device is held until its message is in order.
  bool Send(const Operation& operation, int32_t micro_batch, Device& device) {
    const int64_t output = operation.output_base + micro_batch;
    const Route& route = operation.output;
    Time arrival = device.free;
    if (!rendezvous_ && route.fifo != kNoFifo) {
      if (!route.ordered) {
        PushEntry(Entry{device.free, device.free, &route, output});
        return !blocking_;
      }
      arrival = Transfer(route, output, device.free, device.free);
      if (blocking_) {
        device.free = arrival.Until(arrival.ns + route.acknowledgement_ns);
      }
    }
    Make(output, arrival, route.consumer);
    return true;
  }

  void Make(int64_t output, Time time, int32_t consumer) {
    made_[output] = time;
    if (consumer != kNoDevice && devices_[consumer].waits_for == output) {
      devices_[consumer].waits_for = kNoInput;
      runnable_.push_back(consumer);
    }
  }

  // The arrival of a message that joins the FIFO at `at`.
  Time Transfer(const Route& route, int64_t output, Time ready, Time at) {
    const int64_t enter_ns = std::max(at.ns, fifo_free_ns_[route.fifo]);
    fifo_free_ns_[route.fifo] = enter_ns + route.serialization_ns;
    const int64_t arrive_ns = enter_ns + route.serialization_ns + route.latency_ns;
    if (record_) {
      const ActionKind kind = outputs_.IsBackward(output) ? ActionKind::kSendBackward : ActionKind::kSendForward;
      result_.messages.push_back(
          {Action{outputs_.Chunk(output), kind, outputs_.MicroBatch(output)}, ready.ns, enter_ns, arrive_ns});
    }
    return at.Until(arrive_ns);
  }

  void PushEntry(const Entry& entry) {
    if constexpr (kOrdersEntries) {
      entries_.push(entry);
    }
  }

  void TakeEntry(const Entry& entry) {
    const Route& route = *entry.route;
    const Time arrival = Transfer(route, entry.output, entry.ready, entry.at);
    if (rendezvous_) {
      made_[entry.output] = arrival;
      devices_[route.consumer].transferred = true;
      runnable_.push_back(route.consumer);
      return;
    }
    Make(entry.output, arrival, route.consumer);
    if (blocking_) {
      devices_[route.producer].free = arrival.Until(arrival.ns + route.acknowledgement_ns);
      runnable_.push_back(route.producer);
    }
  }

  absl::Status Finish() {
    std::vector<int64_t> positions(devices_.size());
    bool finished = true;
    for (size_t device = 0; device < devices_.size(); ++device) {
      positions[device] = devices_[device].position;
      finished = finished && positions[device] == std::ssize(schedule_.devices[device]);
      result_.iteration_ns = std::max(result_.iteration_ns, devices_[device].last_end_ns);
      result_.busy_ns.push_back(devices_[device].busy_ns);
    }
    if (!finished) {
      return absl::FailedPreconditionError(DescribeDeadlock(schedule_, positions));
    }
    const auto key = [this](const MessageTiming& message) {
      return std::tuple(message.enter_ns, costs_.shape.placement[message.send.stage], message.ready_ns);
    };
    std::stable_sort(result_.messages.begin(), result_.messages.end(),
                     [&key](const MessageTiming& a, const MessageTiming& b) { return key(a) < key(b); });
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const PipelineCosts& costs_;
  const OperationTable table_;
  const bool record_;
  const bool rendezvous_;
  const bool blocking_;
  const OutputTable outputs_;
  SimulationResult& result_;

  // [output]: when it is with the device that needs it; with rendezvous, until its transfer, when it was made.
  std::vector<Time> made_;
  std::vector<Device> devices_;
  std::vector<int64_t> fifo_free_ns_;  // [fifo]: when the last message that entered has left the sender
  std::vector<int32_t> runnable_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
};

}  // namespace

absl::Status RunEngine(const Schedule& schedule, const PipelineCosts& costs, bool record, SimulationResult& result) {
  OperationTable table = BuildOperations(costs);
  if (table.all_ordered) {
    return Engine<PlainTime>(schedule, costs, std::move(table), record, result).Run();
  }
  return Engine<RoundTime>(schedule, costs, std::move(table), record, result).Run();
}

}  // namespace geopipe
