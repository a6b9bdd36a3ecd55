#include "tests/bench/exact_schedule.h"

#include <absl/status/status.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/simulator/device_bound.h"

namespace geopipe {
namespace {

constexpr int32_t kMaxDevices = 4;
constexpr int32_t kMaxMicroBatches = 10;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

enum Turn : uint8_t { kTurnForward, kTurnInput, kTurnWeight };
constexpr int32_t kTurns = 3;

// Progress of a partial schedule, and when its results arrive.
struct State {
  std::array<std::array<uint8_t, kTurns>, kMaxDevices> done{};
  std::array<int64_t, kMaxDevices> free_ns{};
  // Links up from a device and down from it: when the link takes the next message, and [micro-batch] when each arrives.
  std::array<std::array<int64_t, kMaxDevices>, 2> link_free_ns{};
  std::array<std::array<std::array<int64_t, kMaxMicroBatches>, kMaxDevices>, 2> arrival_ns{};
};

struct Kept {
  int64_t bound_ns = 0;
  int32_t parent = 0;
  uint8_t device = 0;
  uint8_t turn = 0;
  bool dropped = false;
};

struct Job {
  int64_t head_ns = 0;
  int64_t work_ns = 0;
  int64_t tail_ns = 0;
};

absl::Status CheckKind(const PipelineCosts& costs) {
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  bool fits = costs.shape.placement == PipelineShape::Linear(costs.shape.devices, 1).placement &&
              costs.shape.devices <= kMaxDevices && costs.shape.micro_batches <= kMaxMicroBatches &&
              costs.comm == CommMode::kNonBlocking && costs.memory.has_value() && OneMicroBatchFits(costs);
  for (size_t c = 0; fits && c < costs.forward_ns.size(); ++c) {
    const bool splits = !costs.weight_grad_ns.empty();
    fits = costs.forward_ns[c] > 0 && costs.input_grad_ns[c] > 0 && (!splits || costs.weight_grad_ns[c] > 0) &&
           (!splits || costs.memory->wgrad_bytes[c] <= costs.memory->activation_bytes[c]);
  }
  for (const BoundaryCost& boundary : costs.boundaries) {
    fits = fits && boundary.link.empty();
  }
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    "the exact search is for small pipelines with one stage per device, private "
                    "links, non-blocking messages and memory: give it one of those");
}

class ExactSearch {
 public:
  ExactSearch(const PipelineCosts& costs, const ExactOptions& options)
      : costs_(costs),
        devices_(costs.shape.devices),
        micro_batches_(costs.shape.micro_batches),
        split_(!costs.weight_grad_ns.empty()),
        kept_limit_(static_cast<size_t>(options.kept)),
        best_ns_(options.known_ns - costs.epilogue_ns) {
    for (int32_t c = 0; c < devices_; ++c) {
      work_ns_[c] = {costs.forward_ns[c], costs.input_grad_ns[c], split_ ? costs.weight_grad_ns[c] : 0};
      activation_bytes_[c] = costs.memory->activation_bytes[c];
      kept_bytes_[c] = split_ ? costs.memory->wgrad_bytes[c] : 0;
      room_bytes_[c] = costs.memory->capacity_bytes[c] - costs.memory->static_bytes[c];
      held_[c] = activation_bytes_[c] == 0
                     ? micro_batches_
                     : static_cast<int32_t>(std::min<int64_t>(micro_batches_, room_bytes_[c] / activation_bytes_[c]));
      if (split_ && room_bytes_[c] - held_[c] * activation_bytes_[c] < kept_bytes_[c]) {
        release_ns_[c] = std::min(work_ns_[c][kTurnInput], work_ns_[c][kTurnWeight]);
      }
      if (c + 1 < devices_) {
        occupies_ns_[c] = costs.boundaries[c].serialization_ns;
        travels_ns_[c] = costs.boundaries[c].latency_ns + costs.boundaries[c].overhead_ns;
      }
    }
    ComputeTails();
  }

  ExactSchedule Run() {
    const int32_t actions = devices_ * micro_batches_ * (split_ ? 3 : 2);
    std::vector<State> layer(1);
    history_.emplace_back(1);
    int64_t dropped_ns = kNever;
    int64_t states = 0;
    for (int32_t done = 0; done < actions && !layer.empty(); ++done) {
      states += std::ssize(layer);
      next_.clear();
      history_.emplace_back();
      index_.clear();
      for (size_t i = 0; i < layer.size(); ++i) {
        Extend(layer[i], static_cast<int32_t>(i));
      }
      dropped_ns = std::min(dropped_ns, Compact());
      layer.swap(next_);
    }
    ExactSchedule result;
    result.states = states;
    if (!layer.empty()) {
      const auto& last = history_.back();
      const auto shortest = std::min_element(last.begin(), last.end(),
                                             [](const Kept& a, const Kept& b) { return a.bound_ns < b.bound_ns; });
      best_ns_ = shortest->bound_ns;
      result.schedule = Trace(static_cast<int32_t>(shortest - last.begin()));
    }
    result.best_ns = best_ns_ + costs_.epilogue_ns;
    result.bound_ns = std::min(best_ns_, dropped_ns) + costs_.epilogue_ns;
    return result;
  }

 private:
  int64_t DelayNs(int32_t boundary) const { return occupies_ns_[boundary] + travels_ns_[boundary]; }

  // [turn][micro-batch]: from the start of an action to the end of the last one, at least: the way through the
  // pipeline, what must follow on the device, and who waits for its memory.
  void ComputeTails() {
    const int32_t m = micro_batches_;
    std::array<int64_t, kMaxDevices> way_out_ns{};
    for (int32_t c = 0; c < devices_; ++c) {
      way_out_ns[c] =
          c == 0 ? work_ns_[0][kTurnWeight] : way_out_ns[c - 1] + work_ns_[c - 1][kTurnInput] + DelayNs(c - 1);
    }
    for (int32_t j = m - 1; j >= 0; --j) {
      for (int32_t c = 0; c < devices_; ++c) {
        const auto [forward_ns, input_ns, weight_ns] = work_ns_[c];
        const int64_t barred_ns = std::max(0, m - j - held_[c]) * forward_ns;
        int64_t& tail_ns = tail_ns_[c][kTurnInput][j];
        tail_ns = std::max((m - j) * (input_ns + weight_ns), (m - j) * input_ns + way_out_ns[c]) + barred_ns;
        if (j + 1 < m) {
          tail_ns = std::max(tail_ns, input_ns + tail_ns_[c][kTurnInput][j + 1]);
        }
        if (c > 0) {
          tail_ns = std::max(tail_ns, input_ns + DelayNs(c - 1) + tail_ns_[c - 1][kTurnInput][j]);
        }
        if (j + held_[c] < m) {
          tail_ns = std::max(tail_ns, input_ns + release_ns_[c] + tail_ns_[c][kTurnForward][j + held_[c]]);
        }
        tail_ns_[c][kTurnWeight][j] = (m - j) * weight_ns;
      }
      for (int32_t c = devices_ - 1; c >= 0; --c) {
        const auto [forward_ns, input_ns, weight_ns] = work_ns_[c];
        int64_t& tail_ns = tail_ns_[c][kTurnForward][j];
        tail_ns =
            std::max((m - j) * (forward_ns + input_ns + weight_ns), (m - j) * (forward_ns + input_ns) + way_out_ns[c]);
        tail_ns = std::max(tail_ns, forward_ns + (c + 1 == devices_ ? tail_ns_[c][kTurnInput][j]
                                                                    : DelayNs(c) + tail_ns_[c + 1][kTurnForward][j]));
        if (j + 1 < m) {
          tail_ns = std::max(tail_ns, forward_ns + tail_ns_[c][kTurnForward][j + 1]);
        }
      }
    }
  }

  // Time at which the next action of a kind could start; kNever: something must run before it.
  int64_t StartNs(const State& state, int32_t c, int32_t turn) const {
    const auto [forwards, inputs, weights] = state.done[c];
    const int64_t free_ns = state.free_ns[c];
    if (turn == kTurnForward) {
      const int64_t bytes = (forwards - inputs) * activation_bytes_[c] + (inputs - weights) * kept_bytes_[c];
      const bool may =
          forwards < micro_batches_ && (c == 0 || forwards < state.done[c - 1][kTurnForward]) &&
          (!split_ ? bytes - (inputs - weights) * kept_bytes_[c] : bytes) + activation_bytes_[c] <= room_bytes_[c];
      return !may ? kNever : (c == 0 ? free_ns : std::max(free_ns, state.arrival_ns[0][c - 1][forwards]));
    }
    if (turn == kTurnInput) {
      const bool last = c + 1 == devices_;
      const bool may = inputs < forwards && (last || inputs < state.done[c + 1][kTurnInput]);
      return !may ? kNever : (last ? free_ns : std::max(free_ns, state.arrival_ns[1][c + 1][inputs]));
    }
    return split_ && weights < inputs ? free_ns : kNever;
  }

  void Extend(const State& state, int32_t parent) {
    int64_t first_end_ns = kNever;
    int32_t device = 0;
    std::array<std::array<int64_t, kTurns>, kMaxDevices> start_ns{};
    for (int32_t c = 0; c < devices_; ++c) {
      for (int32_t turn = 0; turn < kTurns; ++turn) {
        start_ns[c][turn] = StartNs(state, c, turn);
        if (start_ns[c][turn] < kNever && start_ns[c][turn] + work_ns_[c][turn] < first_end_ns) {
          first_end_ns = start_ns[c][turn] + work_ns_[c][turn];
          device = c;
        }
      }
    }
    for (int32_t turn = 0; turn < kTurns; ++turn) {
      if (start_ns[device][turn] < first_end_ns) {
        State after = state;
        Take(after, device, turn, start_ns[device][turn]);
        const int64_t bound_ns = BoundNs(after);
        if (bound_ns < best_ns_) {
          Normalize(after);
          Keep(after, {bound_ns, parent, static_cast<uint8_t>(device), static_cast<uint8_t>(turn), false});
        }
      }
    }
  }

  void Take(State& state, int32_t c, int32_t turn, int64_t start_ns) const {
    const int32_t j = state.done[c][turn]++;
    const int64_t end_ns = start_ns + work_ns_[c][turn];
    state.free_ns[c] = end_ns;
    if ((turn == kTurnForward && c + 1 < devices_) || (turn == kTurnInput && c > 0)) {
      const int32_t boundary = turn == kTurnForward ? c : c - 1;
      int64_t& link_free_ns = state.link_free_ns[turn][c];
      link_free_ns = std::max(link_free_ns, end_ns) + occupies_ns_[boundary];
      state.arrival_ns[turn][c][j] = link_free_ns + travels_ns_[boundary];
    }
  }

  // No completion ends earlier: heads along the pipeline, and on each device the best preemptive order of what is left
  // (Jackson), with their tails.
  int64_t BoundNs(const State& state) {
    const int32_t m = micro_batches_;
    for (int32_t j = 0; j < m; ++j) {
      for (int32_t c = 0; c < devices_; ++c) {
        ForwardHead(state, c, j);
      }
      for (int32_t c = devices_ - 1; c >= 0; --c) {
        InputHead(state, c, j);
      }
    }
    int64_t bound_ns = 0;
    for (int32_t c = 0; c < devices_; ++c) {
      bound_ns = std::max(bound_ns, DeviceBoundNs(state, c));
    }
    return bound_ns;
  }

  void ForwardHead(const State& state, int32_t c, int32_t j) {
    const int32_t next = state.done[c][kTurnForward];
    if (j < next) {
      return;
    }
    int64_t head_ns = state.free_ns[c];
    if (c > 0) {
      head_ns =
          std::max(head_ns, j < state.done[c - 1][kTurnForward]
                                ? state.arrival_ns[0][c - 1][j]
                                : head_ns_[c - 1][kTurnForward][j] + work_ns_[c - 1][kTurnForward] + DelayNs(c - 1));
    }
    if (j > next) {
      head_ns = std::max(head_ns, head_ns_[c][kTurnForward][j - 1] + work_ns_[c][kTurnForward]);
    }
    if (const int32_t frees = j - held_[c]; frees >= state.done[c][kTurnInput]) {
      head_ns = std::max(head_ns, head_ns_[c][kTurnInput][frees] + work_ns_[c][kTurnInput] + release_ns_[c]);
    }
    head_ns_[c][kTurnForward][j] = head_ns;
  }

  void InputHead(const State& state, int32_t c, int32_t j) {
    const int32_t next = state.done[c][kTurnInput];
    if (j < next) {
      return;
    }
    int64_t head_ns = state.free_ns[c];
    if (c + 1 < devices_) {
      head_ns = std::max(head_ns, j < state.done[c + 1][kTurnInput]
                                      ? state.arrival_ns[1][c + 1][j]
                                      : head_ns_[c + 1][kTurnInput][j] + work_ns_[c + 1][kTurnInput] + DelayNs(c));
    }
    if (j >= state.done[c][kTurnForward]) {
      head_ns = std::max(head_ns, head_ns_[c][kTurnForward][j] + work_ns_[c][kTurnForward]);
    }
    if (j > next) {
      head_ns = std::max(head_ns, head_ns_[c][kTurnInput][j - 1] + work_ns_[c][kTurnInput]);
    }
    head_ns_[c][kTurnInput][j] = head_ns;
  }

  int64_t DeviceBoundNs(const State& state, int32_t c) {
    jobs_.clear();
    for (int32_t turn = 0; turn < (split_ ? 3 : 2); ++turn) {
      for (int32_t j = state.done[c][turn]; j < micro_batches_; ++j) {
        int64_t head_ns = head_ns_[c][turn][j];
        if (turn == kTurnWeight) {
          head_ns =
              j < state.done[c][kTurnInput] ? state.free_ns[c] : head_ns_[c][kTurnInput][j] + work_ns_[c][kTurnInput];
        }
        jobs_.push_back({head_ns, work_ns_[c][turn], tail_ns_[c][turn][j] - work_ns_[c][turn]});
      }
    }
    if (jobs_.empty()) {
      return state.free_ns[c];
    }
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.head_ns < b.head_ns; });
    const auto less_urgent = [](const Job& a, const Job& b) { return a.tail_ns < b.tail_ns; };
    heap_.clear();
    int64_t now_ns = 0;
    int64_t bound_ns = 0;
    for (size_t next = 0; next < jobs_.size() || !heap_.empty();) {
      if (heap_.empty()) {
        now_ns = std::max(now_ns, jobs_[next].head_ns);
      }
      for (; next < jobs_.size() && jobs_[next].head_ns <= now_ns; ++next) {
        heap_.push_back(jobs_[next]);
        std::push_heap(heap_.begin(), heap_.end(), less_urgent);
      }
      Job& job = heap_.front();
      const int64_t until_ns = next < jobs_.size() ? jobs_[next].head_ns : kNever;
      const int64_t run_ns = std::min(job.work_ns, until_ns - now_ns);
      now_ns += run_ns;
      job.work_ns -= run_ns;
      if (job.work_ns == 0) {
        bound_ns = std::max(bound_ns, now_ns + job.tail_ns);
        std::pop_heap(heap_.begin(), heap_.end(), less_urgent);
        heap_.pop_back();
      }
    }
    return bound_ns;
  }

  // Moves every time to where it begins to matter, so that states that are alike for all that follows become equal.
  // Called after BoundNs of the same state.
  void Normalize(State& state) const {
    for (int32_t c = 0; c < devices_; ++c) {
      int64_t first_ns = StartNs(state, c, kTurnWeight);
      for (const int32_t turn : {kTurnForward, kTurnInput}) {
        if (const int32_t j = state.done[c][turn]; j < micro_batches_) {
          first_ns = std::min(first_ns, head_ns_[c][turn][j]);
        }
      }
      if (first_ns < kNever) {
        state.free_ns[c] = std::max(state.free_ns[c], first_ns);
      }
    }
    for (int32_t c = 0; c < devices_; ++c) {
      for (const int32_t turn : {kTurnForward, kTurnInput}) {
        const int32_t to = turn == kTurnForward ? c + 1 : c - 1;
        if (to < 0 || to >= devices_) {
          continue;
        }
        int64_t earliest_ns = state.free_ns[to];
        for (int32_t j = 0; j < micro_batches_; ++j) {
          int64_t& arrival_ns = state.arrival_ns[turn][c][j];
          if (j < state.done[to][turn] || j >= state.done[c][turn]) {
            arrival_ns = 0;
            continue;
          }
          arrival_ns = std::max(arrival_ns, earliest_ns);
          earliest_ns += work_ns_[to][turn];
        }
        int64_t& link_free_ns = state.link_free_ns[turn][c];
        link_free_ns =
            state.done[c][turn] == micro_batches_ ? 0 : std::max(link_free_ns, state.free_ns[c] + work_ns_[c][turn]);
      }
    }
  }

  bool NowhereLater(const State& a, const State& b) const {
    for (int32_t c = 0; c < devices_; ++c) {
      if (a.free_ns[c] > b.free_ns[c]) {
        return false;
      }
      for (const int32_t turn : {kTurnForward, kTurnInput}) {
        const int32_t to = turn == kTurnForward ? c + 1 : c - 1;
        if (to < 0 || to >= devices_) {
          continue;
        }
        if (a.link_free_ns[turn][c] > b.link_free_ns[turn][c]) {
          return false;
        }
        for (int32_t j = a.done[to][turn]; j < a.done[c][turn]; ++j) {
          if (a.arrival_ns[turn][c][j] > b.arrival_ns[turn][c][j]) {
            return false;
          }
        }
      }
    }
    return true;
  }

  void Keep(const State& state, const Kept& kept) {
    uint64_t key = 0;
    for (int32_t c = 0; c < devices_; ++c) {
      for (const uint8_t done : state.done[c]) {
        key = key << 4 | static_cast<uint64_t>(done);
      }
    }
    std::vector<Kept>& layer = history_.back();
    std::vector<int32_t>& alike = index_[key];
    for (const int32_t other : alike) {
      if (NowhereLater(next_[other], state)) {
        return;
      }
    }
    std::erase_if(alike, [&](int32_t other) {
      layer[other].dropped = NowhereLater(state, next_[other]);
      return layer[other].dropped;
    });
    alike.push_back(static_cast<int32_t>(next_.size()));
    next_.push_back(state);
    layer.push_back(kept);
  }

  // Leaves those that are not dropped, and of too many the most promising. Returns the least bound of the others.
  int64_t Compact() {
    std::vector<Kept>& layer = history_.back();
    std::vector<int64_t> bounds_ns;
    for (const Kept& kept : layer) {
      if (!kept.dropped) {
        bounds_ns.push_back(kept.bound_ns);
      }
    }
    int64_t limit_ns = kNever;
    if (bounds_ns.size() > kept_limit_) {
      const auto limit = bounds_ns.begin() + static_cast<std::ptrdiff_t>(kept_limit_);
      std::nth_element(bounds_ns.begin(), limit, bounds_ns.end());
      limit_ns = *limit;
    }
    int64_t dropped_ns = kNever;
    size_t left = 0;
    for (size_t i = 0; i < layer.size(); ++i) {
      if (layer[i].dropped) {
        continue;
      }
      if (layer[i].bound_ns > limit_ns || left == kept_limit_) {
        dropped_ns = std::min(dropped_ns, layer[i].bound_ns);
        continue;
      }
      layer[left] = layer[i];
      next_[left] = next_[i];
      ++left;
    }
    layer.resize(left);
    next_.resize(left);
    return dropped_ns;
  }

  Schedule Trace(int32_t last) const {
    Schedule schedule{costs_.shape, std::vector<std::vector<Action>>(static_cast<size_t>(devices_))};
    std::array<std::array<int32_t, kTurns>, kMaxDevices> left{};
    for (auto& turns : left) {
      turns.fill(micro_batches_);
    }
    for (size_t layer = history_.size() - 1; layer > 0; --layer) {
      const Kept& kept = history_[layer][last];
      const ActionKind kind = kept.turn == kTurnForward  ? ActionKind::kForward
                              : kept.turn == kTurnWeight ? ActionKind::kWeightGradient
                              : split_                   ? ActionKind::kInputGradient
                                                         : ActionKind::kBackward;
      schedule.devices[kept.device].push_back({kept.device, kind, --left[kept.device][kept.turn]});
      last = kept.parent;
    }
    for (auto& actions : schedule.devices) {
      std::reverse(actions.begin(), actions.end());
    }
    return schedule;
  }

  const PipelineCosts& costs_;
  const int32_t devices_;
  const int32_t micro_batches_;
  const bool split_;
  const size_t kept_limit_;
  int64_t best_ns_ = 0;
  std::array<std::array<int64_t, kTurns>, kMaxDevices> work_ns_{};
  std::array<int64_t, kMaxDevices> activation_bytes_{};
  std::array<int64_t, kMaxDevices> kept_bytes_{};
  std::array<int64_t, kMaxDevices> room_bytes_{};
  std::array<int32_t, kMaxDevices> held_{};        // the most activations at once
  std::array<int64_t, kMaxDevices> release_ns_{};  // after an I that makes room for an F: work before the F may start
  std::array<int64_t, kMaxDevices> occupies_ns_{};
  std::array<int64_t, kMaxDevices> travels_ns_{};
  std::array<std::array<std::array<int64_t, kMaxMicroBatches>, kTurns>, kMaxDevices> tail_ns_{};
  std::array<std::array<std::array<int64_t, kMaxMicroBatches>, kTurns>, kMaxDevices> head_ns_{};
  std::vector<Job> jobs_;
  std::vector<Job> heap_;
  std::vector<State> next_;
  std::vector<std::vector<Kept>> history_;  // [actions done][state]
  std::unordered_map<uint64_t, std::vector<int32_t>> index_;
};

}  // namespace

absl::StatusOr<ExactSchedule> FindExactSchedule(const PipelineCosts& costs, const ExactOptions& options) {
  GP_RETURN_IF_ERROR(CheckKind(costs));
  return ExactSearch(costs, options).Run();
}

}  // namespace geopipe
