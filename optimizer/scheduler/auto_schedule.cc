#include "optimizer/scheduler/auto_schedule.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/list_scheduler.h"
#include "optimizer/scheduler/list_tuning.h"
#include "optimizer/scheduler/local_search.h"
#include "optimizer/scheduler/named_starts.h"
#include "optimizer/scheduler/reduced_pipeline.h"
#include "optimizer/scheduler/relaxed_bound.h"
#include "optimizer/scheduler/sequence_timer.h"
#include "optimizer/scheduler/state_search.h"
#include "optimizer/search/prng.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Most actions of a pipeline for which the search runs; larger ones get the best of the starts, because the search's
// tables would be large.
constexpr int64_t kMaxActions = 1 << 24;

// Targets of the list scheduler to begin with, in thousandths: of the lower bound, in the order of how often they are
// best; and of the shortest list schedule so far, for memory that makes the bound a distant one.
struct Target {
  int64_t per_mille = 0;
  bool of_best = false;
};
constexpr std::array<Target, 9> kTargets = {
    {{950}, {1'000}, {1'002}, {1'005}, {1'010}, {1'020}, {1'050}, {980, true}, {995, true}}};
constexpr std::array<Lookahead, 2> kLookaheads = {Lookahead::kWorstLateness, Lookahead::kAddedLateness};

// Shares of the evaluations that the list scheduler leaves: for a first try to prove its schedule the best, for tuning
// it, for the search of partial schedules, for the local search, and for another try to prove. The rest is for a second
// search of partial schedules, which goes further because those that cannot beat the best known by then are dropped.
constexpr int64_t kFirstProofPercent = 5;
constexpr int64_t kTuningPercent = 42;
constexpr int64_t kStatesPercent = 8;
constexpr int64_t kLocalPercent = 5;
constexpr int64_t kLastProofPercent = 40;

// Limits of the tuning: the cost of a list schedule in schedules timed, the lists that are always tried, and the lists
// after which it starts afresh.
constexpr int64_t kEvaluationsPerList = 4;
constexpr int64_t kMinTunedLists = 36;
constexpr int64_t kTunedListsPerRound = 150;
// Greatest cost of a change at the beginning of a round, in thousandths; at its end it is 0.
constexpr int64_t kTuningPerMille = 4;

// Fewest partial schedules for each action that are worth the trouble.
constexpr int64_t kMinStatesPerAction = 4;

constexpr int64_t kRounds = 3;  // of the local search
constexpr int64_t kThresholdPerMillion = 700;

// Limits of EvaluationsWithin: enough for the starts and the first targets, and more than any search still gains from.
constexpr int64_t kFewestEvaluations = 40;
constexpr int64_t kMaxEvaluations = 40'000;

// Percentage of the list schedule from which on a start is not worth improving.
constexpr int64_t kHopelessPercent = 102;

class AutoSearch {
 public:
  AutoSearch(const PipelineCosts& costs, const AutoOptions& options)
      : costs_(costs), options_(options), prng_(options.seed), instance_(MakeInstance(costs)) {
    result_.lower_bound_ns = MemoryLowerBoundNs(costs).value_or(LowerBoundNs(costs));
    result_.iteration_ns = kNone;
    SetEnough();
  }

  absl::StatusOr<AutoSchedule> Run(std::span<const Schedule> starts) {
    GP_RETURN_IF_ERROR(TryStarts(starts));
    if (instance_.ActionCount() <= kMaxActions && HasRoom() && !Enough()) {
      SequenceTimer timer(instance_);
      BuildLists(timer);
      if (costs_.comm == CommMode::kNonBlocking) {
        Improve(timer);
      } else {
        TuneLists(timer, 0);
      }
    }
    if (result_.iteration_ns == kNone) {
      return NothingFits();
    }
    return std::move(result_);
  }

 private:
  struct Found {
    Sequences sequences;
    int64_t iteration_ns = 0;
  };

  struct TriedList {
    ListOptions options;
    int64_t end_ns = kNone;  // of the last action
  };

  // True when static memory alone fits everywhere.
  bool HasRoom() const {
    return std::all_of(instance_.room_bytes.begin(), instance_.room_bytes.end(),
                       [](int64_t room_bytes) { return room_bytes >= 0; });
  }
  int64_t bound_ns() const { return result_.lower_bound_ns - costs_.epilogue_ns; }
  void SetEnough() {
    enough_ns_ = result_.lower_bound_ns + static_cast<int64_t>(static_cast<__int128>(result_.lower_bound_ns) *
                                                               options_.stop_gap_ppm / 1'000'000);
  }
  // `bound_ns`: without the epilogue.
  void RaiseBound(int64_t bound_ns) {
    result_.lower_bound_ns = std::max(result_.lower_bound_ns, bound_ns + costs_.epilogue_ns);
    SetEnough();
  }
  bool Enough() const { return result_.iteration_ns <= enough_ns_; }
  bool Spent() {
    result_.stopped = result_.stopped || (options_.stop && options_.stop());
    return result_.stopped || result_.evaluations >= options_.evaluations;
  }

  absl::Status TryStarts(std::span<const Schedule> starts) {
    for (size_t i = 0; i < starts.size(); ++i) {
      GP_CHECK(starts[i].shape == costs_.shape, "start {} is for another pipeline", i);
      GP_RETURN_IF_ERROR(Validate(starts[i]));
      GP_ASSIGN_OR_RETURN(const SimulationResult simulated, Simulate(starts[i], costs_));
      ++result_.evaluations;
      if (!simulated.fits || simulated.iteration_ns >= result_.iteration_ns || RunsTooFarAhead(instance_, starts[i])) {
        continue;
      }
      result_.iteration_ns = result_.best_start_ns = simulated.iteration_ns;
      result_.schedule = starts[i];
      result_.start = i;
    }
    Sequences sequences;
    // A full backward counts as I and W in sequences, which need more memory between them if W keeps more than an
    // activation.
    if (result_.start.has_value() && ToSequences(instance_, result_.schedule, sequences) &&
        Fits(instance_, sequences)) {
      pool_.push_back({std::move(sequences), result_.iteration_ns});
    }
    return absl::OkStatus();
  }

  // Takes `sequences` for the result if they are better. Returns their iteration.
  int64_t Offer(const Sequences& sequences) {
    Schedule schedule = ToSchedule(instance_, costs_.shape, sequences);
    const absl::StatusOr<SimulationResult> simulated = Simulate(schedule, costs_);
    GP_CHECK(simulated.ok() && simulated->fits, "auto's own schedule does not run within memory: {}",
             simulated.ok() ? std::string("over the limit") : simulated.status().ToString());
    if (simulated->iteration_ns < result_.iteration_ns) {
      const absl::Status valid = Validate(schedule);
      GP_CHECK(valid.ok(), "auto's own schedule is not valid: {}", valid.ToString());
      result_.iteration_ns = simulated->iteration_ns;
      result_.schedule = std::move(schedule);
      result_.start.reset();
    }
    return simulated->iteration_ns;
  }

  void BuildLists(SequenceTimer& timer) {
    ListScheduler scheduler(instance_);
    for (const Lookahead lookahead : kLookaheads) {
      for (const Target& target : kTargets) {
        TryTarget(scheduler, timer, target, lookahead);
      }
    }
    if (list_.iteration_ns != kNone) {
      result_.list_schedule_ns = Offer(list_.sequences);
    }
  }

  void TryTarget(ListScheduler& scheduler, SequenceTimer& timer, const Target& target, Lookahead lookahead) {
    if (ListsEnd()) {
      return;
    }
    ++result_.evaluations;
    const int64_t base_ns = target.of_best && plain_.end_ns != kNone ? plain_.end_ns : bound_ns();
    const auto target_ns = static_cast<int64_t>(static_cast<__int128>(base_ns) * target.per_mille / 1'000);
    const int64_t end_ns =
        TryList(scheduler, timer,
                {.target_ns = target_ns, .lookahead = lookahead, .limit_ns = options_.limit_ns - costs_.epilogue_ns});
    if (end_ns < plain_.end_ns) {
      plain_ = {{target_ns, lookahead}, end_ns};
    }
  }

  bool ListsEnd() { return list_.iteration_ns <= enough_ns_ - costs_.epilogue_ns || Spent(); }

  // Builds and offers a list schedule. Returns the end of its last action; kNone: memory left nothing to run, or it
  // would exceed the limit.
  int64_t TryList(ListScheduler& scheduler, SequenceTimer& timer, const ListOptions& options) {
    if (!scheduler.Build(options)) {
      return kNone;
    }
    if (costs_.comm == CommMode::kNonBlocking && scheduler.end_ns() >= list_.iteration_ns) {
      return scheduler.end_ns();
    }
    const int64_t end_ns = Time(timer, scheduler.sequences());
    if (end_ns < list_.iteration_ns) {
      list_ = {scheduler.sequences(), end_ns};
    }
    return end_ns;
  }

  // Tunes in rounds, each from the best list schedule that was not tuned. A change that makes it longer is kept when it
  // costs less than a random threshold that shrinks.
  void TuneLists(SequenceTimer& timer, int64_t evaluations) {
    if (plain_.end_ns == kNone) {
      return;
    }
    ListScheduler scheduler(instance_);
    const int64_t lists = std::max(kMinTunedLists, evaluations / kEvaluationsPerList);
    const int64_t rounds = std::max<int64_t>(1, lists / kTunedListsPerRound);
    const int64_t threshold_ns = plain_.end_ns / 1'000 * kTuningPerMille / (lists / rounds);
    for (int64_t round = 0; round < rounds; ++round) {
      auto [current, current_ns] = plain_;
      for (int64_t left = lists / rounds; left > 0 && !ListsEnd(); --left) {
        ListOptions tuned = Retuned(instance_, current, prng_);
        tuned.limit_ns = current_ns + prng_.Between(0, threshold_ns * left);
        const int64_t end_ns = TryList(scheduler, timer, tuned);
        result_.evaluations = std::min(options_.evaluations, result_.evaluations + kEvaluationsPerList);
        if (end_ns <= tuned.limit_ns) {
          current = std::move(tuned);
          current_ns = end_ns;
        }
      }
    }
  }

  // Adds the list schedule to the local search's starting points, instead of the best start if that is hopeless.
  void TakeList() {
    if (list_.iteration_ns == kNone) {
      return;
    }
    const int64_t list_ns = Offer(list_.sequences);
    std::erase_if(
        pool_, [&](const Found& start) { return start.iteration_ns / 100 * 100 > list_ns / 100 * kHopelessPercent; });
    pool_.insert(pool_.begin(), Found{list_.sequences, list_ns});
  }

  // End of the last action; for other modes than non-blocking as the simulator says.
  int64_t Time(SequenceTimer& timer, const Sequences& sequences) {
    return costs_.comm == CommMode::kNonBlocking ? timer.Run(sequences) : Offer(sequences);
  }

  void Improve(SequenceTimer& timer) {
    const int64_t left = options_.evaluations - result_.evaluations;
    const bool searchable = StatesCanBeSearched(costs_);
    if (searchable) {
      Prove(left * kFirstProofPercent / 100);
    }
    TuneLists(timer, left * kTuningPercent / 100);
    TakeList();
    if (searchable) {
      SearchStates(timer, left * kStatesPercent / 100);
    }
    SearchLocally(timer, searchable ? left * kLocalPercent / 100 : left);
    if (searchable) {
      Prove(left * kLastProofPercent / 100);
      SearchStates(timer, options_.evaluations - result_.evaluations);
      SearchLocally(timer, options_.evaluations - result_.evaluations);
    }
  }

  bool SharesLinks() const {
    return std::any_of(instance_.routes.begin(), instance_.routes.end(),
                       [](const OutputRoute& route) { return route.fifo >= 0 && !route.ordered; });
  }
  int64_t ActionsOf(int64_t evaluations) const { return evaluations * instance_.ActionCount(); }
  void SpendActions(int64_t actions) {
    const int64_t evaluations = (actions + instance_.ActionCount() - 1) / instance_.ActionCount();
    result_.evaluations = std::min(options_.evaluations, result_.evaluations + evaluations);
  }

  void Prove(int64_t evaluations) {
    if (Enough() || Spent()) {
      return;
    }
    // One evaluation is kept back, because the last partial schedules may be a few too many.
    const RelaxedBound relaxed = FindRelaxedBound(costs_, {.known_ns = result_.iteration_ns - costs_.epilogue_ns,
                                                           .actions = ActionsOf(evaluations - 1),
                                                           .stop = options_.stop});
    RaiseBound(relaxed.bound_ns);
    SpendActions(relaxed.actions);
  }

  // Searches partial schedules of all stages: as many at a time as the evaluations allow.
  void SearchStates(SequenceTimer& timer, int64_t evaluations) {
    const int64_t states = ActionsOf(evaluations - 1) / ActionsPerState(static_cast<size_t>(costs_.shape.stages));
    if (Enough() || Spent() || states < kMinStatesPerAction * instance_.ActionCount()) {
      return;
    }
    std::vector<int32_t> stages(static_cast<size_t>(costs_.shape.stages));
    std::iota(stages.begin(), stages.end(), 0);
    ReducedPipeline pipeline = Reducer(costs_).Reduce(stages);
    ShareLinks(instance_, pipeline);
    const StateSearchResult found =
        StateSearch(pipeline).Run({.shorter_than_ns = result_.iteration_ns - costs_.epilogue_ns, .states = states});
    if (!SharesLinks()) {
      RaiseBound(found.bound_ns);
    }
    SpendActions(found.states * ActionsPerState(stages.size()));
    if (found.turns.empty()) {
      return;
    }
    Sequences sequences(static_cast<size_t>(instance_.devices));
    for (const int32_t stage : stages) {
      for (const Phase phase : found.turns[stage]) {
        sequences[instance_.device_of[stage]].push_back(WorkOf(stage, phase));
      }
    }
    // The search ignores shared links and a W that keeps more than an activation, so its result may not fit or run.
    if (Fits(instance_, sequences) && timer.Run(sequences) != SequenceTimer::kDeadlock) {
      const int64_t iteration_ns = Offer(sequences);
      pool_.insert(pool_.begin(), Found{std::move(sequences), iteration_ns});
    }
  }

  // Searches in rounds: one from each schedule found so far, then from the best.
  void SearchLocally(SequenceTimer& timer, int64_t evaluations) {
    LocalSearch search(instance_, timer);
    const int64_t end = std::min(options_.evaluations, result_.evaluations + std::max<int64_t>(1, evaluations));
    const int64_t per_round = std::max<int64_t>(1, (end - result_.evaluations) / kRounds);
    for (size_t round = 0; !pool_.empty() && !Enough() && !Spent() && result_.evaluations < end; ++round) {
      const auto shorter = [](const Found& a, const Found& b) { return a.iteration_ns < b.iteration_ns; };
      Found& found = round < pool_.size() ? pool_[round] : *std::min_element(pool_.begin(), pool_.end(), shorter);
      LocalSearchOptions options;
      options.evaluations = std::min(per_round, end - result_.evaluations);
      options.enough_ns = enough_ns_ - costs_.epilogue_ns;
      options.threshold_ns = result_.lower_bound_ns / 1'000'000 * kThresholdPerMillion;
      options.stop = options_.stop;
      const int64_t spent = search.Run(found.sequences, options, prng_);
      result_.evaluations += spent;
      found.sequences = search.best();
      found.iteration_ns = Offer(found.sequences);
      if (spent <= 1 && round >= pool_.size()) {
        return;  // it has nothing to change
      }
    }
  }

  absl::Status NothingFits() const {
    size_t tightest = 0;
    for (size_t device = 0; device < instance_.room_bytes.size(); ++device) {
      tightest = instance_.room_bytes[device] < instance_.room_bytes[tightest] ? device : tightest;
    }
    return absl::FailedPreconditionError(fmt::format(
        "schedule auto: no schedule was found that fits into memory; device {} has {} bytes for activations: give it "
        "more, or make micro-batches smaller",
        tightest, instance_.room_bytes[tightest]));
  }

  const PipelineCosts& costs_;
  const AutoOptions& options_;
  Prng prng_;
  const Instance instance_;
  int64_t enough_ns_ = 0;                               // iteration
  Found list_{.sequences = {}, .iteration_ns = kNone};  // the best that the list scheduler built, without the epilogue
  TriedList plain_;                                     // the best that was not tuned
  std::vector<Found> pool_;                             // starting points of the local search
  AutoSchedule result_;
};

}  // namespace

absl::StatusOr<AutoSchedule> MakeAutoSchedule(const PipelineCosts& costs, std::span<const Schedule> starts,
                                              const AutoOptions& options) {
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  return AutoSearch(costs, options).Run(starts);
}

absl::StatusOr<AutoSchedule> FindSchedule(const PipelineCosts& costs, const AutoOptions& options) {
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  return MakeAutoSchedule(costs, MakeNamedStarts(costs), options);
}

int64_t EvaluationsWithin(const PipelineCosts& costs, int64_t actions) {
  const int64_t per_evaluation = int64_t{costs.shape.stages} * costs.shape.micro_batches;
  return std::clamp(actions / ((costs.weight_grad_ns.empty() ? 2 : 3) * std::max<int64_t>(1, per_evaluation)),
                    kFewestEvaluations, kMaxEvaluations);
}

}  // namespace geopipe
