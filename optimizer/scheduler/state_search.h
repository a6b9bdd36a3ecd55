// Searches the partial schedules of a (reduced) pipeline layer by layer, all with the same number of actions at a time.
//
// A state is dropped if another has run the same actions and is nowhere later: whatever completes the dropped one
// completes the other as well. So is one that cannot end soon enough. Of all continuations, active schedules are enough
// (Giffler and Thompson, Operations Research 1960): on the device that could complete an action first, only actions
// that could start before that completion. Earlier is never worse here: the action that fills such a gap takes no
// memory from those that run until its old place, because they are I and W, which only free memory.
//
// With room for all partial schedules this finds the shortest schedule, or that none is short enough. If there are too
// many it continues with those that promise to end first; the bounds of the others are then all that is proved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/reduced_pipeline.h"

namespace geopipe {

struct StateSearchOptions {
  int64_t shorter_than_ns = 0;  // end of the last action
  int64_t states = 0;           // partial schedules to make altogether, about
  // Number of shares that one number of remaining actions may take, when the states are divided evenly among these
  // numbers.
  int64_t shares = 1;
};

struct StateSearchResult {
  // [kept stage]: of the shortest schedule found, in order; empty: none is shorter, or none was found.
  std::vector<std::vector<Phase>> turns;
  int64_t end_ns = 0;    // of that schedule; shorter_than_ns if none
  int64_t bound_ns = 0;  // no schedule ends earlier
  int64_t states = 0;    // partial schedules made
};

class StateSearch {
 public:
  // REQUIRES: `pipeline` outlives this.
  explicit StateSearch(const ReducedPipeline& pipeline);

  StateSearchResult Run(const StateSearchOptions& options);

 private:
  // The actions of a partial schedule that are done, and the times at which their outputs are there.
  struct Progress {
    std::vector<int32_t> done;          // [stage * kPhases + phase]
    std::vector<int64_t> free_ns;       // [stage]
    std::vector<int64_t> link_free_ns;  // [link]: when it takes the next output
    std::vector<int64_t> arrival_ns;    // [way * micro-batches + micro-batch]: of outputs made and not used
    // [the same]: when an output was made that a shared link has not taken yet, because an earlier one may come; its
    // arrival is then the earliest possible. 0: none.
    std::vector<int64_t> waits_ns;
  };
  // Outputs that one stage makes for another.
  struct Route {
    size_t from = 0;
    Phase phase = Phase::kForward;
    size_t to = 0;
    Phase used_by = Phase::kForward;
  };
  // A partial schedule as it is kept.
  struct State {
    int64_t bound_ns = 0;
    int64_t promise_ns = 0;  // of equal bounds the smaller is kept: sum of the devices' bounds and times
    size_t times = 0;        // where its times begin
    int32_t parent = 0;      // in the layer before
    int32_t alike = -1;      // another one of the same hash
    int32_t stage = 0;
    Phase phase = Phase::kForward;
    bool dropped = false;
  };
  struct Layer {
    std::vector<State> states;
    std::vector<int64_t> times;  // of all states, each as Encode writes it
    std::vector<int32_t> done;   // [state][stage * kPhases + phase]

    void Clear();
  };
  struct Turn {
    int32_t parent = 0;
    int32_t stage = 0;
    Phase phase = Phase::kForward;
  };

  int32_t Done(size_t stage, Phase phase) const { return now_.done[stage * kPhases + static_cast<size_t>(phase)]; }
  int64_t WorkNs(size_t stage, Phase phase) const {
    return pipeline_.stages[stage].work_ns[static_cast<size_t>(phase)];
  }
  // Index into arrival_ns of F of a stage up, or of I down.
  static size_t Way(size_t stage, Phase phase) { return 2 * stage + (phase == Phase::kForward ? 0 : 1); }
  int64_t& Arrival(size_t way, int32_t micro_batch) {
    return now_.arrival_ns[way * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch)];
  }
  int64_t Arrival(size_t way, int32_t micro_batch) const {
    return now_.arrival_ns[way * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch)];
  }
  const ReducedWay& WayOf(size_t stage, Phase phase) const {
    return phase == Phase::kForward ? pipeline_.stages[stage].up : pipeline_.stages[stage].down;
  }
  bool Waits(size_t way, int32_t micro_batch) const {
    return has_shared_ &&
           now_.waits_ns[way * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch)] > 0;
  }
  bool HasRoom(size_t stage) const;
  int64_t ForwardArrival(size_t stage) const;
  int64_t InputArrival(size_t stage) const;
  int64_t Start(size_t stage, Phase phase) const;
  void Take(size_t stage, Phase phase, int64_t start_ns);
  int64_t FirstEnd(size_t& stage, Phase& phase) const;
  bool LetOneThrough(int64_t until_ns);
  void Extend(const State& state, int32_t index, const StateSearchOptions& options);
  void FindHeads();
  int64_t WorkLeftNs(size_t stage) const;
  int64_t Bound();
  int64_t StageBound(size_t stage);
  int64_t ArrivalsBound(size_t stage) const;
  void Encode();
  void Decode(const Layer& layer, int32_t index);
  void Keep(State state);
  int64_t Compact(int64_t width);
  bool SameDone(int32_t index) const;

  const ReducedPipeline& pipeline_;
  const size_t stages_;
  const int32_t micro_batches_;
  const int32_t phases_;
  Progress now_;
  std::vector<int64_t> free_before_ns_;
  std::vector<Route> routes_;  // all ways
  std::vector<bool> shared_;   // [link]: several ways use it
  bool has_shared_ = false;
  std::vector<int64_t> link_next_ns_;     // [link]: no output is made for it before
  std::vector<int64_t> forward_head_ns_;  // [stage]: earliest start of the next F, and of the next I
  std::vector<int64_t> input_head_ns_;
  int64_t promise_ns_ = 0;
  int64_t made_ = 0;
  std::vector<int64_t> encoded_;
  Layer layer_;
  Layer next_;
  std::unordered_map<uint64_t, int32_t> index_;  // hash of the actions done: the last such state of next_
  std::vector<std::vector<Turn>> turns_;         // [layer][state]
};

}  // namespace geopipe
