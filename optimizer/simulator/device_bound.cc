// The iteration lasts as long as a device works plus as long as it is idle: T = busy + idle. All of a device's work, m
// * S, has to be done, so each stretch of time in which the device provably cannot work all the time adds to the bound.
// Words: a micro-batch is *in flight* at stage x from the start of its F to the end of its I (a full backward B counts
// as I followed at once by W: it holds no less for no shorter). e, R, out, and the spacings f and g are those of
// StagePath. A(x) are the activations that a micro-batch in flight at x holds on the device of x: those of x and of the
// device's stages before x, whose I comes later.
//
// In flight. At most floor(capacity / A(c)) micro-batches are in flight at any stage c, and a micro-batch in flight at
// x is so at every c <= x: in_flight(x) is the least of them all.
//
// Fill. No I of x starts before t = e + R - T_I. Until the first one starts, x and the stages before it run forwards
// only, whose activations all stay, in memory and in flight; and stages after x work only for those micro-batches.
// Their work until t, `fill`, is limited by memory, and by the spacing f at which forwards come in. So t - fill is idle
// before t.
//
// Drain. The micro-batch of the last F of x is in flight for R, and then has its way out: no F of x starts within the
// last y = R + out. The device's work in that time, `drain`, must have been postponed at its beginning: the backward of
// micro-batches in flight and the W of others, all of which memory must hold; and F and I only before the way out of
// the device's first stage, each I one spacing g before the next. So y - drain is idle after T - y. If a micro-batch
// between I and W keeps more than one in flight, the one in a full backward does not.
//
// Both count if they do not overlap. They do not if more micro-batches exist than can be in flight (the last F then
// follows the first I), or if another bound says T >= t + y.
//
// Rounds. When the (k + n)-th F of x starts, n = floor(capacity / A(x)), at least k have left, the k-th to do so
// no earlier than R after the k-th F; if they are just k and memory cannot keep even one W of them besides, T_W later,
// and if they are more, T_I later. So n micro-batches take a round of Q = R + min(T_I, T_W) or R. Every n micro-batches
// between fill and drain, or before the one or after the other, cost Q instead of n * S where Q is longer.
//
// Area. Each micro-batch holds its activation for R at least, then the part that W needs for T_W at least: bytes * time
// of all of them, divided by the capacity, lies between the first F of the device and the end (activations: the way
// out).
//
// Blocking and rendezvous messages, shared links and their queues only make everything later.
#include "optimizer/simulator/device_bound.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace geopipe {
namespace {

constexpr size_t kMaxStages = 16;

// Memory that a micro-batch may take on a device, and the work that it leaves there.
struct Load {
  int64_t bytes = 0;
  int64_t work_ns = 0;
};

// The most work that fits, or more: takes of each load up to `count`, in fractions, into the greatest multiple of the
// sizes' greatest common divisor that fits; at most `all_ns`.
int64_t MostWorkNs(int64_t capacity_bytes, std::vector<Load> loads, int64_t count, int64_t all_ns) {
  std::erase_if(loads, [](const Load& load) { return load.work_ns == 0; });
  int64_t unit_bytes = 0;
  for (const Load& load : loads) {
    unit_bytes = std::gcd(unit_bytes, load.bytes);
  }
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return static_cast<__int128>(a.work_ns) * b.bytes > static_cast<__int128>(b.work_ns) * a.bytes;
  });
  int64_t left_bytes = unit_bytes == 0 ? 0 : capacity_bytes / unit_bytes * unit_bytes;
  __int128 work_ns = 0;
  for (const Load& load : loads) {
    if (load.bytes == 0 || left_bytes / load.bytes >= count) {
      work_ns += static_cast<__int128>(count) * load.work_ns;
      left_bytes -= count * load.bytes;
      continue;
    }
    work_ns += (static_cast<__int128>(left_bytes) * load.work_ns + load.bytes - 1) / load.bytes;
    break;
  }
  return work_ns < all_ns ? static_cast<int64_t>(work_ns) : all_ns;
}

// The most work within `window_ns` of `count` actions that start at its beginning at the earliest, one `spacing_ns`
// after the other. REQUIRES: spacing_ns >= duration_ns.
int64_t SpacedWorkNs(int64_t count, int64_t duration_ns, int64_t spacing_ns, int64_t window_ns) {
  if (duration_ns == 0 || window_ns <= 0) {
    return 0;
  }
  const int64_t whole = window_ns < duration_ns ? 0 : std::min(count, (window_ns - duration_ns) / spacing_ns + 1);
  const int64_t rest_ns = whole < count ? std::clamp<int64_t>(window_ns - whole * spacing_ns, 0, duration_ns) : 0;
  return whole * duration_ns + rest_ns;
}

// A stage on its device, and what follows from it for the device.
struct StageOnDevice {
  int64_t forward_ns = 0;
  int64_t input_grad_ns = 0;
  int64_t weight_grad_ns = 0;
  int64_t activation_bytes = 0;
  int64_t put_off_bytes = 0;  // between I and W
  int64_t kept_bytes = 0;     // of these no more than the activation, which a full backward holds as long
  StagePath path;
  int64_t held_bytes = 0;         // A(x)
  int64_t own_in_flight = 0;      // n: floor(capacity / A(x)), at most m
  int64_t in_flight = 0;          // least own_in_flight of all stages up to this one
  int64_t work_after_ns = 0;      // of one micro-batch in the stages of the device after this one
  int64_t first_backward_ns = 0;  // t
  int64_t tail_ns = 0;            // y
  int64_t round_ns = 0;           // Q
  int64_t held_fill_ns = 0;       // fill as memory and flight limit it, at any time
  int64_t fill_ns = 0;            // and until t
  int64_t held_drain_ns = 0;      // drain as memory and flight limit it, at any last F
  int64_t drain_ns = 0;           // and within y

  int64_t Work() const { return forward_ns + input_grad_ns + weight_grad_ns; }
};

struct Device {
  int64_t capacity_bytes = 0;  // beside the static part
  int64_t work_ns = 0;         // S
  std::vector<StageOnDevice> stages;
};

class DeviceBounds {
 public:
  DeviceBounds(const PipelineCosts& costs, const std::vector<StagePath>& paths, bool within_memory)
      : micro_batches_(costs.shape.micro_batches), within_memory_(within_memory) {
    devices_.resize(static_cast<size_t>(costs.shape.devices));
    int64_t in_flight = micro_batches_;
    for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
      const int32_t at = costs.shape.placement[stage];
      Device& device = devices_[at];
      StageOnDevice added = Stage(costs, stage);
      added.path = paths[stage];
      added.held_bytes = added.activation_bytes + (device.stages.empty() ? 0 : device.stages.back().held_bytes);
      device.capacity_bytes =
          within_memory ? costs.memory->capacity_bytes[at] - costs.memory->static_bytes[at] : int64_t{0};
      added.own_in_flight =
          added.held_bytes == 0 ? micro_batches_ : std::min(micro_batches_, device.capacity_bytes / added.held_bytes);
      in_flight = std::min(in_flight, added.own_in_flight);
      added.in_flight = in_flight;
      added.first_backward_ns = added.path.first_forward_ns + added.path.round_trip_ns - added.input_grad_ns;
      added.tail_ns = added.path.round_trip_ns + added.path.way_out_ns;
      const int64_t spare_bytes = device.capacity_bytes - added.own_in_flight * added.held_bytes;
      added.round_ns =
          added.path.round_trip_ns +
          (added.kept_bytes > spare_bytes ? std::min(added.input_grad_ns, added.weight_grad_ns) : int64_t{0});
      device.work_ns += added.Work();
      device.stages.push_back(added);
    }
    for (Device& device : devices_) {
      int64_t work_after_ns = 0;
      for (size_t i = device.stages.size(); i-- > 0;) {
        device.stages[i].work_after_ns = work_after_ns;
        work_after_ns += device.stages[i].Work();
      }
      for (const size_t i : Considered(device)) {
        Fill(device, i);
        Drain(device, i);
      }
    }
  }

  int64_t Bound() const {
    int64_t bound_ns = 0;
    for (const Device& device : devices_) {
      for (const size_t i : Considered(device)) {
        bound_ns = std::max({bound_ns, OneSided(device, device.stages[i]), Rounds(device.stages[i])});
      }
      bound_ns = std::max(bound_ns, Area(device));
    }
    for (const Device& device : devices_) {
      for (const size_t x : Considered(device)) {
        for (const size_t y : Considered(device)) {
          bound_ns = std::max(bound_ns, FillAndDrain(device, x, y, bound_ns));
        }
      }
    }
    return bound_ns;
  }

 private:
  // The stages that bounds are made of: of a device with very many, the first and the last ones, so that the work stays
  // linear.
  static std::vector<size_t> Considered(const Device& device) {
    std::vector<size_t> indices;
    for (size_t i = 0; i < device.stages.size(); ++i) {
      if (i < kMaxStages / 2 || i + kMaxStages / 2 >= device.stages.size()) {
        indices.push_back(i);
      }
    }
    return indices;
  }

  StageOnDevice Stage(const PipelineCosts& costs, int32_t index) const {
    StageOnDevice stage;
    stage.forward_ns = costs.forward_ns[index];
    stage.input_grad_ns = costs.input_grad_ns[index];
    stage.weight_grad_ns = costs.weight_grad_ns.empty() ? 0 : costs.weight_grad_ns[index];
    if (within_memory_) {
      stage.activation_bytes = costs.memory->activation_bytes[index];
      const bool splits = !costs.weight_grad_ns.empty();
      stage.put_off_bytes = splits ? costs.memory->wgrad_bytes[index] : 0;
      stage.kept_bytes = std::min(stage.activation_bytes, stage.put_off_bytes);
    }
    return stage;
  }

  void Fill(Device& device, size_t index) const {
    StageOnDevice& x = device.stages[index];
    // Memory limits the fill: a micro-batch that has come as far as stage c holds A(c).
    std::vector<Load> loads;
    int64_t forwards_ns = 0;
    int64_t spaced_ns = 0;
    int64_t counted_ns = 0;
    for (size_t c = 0; c <= index; ++c) {
      const StageOnDevice& stage = device.stages[c];
      forwards_ns += stage.forward_ns;
      loads.push_back({stage.held_bytes, forwards_ns + (c == index ? x.work_after_ns : 0)});
      counted_ns += stage.in_flight * stage.forward_ns;
      spaced_ns += SpacedWorkNs(stage.in_flight, stage.forward_ns, stage.path.forward_spacing_ns,
                                x.first_backward_ns - stage.path.first_forward_ns);
    }
    counted_ns += x.in_flight * x.work_after_ns;
    x.held_fill_ns = MostWorkNs(device.capacity_bytes, std::move(loads), micro_batches_, counted_ns);
    const int64_t spacing_ns = x.path.forward_spacing_ns;
    const int64_t window_ns = x.first_backward_ns - x.path.first_forward_ns;
    const int64_t begun = spacing_ns == 0 ? x.in_flight : std::min(x.in_flight, 1 + window_ns / spacing_ns);
    x.fill_ns = std::min({x.held_fill_ns, spaced_ns + begun * x.work_after_ns,
                          x.first_backward_ns - device.stages.front().path.first_forward_ns});
  }

  void Drain(Device& device, size_t index) const {
    StageOnDevice& x = device.stages[index];
    // F and I end before the way out of the device's first stage begins.
    const int64_t window_ns = x.tail_ns - device.stages.front().path.way_out_ns;
    if (device.stages.size() == 1) {
      const int64_t spacing_ns = x.path.backward_spacing_ns;
      const int64_t fit_in = spacing_ns == 0 ? x.in_flight : (window_ns + spacing_ns - 1) / spacing_ns;
      for (int64_t count = x.held_bytes == 0 ? x.in_flight : 0; count <= x.in_flight; ++count) {
        const int64_t weights_ns = x.weight_grad_ns * WeightGradients(device, x, count);
        x.held_drain_ns = std::max(x.held_drain_ns, x.forward_ns + count * x.input_grad_ns + weights_ns);
        const int64_t backwards_ns = SpacedWorkNs(std::min(count, fit_in), x.input_grad_ns, spacing_ns, window_ns);
        if (count <= fit_in || x.held_bytes == 0) {
          x.drain_ns = std::max(x.drain_ns, std::min(x.forward_ns + backwards_ns, window_ns) + weights_ns);
        }
      }
      x.drain_ns = std::min(x.drain_ns, x.tail_ns);
      return;
    }
    // A micro-batch is in flight at x and not yet through the stages after it, or in flight at a stage c < x only, for
    // A(c), or has only its W left.
    std::vector<Load> loads;
    std::vector<Load> weights;
    int64_t backwards_ns = 0;
    int64_t all_weights_ns = 0;
    int64_t in_full_ns = 0;  // W of a full backward
    for (size_t c = 0; c < device.stages.size(); ++c) {
      const StageOnDevice& stage = device.stages[c];
      all_weights_ns += stage.weight_grad_ns;
      in_full_ns =
          stage.put_off_bytes > stage.activation_bytes ? std::max(in_full_ns, stage.weight_grad_ns) : in_full_ns;
      if (c <= index) {
        backwards_ns += stage.input_grad_ns + stage.weight_grad_ns;
        loads.push_back({stage.held_bytes, backwards_ns + (c == index ? x.work_after_ns : 0)});
        weights.push_back({stage.held_bytes, all_weights_ns});
      }
      loads.push_back({stage.put_off_bytes, stage.weight_grad_ns});
      weights.push_back(loads.back());
    }
    weights.push_back({x.held_bytes, all_weights_ns});
    x.held_drain_ns =
        x.forward_ns + in_full_ns +
        MostWorkNs(device.capacity_bytes, std::move(loads), micro_batches_, micro_batches_ * device.work_ns);
    x.drain_ns = std::min(
        {x.held_drain_ns, x.tail_ns,
         window_ns + in_full_ns +
             MostWorkNs(device.capacity_bytes, std::move(weights), micro_batches_, micro_batches_ * all_weights_ns)});
  }

  // The most W that can still be ahead of the only stage of a device while `count` micro-batches are in flight.
  int64_t WeightGradients(const Device& device, const StageOnDevice& x, int64_t count) const {
    if (x.put_off_bytes == 0) {
      return micro_batches_;
    }
    const int64_t left_bytes = device.capacity_bytes - count * x.held_bytes;
    const bool has_full = x.put_off_bytes > x.activation_bytes && left_bytes >= x.activation_bytes;
    const int64_t alone =
        has_full ? 1 + (left_bytes - x.activation_bytes) / x.put_off_bytes : left_bytes / x.put_off_bytes;
    return std::min(micro_batches_, count + std::min(alone, micro_batches_));
  }

  // Fill with rounds after it, or rounds with drain after them.
  int64_t OneSided(const Device& device, const StageOnDevice& x) const {
    const int64_t begin_ns = device.stages.front().path.first_forward_ns;
    const int64_t all_ns = micro_batches_ * device.work_ns;
    const int64_t rounds = (micro_batches_ - 1) / x.own_in_flight;
    const int64_t rest_ns = all_ns - rounds * x.own_in_flight * device.work_ns;
    return std::max({x.first_backward_ns - x.fill_ns + all_ns, begin_ns + all_ns + x.tail_ns - x.drain_ns,
                     rest_ns - x.held_fill_ns + x.first_backward_ns + rounds * x.round_ns,
                     rest_ns - x.held_drain_ns + begin_ns + rounds * x.round_ns + x.tail_ns});
  }

  // Rounds alone, with the micro-batches of a broken round at their spacing before or after them.
  int64_t Rounds(const StageOnDevice& x) const {
    const int64_t rounds = (micro_batches_ - 1) / x.own_in_flight;
    const int64_t spacing_ns = std::max(x.path.forward_spacing_ns, x.path.backward_spacing_ns);
    const int64_t ends_ns = x.path.first_forward_ns + x.tail_ns;
    return ends_ns + std::max((micro_batches_ - 1) * spacing_ns,
                              rounds * x.round_ns + (micro_batches_ - 1 - rounds * x.own_in_flight) * spacing_ns);
  }

  // Fill of stage x and drain of stage y; for x = y with rounds between. 0 where they may overlap.
  int64_t FillAndDrain(const Device& device, size_t fill, size_t drain, int64_t known_ns) const {
    const StageOnDevice& x = device.stages[fill];
    const StageOnDevice& y = device.stages[drain];
    const int64_t in_flight = device.stages[std::min(fill, drain)].in_flight;
    if (micro_batches_ <= in_flight && known_ns < x.first_backward_ns + y.tail_ns) {
      return 0;
    }
    const int64_t all_ns = micro_batches_ * device.work_ns;
    const int64_t idle_before_ns = x.first_backward_ns - x.fill_ns;
    const int64_t bound_ns = idle_before_ns + all_ns + (y.tail_ns - y.drain_ns);
    if (fill != drain || micro_batches_ <= in_flight) {
      return bound_ns;
    }
    const int64_t rounds = (micro_batches_ - in_flight - 1) / x.own_in_flight;
    const int64_t rest_ns = all_ns - rounds * x.own_in_flight * device.work_ns;
    return std::max({bound_ns,
                     rest_ns - x.held_fill_ns + x.first_backward_ns + rounds * x.round_ns + (y.tail_ns - y.drain_ns),
                     rest_ns - y.held_drain_ns + idle_before_ns + rounds * x.round_ns + y.tail_ns});
  }

  int64_t Area(const Device& device) const {
    if (!within_memory_ || device.stages.empty() || device.capacity_bytes == 0) {
      return 0;
    }
    __int128 activations = 0;
    __int128 all = 0;
    for (const StageOnDevice& stage : device.stages) {
      activations += static_cast<__int128>(stage.activation_bytes) * stage.path.round_trip_ns;
      all += static_cast<__int128>(stage.kept_bytes) * stage.weight_grad_ns;
    }
    all += activations;
    const auto over_capacity = [&](__int128 bytes_ns) {
      return static_cast<int64_t>((bytes_ns * micro_batches_ + device.capacity_bytes - 1) / device.capacity_bytes);
    };
    const StagePath& first = device.stages.front().path;
    return first.first_forward_ns + std::max(over_capacity(activations) + first.way_out_ns, over_capacity(all));
  }

  const int64_t micro_batches_;
  const bool within_memory_;
  std::vector<Device> devices_;
};

}  // namespace

int64_t DevicesBoundNs(const PipelineCosts& costs, const std::vector<StagePath>& paths, bool within_memory) {
  return DeviceBounds(costs, paths, within_memory).Bound();
}

bool OneMicroBatchFits(const PipelineCosts& costs) {
  std::vector<int64_t> needed_bytes = costs.memory->static_bytes;
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    needed_bytes[costs.shape.placement[stage]] += costs.memory->activation_bytes[stage];
  }
  for (size_t device = 0; device < needed_bytes.size(); ++device) {
    if (needed_bytes[device] > costs.memory->capacity_bytes[device]) {
      return false;
    }
  }
  return true;
}

}  // namespace geopipe
