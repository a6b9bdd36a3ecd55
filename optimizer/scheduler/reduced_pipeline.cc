#include "optimizer/scheduler/reduced_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace geopipe {
namespace {

// Room without a memory model: never full.
constexpr int64_t kBoundlessRoomBytes = std::numeric_limits<int64_t>::max() / 4;
constexpr auto kF = static_cast<size_t>(Phase::kForward);
constexpr auto kI = static_cast<size_t>(Phase::kInput);
constexpr auto kW = static_cast<size_t>(Phase::kWeight);

int64_t OccupiesNs(const PipelineCosts& costs, int32_t boundary) {
  const bool carries = costs.shape.placement[boundary] != costs.shape.placement[boundary + 1];
  return carries ? costs.boundaries[boundary].serialization_ns : 0;
}

// The way through the boundaries `from` to `to` and the stages between them, whose actions last `work_ns`.
ReducedWay WayThrough(const PipelineCosts& costs, int32_t from, int32_t to, const std::vector<int64_t>& work_ns) {
  ReducedWay way;
  int64_t total_ns = 0;
  for (int32_t boundary = from; boundary < to; ++boundary) {
    total_ns += MessageNs(costs, boundary) + (boundary > from ? work_ns[boundary] : 0);
    way.occupies_ns =
        std::max({way.occupies_ns, OccupiesNs(costs, boundary), boundary > from ? work_ns[boundary] : int64_t{0}});
  }
  way.travels_ns = total_ns - way.occupies_ns;
  return way;
}

// The way up from `stage` to the last one, and back.
ReducedWay WayAround(const PipelineCosts& costs, int32_t stage, const StagePath& path) {
  ReducedWay way;
  for (int32_t above = stage + 1; above < costs.shape.stages; ++above) {
    way.occupies_ns =
        std::max({way.occupies_ns, OccupiesNs(costs, above - 1), costs.forward_ns[above], costs.input_grad_ns[above]});
  }
  way.travels_ns = path.round_trip_ns - costs.forward_ns[stage] - costs.input_grad_ns[stage] - way.occupies_ns;
  return way;
}

ReducedStage MakeStage(const PipelineCosts& costs, int32_t stage, bool split) {
  ReducedStage made;
  made.stage = stage;
  made.work_ns[kF] = costs.forward_ns[stage];
  made.work_ns[kI] = costs.input_grad_ns[stage];
  made.work_ns[kW] = split ? costs.weight_grad_ns[stage] : 0;
  made.room_bytes = kBoundlessRoomBytes;
  made.held = made.deferred = costs.shape.micro_batches;
  if (!costs.memory.has_value()) {
    return made;
  }
  const int32_t device = costs.shape.placement[stage];
  const int64_t micro_batches = costs.shape.micro_batches;
  made.room_bytes = costs.memory->capacity_bytes[device] - costs.memory->static_bytes[device];
  made.activation_bytes = costs.memory->activation_bytes[stage];
  made.kept_bytes = split ? std::min(made.activation_bytes, costs.memory->wgrad_bytes[stage]) : 0;
  if (made.activation_bytes > 0) {
    made.held = static_cast<int32_t>(std::min(micro_batches, made.room_bytes / made.activation_bytes));
  }
  if (!costs.memory->most_in_flight.empty()) {
    made.held = std::min(made.held, costs.memory->most_in_flight[stage]);
  }
  if (made.kept_bytes > 0) {
    const int64_t beside_last = (made.room_bytes - made.activation_bytes) / made.kept_bytes;
    made.deferred = static_cast<int32_t>(std::min(beside_last + 1, micro_batches));
  }
  if (made.room_bytes - made.held * made.activation_bytes < made.kept_bytes) {
    // Time of its W, or else of the next I.
    made.release_ns = std::min(made.work_ns[kI], made.work_ns[kW]);
  }
  return made;
}

class Tails {
 public:
  Tails(const std::vector<LinkLines>& lines, const StagePath& first, ReducedPipeline& pipeline)
      : pipeline_(pipeline),
        lines_(lines),
        first_(first),
        way_out_ns_(pipeline.stages.size()),
        forward_entry_ns_(pipeline.stages.size(), 0),
        input_entry_ns_(pipeline.stages.size(), 0) {
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      ReducedStage& stage = pipeline.stages[s];
      stage.forward_tail_ns.assign(static_cast<size_t>(pipeline.micro_batches), 0);
      stage.input_tail_ns = stage.forward_tail_ns;
      way_out_ns_[s] =
          s == 0 ? first.way_out_ns : way_out_ns_[s - 1] + pipeline.stages[s - 1].work_ns[kI] + Total(stage.down);
    }
  }

  void Compute() {
    for (int32_t j = pipeline_.micro_batches - 1; j >= 0; --j) {
      for (size_t s = 0; s < pipeline_.stages.size(); ++s) {
        Input(s, j);
      }
      for (size_t s = pipeline_.stages.size(); s-- > 0;) {
        Forward(s, j);
      }
    }
  }

 private:
  static int64_t Total(const ReducedWay& way) { return way.occupies_ns + way.travels_ns; }

  // Time from entering the way to the end, given `after_ns` from the arrival on, and the outputs behind it, which leave
  // one after the other.
  static int64_t Entry(const ReducedWay& way, int64_t after_ns, bool last, int64_t& entry_ns) {
    entry_ns = std::max(Total(way) + after_ns, last ? 0 : way.occupies_ns + entry_ns);
    return entry_ns;
  }

  void Input(size_t s, int32_t j) {
    ReducedStage& stage = pipeline_.stages[s];
    const auto& [forward_ns, input_ns, weight_ns] = stage.work_ns;
    const int32_t left = pipeline_.micro_batches - j;
    const bool last = left == 1;
    // F that have to wait for this or a later I, and W that cannot be postponed to the end.
    const int64_t barred_ns = std::max(0, left - stage.held) * forward_ns;
    const int64_t undeferred_ns = std::max(0, left - stage.deferred) * weight_ns;
    int64_t tail_ns =
        std::max(left * (input_ns + weight_ns) + barred_ns, GreatestNs(lines_[stage.stage].input_tails, left));
    tail_ns = std::max(tail_ns, left * input_ns + way_out_ns_[s] + barred_ns + undeferred_ns);
    if (!last) {
      tail_ns = std::max(tail_ns, input_ns + stage.input_tail_ns[j + 1]);
    }
    if (s == 0) {
      tail_ns = std::max(tail_ns, input_ns + first_.way_out_ns + (left - 1) * first_.backward_spacing_ns);
    } else {
      tail_ns = std::max(
          tail_ns, input_ns + Entry(stage.down, pipeline_.stages[s - 1].input_tail_ns[j], last, input_entry_ns_[s]));
    }
    if (j + stage.held < pipeline_.micro_batches) {
      tail_ns = std::max(tail_ns, input_ns + stage.release_ns + stage.forward_tail_ns[j + stage.held]);
    }
    stage.input_tail_ns[j] = tail_ns;
  }

  void Forward(size_t s, int32_t j) {
    ReducedStage& stage = pipeline_.stages[s];
    const auto& [forward_ns, input_ns, weight_ns] = stage.work_ns;
    const int32_t left = pipeline_.micro_batches - j;
    const bool last = left == 1;
    const int64_t undeferred_ns = std::max(0, left - stage.deferred) * weight_ns;
    int64_t tail_ns =
        std::max(left * (forward_ns + input_ns + weight_ns), GreatestNs(lines_[stage.stage].forward_tails, left));
    tail_ns = std::max(tail_ns, left * (forward_ns + input_ns) + way_out_ns_[s] + undeferred_ns);
    const bool top = s + 1 == pipeline_.stages.size();
    const int64_t after_ns = top ? stage.input_tail_ns[j] : pipeline_.stages[s + 1].forward_tail_ns[j];
    tail_ns = std::max(tail_ns, forward_ns + Entry(stage.up, after_ns, last, forward_entry_ns_[s]));
    if (!last) {
      tail_ns = std::max(tail_ns, forward_ns + stage.forward_tail_ns[j + 1]);
    }
    stage.forward_tail_ns[j] = tail_ns;
  }

  ReducedPipeline& pipeline_;
  const std::vector<LinkLines>& lines_;  // of all stages
  const StagePath& first_;
  std::vector<int64_t> way_out_ns_;
  std::vector<int64_t> forward_entry_ns_;  // of the micro-batch before: from its entry to the end of the iteration
  std::vector<int64_t> input_entry_ns_;
};

// Raises the releases by their consequences along the pipeline and through memory.
class Heads {
 public:
  explicit Heads(ReducedPipeline& pipeline)
      : pipeline_(pipeline), forward_exit_ns_(pipeline.stages.size(), 0), input_exit_ns_(pipeline.stages.size(), 0) {}

  void Compute() {
    for (int32_t j = 0; j < pipeline_.micro_batches; ++j) {
      for (size_t s = 0; s < pipeline_.stages.size(); ++s) {
        Forward(s, j);
      }
      for (size_t s = pipeline_.stages.size(); s-- > 0;) {
        Input(s, j);
      }
    }
  }

 private:
  // Arrival of an output made at `made_ns` or later, behind the one before it.
  static int64_t Exit(const ReducedWay& way, int64_t made_ns, bool first, int64_t& exit_ns) {
    exit_ns = std::max(made_ns + way.occupies_ns + way.travels_ns, first ? 0 : exit_ns + way.occupies_ns);
    return exit_ns;
  }

  void Forward(size_t s, int32_t j) {
    ReducedStage& stage = pipeline_.stages[s];
    int64_t& head_ns = stage.forward_release_ns[j];
    if (s > 0) {
      const ReducedStage& below = pipeline_.stages[s - 1];
      head_ns = std::max(
          head_ns, Exit(below.up, below.forward_release_ns[j] + below.work_ns[kF], j == 0, forward_exit_ns_[s - 1]));
    }
    if (j > 0) {
      head_ns = std::max(head_ns, stage.forward_release_ns[j - 1] + stage.work_ns[kF]);
    }
    if (j >= stage.held) {
      head_ns = std::max(head_ns, stage.input_release_ns[j - stage.held] + stage.work_ns[kI] + stage.release_ns);
    }
  }

  void Input(size_t s, int32_t j) {
    ReducedStage& stage = pipeline_.stages[s];
    int64_t& head_ns = stage.input_release_ns[j];
    const int64_t forward_end_ns = stage.forward_release_ns[j] + stage.work_ns[kF];
    if (s + 1 == pipeline_.stages.size()) {
      head_ns = std::max(head_ns, Exit(stage.up, forward_end_ns, j == 0, forward_exit_ns_[s]));
    } else {
      const ReducedStage& above = pipeline_.stages[s + 1];
      head_ns =
          std::max({head_ns, forward_end_ns,
                    Exit(above.down, above.input_release_ns[j] + above.work_ns[kI], j == 0, input_exit_ns_[s + 1])});
    }
    if (j > 0) {
      head_ns = std::max(head_ns, stage.input_release_ns[j - 1] + stage.work_ns[kI]);
    }
  }

  ReducedPipeline& pipeline_;
  std::vector<int64_t> forward_exit_ns_;
  std::vector<int64_t> input_exit_ns_;
};

struct Windowed {
  int64_t release_ns = 0;
  int64_t work_ns = 0;
  int64_t tail_ns = 0;  // after it
};

int64_t JacksonNs(std::vector<Windowed> actions) {
  std::sort(actions.begin(), actions.end(),
            [](const Windowed& a, const Windowed& b) { return a.release_ns < b.release_ns; });
  const auto less_urgent = [](const Windowed& a, const Windowed& b) { return a.tail_ns < b.tail_ns; };
  std::vector<Windowed> released;
  int64_t now_ns = 0;
  int64_t end_ns = 0;
  for (size_t next = 0; next < actions.size() || !released.empty();) {
    if (released.empty()) {
      now_ns = std::max(now_ns, actions[next].release_ns);
    }
    for (; next < actions.size() && actions[next].release_ns <= now_ns; ++next) {
      released.push_back(actions[next]);
      std::push_heap(released.begin(), released.end(), less_urgent);
    }
    Windowed& most_urgent = released.front();
    const int64_t run_ns =
        next < actions.size() ? std::min(most_urgent.work_ns, actions[next].release_ns - now_ns) : most_urgent.work_ns;
    now_ns += run_ns;
    most_urgent.work_ns -= run_ns;
    if (most_urgent.work_ns == 0) {
      end_ns = std::max(end_ns, now_ns + most_urgent.tail_ns);
      std::pop_heap(released.begin(), released.end(), less_urgent);
      released.pop_back();
    }
  }
  return end_ns;
}

}  // namespace

Reducer::Reducer(const PipelineCosts& costs)
    : costs_(costs), paths_(ShortestPaths(costs)), lines_(FindLinkLines(costs, paths_)) {}

ReducedPipeline Reducer::Reduce(std::span<const int32_t> stages) const {
  ReducedPipeline pipeline;
  pipeline.micro_batches = costs_.shape.micro_batches;
  pipeline.split = !costs_.weight_grad_ns.empty();
  for (size_t s = 0; s < stages.size(); ++s) {
    ReducedStage stage = MakeStage(costs_, stages[s], pipeline.split);
    stage.up = s + 1 < stages.size() ? WayThrough(costs_, stages[s], stages[s + 1], costs_.forward_ns)
                                     : WayAround(costs_, stages[s], paths_[stages[s]]);
    if (s > 0) {
      stage.down = WayThrough(costs_, stages[s - 1], stages[s], costs_.input_grad_ns);
    }
    const StagePath& path = paths_[stages[s]];
    for (int64_t j = 0; j < pipeline.micro_batches; ++j) {
      stage.forward_release_ns.push_back(std::max(path.first_forward_ns + j * path.forward_spacing_ns,
                                                  GreatestNs(lines_[stages[s]].forward_heads, j + 1)));
      stage.input_release_ns.push_back(GreatestNs(lines_[stages[s]].input_heads, j + 1));
    }
    stage.up.link = pipeline.links++;
    stage.down.link = pipeline.links++;
    pipeline.stages.push_back(std::move(stage));
  }
  Heads(pipeline).Compute();
  Tails(lines_, paths_[stages.front()], pipeline).Compute();
  return pipeline;
}

void ShareLinks(const Instance& instance, ReducedPipeline& pipeline) {
  std::vector<int32_t> link_of_fifo(static_cast<size_t>(instance.fifo_count), -1);
  const auto share = [&](ReducedWay& way, const OutputRoute& route) {
    if (route.fifo >= 0 && !route.ordered) {
      int32_t& link = link_of_fifo[route.fifo];
      link = link < 0 ? way.link : link;
      way.link = link;
    }
  };
  for (ReducedStage& stage : pipeline.stages) {
    share(stage.up, instance.routes[stage.stage]);
    share(stage.down, instance.routes[instance.stages + stage.stage]);
  }
}

int64_t RootBoundNs(const ReducedPipeline& pipeline) {
  const ReducedStage& first = pipeline.stages.front();
  return first.forward_release_ns.front() + first.forward_tail_ns.front();
}

int64_t WindowBoundNs(const ReducedPipeline& pipeline) {
  int64_t bound_ns = 0;
  for (const ReducedStage& stage : pipeline.stages) {
    const auto& [forward_ns, input_ns, weight_ns] = stage.work_ns;
    std::vector<Windowed> actions;
    for (int32_t j = 0; j < pipeline.micro_batches; ++j) {
      actions.push_back({stage.forward_release_ns[j], forward_ns, stage.forward_tail_ns[j] - forward_ns});
      actions.push_back({stage.input_release_ns[j], input_ns, stage.input_tail_ns[j] - input_ns});
      if (pipeline.split) {
        actions.push_back(
            {stage.input_release_ns[j] + input_ns, weight_ns, (pipeline.micro_batches - 1 - j) * weight_ns});
      }
    }
    bound_ns = std::max(bound_ns, JacksonNs(std::move(actions)));
  }
  return bound_ns;
}

}  // namespace geopipe
