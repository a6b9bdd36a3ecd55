#include "optimizer/scheduler/state_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace geopipe {
namespace {

constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max() / 4;
constexpr Phase kAllPhases[] = {Phase::kForward, Phase::kInput, Phase::kWeight};

uint64_t HashOf(const std::vector<int32_t>& done) {
  uint64_t hash = 0;
  for (const int32_t count : done) {
    hash = (hash ^ static_cast<uint64_t>(count)) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

void StateSearch::Layer::Clear() {
  states.clear();
  times.clear();
  done.clear();
}

StateSearch::StateSearch(const ReducedPipeline& pipeline)
    : pipeline_(pipeline),
      stages_(pipeline.stages.size()),
      micro_batches_(pipeline.micro_batches),
      phases_(pipeline.split ? 3 : 2),
      shared_(static_cast<size_t>(pipeline.links), false),
      link_next_ns_(shared_.size()),
      forward_head_ns_(stages_),
      input_head_ns_(stages_) {
  std::vector<bool> used(shared_.size(), false);
  for (const ReducedStage& stage : pipeline.stages) {
    for (const int32_t link : {stage.up.link, stage.down.link}) {
      shared_[link] = shared_[link] || used[link];
      has_shared_ = has_shared_ || used[link];
      used[link] = true;
    }
  }
  for (size_t s = 0; s < stages_; ++s) {
    const bool top = s + 1 == stages_;
    routes_.push_back({s, Phase::kForward, top ? s : s + 1, top ? Phase::kInput : Phase::kForward});
    if (s > 0) {
      routes_.push_back({s, Phase::kInput, s - 1, Phase::kInput});
    }
  }
  now_.done.assign(stages_ * kPhases, 0);
  now_.free_ns.assign(stages_, 0);
  now_.link_free_ns.assign(static_cast<size_t>(pipeline.links), 0);
  now_.arrival_ns.assign(2 * stages_ * static_cast<size_t>(micro_batches_), 0);
  now_.waits_ns.assign(has_shared_ ? now_.arrival_ns.size() : 0, 0);
}

bool StateSearch::HasRoom(size_t stage) const {
  const ReducedStage& at = pipeline_.stages[stage];
  const int64_t in_flight = Done(stage, Phase::kForward) - Done(stage, Phase::kInput);
  const int64_t deferred = pipeline_.split ? Done(stage, Phase::kInput) - Done(stage, Phase::kWeight) : 0;
  return in_flight < at.held && (in_flight + 1) * at.activation_bytes + deferred * at.kept_bytes <= at.room_bytes;
}

// Arrival of the input of the next F; kNotYet: it is not made, or there is no next.
int64_t StateSearch::ForwardArrival(size_t stage) const {
  const int32_t j = Done(stage, Phase::kForward);
  if (j == micro_batches_) {
    return kNotYet;
  }
  if (stage > 0 && j == Done(stage - 1, Phase::kForward)) {
    return kNotYet;
  }
  const int64_t release_ns = pipeline_.stages[stage].forward_release_ns[j];
  return stage == 0 ? release_ns : std::max(release_ns, Arrival(Way(stage - 1, Phase::kForward), j));
}

int64_t StateSearch::InputArrival(size_t stage) const {
  const int32_t j = Done(stage, Phase::kInput);
  if (j >= Done(stage, Phase::kForward)) {
    return kNotYet;
  }
  const bool top = stage + 1 == stages_;
  if (!top && j == Done(stage + 1, Phase::kInput)) {
    return kNotYet;
  }
  const size_t way = top ? Way(stage, Phase::kForward) : Way(stage + 1, Phase::kInput);
  return std::max(pipeline_.stages[stage].input_release_ns[j], Arrival(way, j));
}

// Earliest start of the next action of a kind; kNotYet: another must run before it.
int64_t StateSearch::Start(size_t stage, Phase phase) const {
  const int64_t free_ns = now_.free_ns[stage];
  if (phase == Phase::kWeight) {
    const bool may = pipeline_.split && Done(stage, Phase::kWeight) < Done(stage, Phase::kInput);
    return may ? free_ns : kNotYet;
  }
  if (phase == Phase::kForward && !HasRoom(stage)) {
    return kNotYet;
  }
  if (has_shared_) {
    const int32_t j = Done(stage, phase);
    const bool from_below = phase == Phase::kForward;
    const bool top = stage + 1 == stages_;
    const size_t way = from_below ? (stage == 0 ? 0 : Way(stage - 1, Phase::kForward))
                                  : (top ? Way(stage, Phase::kForward) : Way(stage + 1, Phase::kInput));
    if (j < micro_batches_ && !(from_below && stage == 0) && Waits(way, j)) {
      return kNotYet;
    }
  }
  return std::max(free_ns, phase == Phase::kForward ? ForwardArrival(stage) : InputArrival(stage));
}

void StateSearch::Take(size_t stage, Phase phase, int64_t start_ns) {
  const int32_t j = now_.done[stage * kPhases + static_cast<size_t>(phase)]++;
  const int64_t end_ns = start_ns + WorkNs(stage, phase);
  now_.free_ns[stage] = end_ns;
  if (phase == Phase::kForward || (phase == Phase::kInput && stage > 0)) {
    const ReducedWay& way = WayOf(stage, phase);
    int64_t& link_free_ns = now_.link_free_ns[way.link];
    const int64_t leaves_ns = std::max(link_free_ns, end_ns) + way.occupies_ns;
    Arrival(Way(stage, phase), j) = leaves_ns + way.travels_ns;
    if (shared_[way.link]) {
      now_.waits_ns[Way(stage, phase) * static_cast<size_t>(micro_batches_) + static_cast<size_t>(j)] =
          std::max<int64_t>(1, end_ns);
    } else {
      link_free_ns = leaves_ns;
    }
  }
}

// Lets the waiting output that was made first, if it was made by `until_ns`, onto its shared link.
bool StateSearch::LetOneThrough(int64_t until_ns) {
  int64_t* first_ns = nullptr;
  const Route* first = nullptr;
  int64_t* arrival_ns = nullptr;
  for (const Route& route : routes_) {
    if (!shared_[WayOf(route.from, route.phase).link]) {
      continue;
    }
    const size_t row = Way(route.from, route.phase) * static_cast<size_t>(micro_batches_);
    for (int32_t j = Done(route.to, route.used_by); j < Done(route.from, route.phase); ++j) {
      int64_t& waits_ns = now_.waits_ns[row + static_cast<size_t>(j)];
      if (waits_ns > 0) {
        if (waits_ns <= until_ns && (first_ns == nullptr || waits_ns < *first_ns)) {
          first_ns = &waits_ns;
          first = &route;
          arrival_ns = &now_.arrival_ns[row + static_cast<size_t>(j)];
        }
        break;
      }
    }
  }
  if (first == nullptr) {
    return false;
  }
  const ReducedWay& way = WayOf(first->from, first->phase);
  int64_t& link_free_ns = now_.link_free_ns[way.link];
  link_free_ns = std::max(link_free_ns, *first_ns) + way.occupies_ns;
  *arrival_ns = link_free_ns + way.travels_ns;
  *first_ns = 0;
  return true;
}

// Finds the earliest starts of the next F and I of every stage: when its input arrives, or could if it is not made yet.
void StateSearch::FindHeads() {
  const auto total_ns = [](const ReducedWay& way) { return way.occupies_ns + way.travels_ns; };
  for (size_t s = 0; s < stages_; ++s) {
    const int32_t j = Done(s, Phase::kForward);
    int64_t head_ns = kNotYet;
    if (j < micro_batches_) {
      head_ns = ForwardArrival(s);
      if (head_ns == kNotYet) {
        head_ns = forward_head_ns_[s - 1] + WorkNs(s - 1, Phase::kForward) + total_ns(pipeline_.stages[s - 1].up);
      }
      head_ns = std::max({head_ns, now_.free_ns[s], pipeline_.stages[s].forward_release_ns[j]});
    }
    forward_head_ns_[s] = head_ns;
  }
  for (size_t s = stages_; s-- > 0;) {
    const ReducedStage& stage = pipeline_.stages[s];
    const int32_t j = Done(s, Phase::kInput);
    int64_t head_ns = kNotYet;
    if (j < micro_batches_) {
      head_ns = InputArrival(s);
      if (head_ns == kNotYet) {
        head_ns = 0;
        if (j == Done(s, Phase::kForward)) {
          head_ns = forward_head_ns_[s] + WorkNs(s, Phase::kForward) + (s + 1 == stages_ ? total_ns(stage.up) : 0);
        }
        if (s + 1 < stages_ && j == Done(s + 1, Phase::kInput)) {
          const ReducedStage& above = pipeline_.stages[s + 1];
          head_ns = std::max(head_ns, input_head_ns_[s + 1] + WorkNs(s + 1, Phase::kInput) + total_ns(above.down));
        }
      }
      head_ns = std::max({head_ns, now_.free_ns[s], stage.input_release_ns[j]});
    }
    input_head_ns_[s] = head_ns;
  }
  for (size_t s = 0; s < stages_; ++s) {
    const bool deferred = Done(s, Phase::kWeight) < Done(s, Phase::kInput) && pipeline_.split;
    if (Done(s, Phase::kForward) < micro_batches_ && !HasRoom(s)) {
      int64_t released_ns = input_head_ns_[s] + WorkNs(s, Phase::kInput);
      if (deferred) {
        released_ns = std::min(released_ns, now_.free_ns[s] + WorkNs(s, Phase::kWeight));
      }
      forward_head_ns_[s] = std::max(forward_head_ns_[s], released_ns);
    }
    // The device is idle before; moving the time there makes equivalent times equal.
    const int64_t first_ns = std::min({forward_head_ns_[s], input_head_ns_[s], deferred ? now_.free_ns[s] : kNotYet});
    if (first_ns < kNotYet) {
      now_.free_ns[s] = std::max(now_.free_ns[s], first_ns);
    }
  }
}

int64_t StateSearch::WorkLeftNs(size_t stage) const {
  int64_t left_ns = 0;
  for (const Phase phase : kAllPhases) {
    left_ns += (micro_batches_ - Done(stage, phase)) * WorkNs(stage, phase);
  }
  return left_ns;
}

// A lower bound on all completions. Moves the devices' times to where they begin to matter.
int64_t StateSearch::Bound() {
  FindHeads();
  int64_t bound_ns = 0;
  promise_ns_ = 0;
  for (size_t s = 0; s < stages_; ++s) {
    const int64_t stage_ns = std::max(StageBound(s), ArrivalsBound(s));
    bound_ns = std::max(bound_ns, stage_ns);
    promise_ns_ += stage_ns + now_.free_ns[s] + WorkLeftNs(s);
  }
  return bound_ns;
}

// The bound by the remaining work, and by the next F and I, in either order.
int64_t StateSearch::StageBound(size_t s) {
  const ReducedStage& stage = pipeline_.stages[s];
  const int32_t forwards = Done(s, Phase::kForward);
  const int32_t inputs = Done(s, Phase::kInput);
  const int32_t weights = pipeline_.split ? Done(s, Phase::kWeight) : inputs;
  const auto& [forward_ns, input_ns, weight_ns] = stage.work_ns;
  const int64_t m = micro_batches_;
  const int64_t chain_ns = (m - forwards) * forward_ns + (m - inputs) * input_ns;
  int64_t bound_ns = now_.free_ns[s] + chain_ns + (m - weights) * weight_ns;
  if (inputs == micro_batches_) {
    return bound_ns;
  }
  const int64_t undeferred_ns = std::max<int64_t>(0, m - weights - stage.deferred) * weight_ns;
  bound_ns = std::max(bound_ns, now_.free_ns[s] + chain_ns + undeferred_ns + stage.input_tail_ns.back() - input_ns);
  const int64_t input_head_ns = input_head_ns_[s];
  bound_ns = std::max(bound_ns, input_head_ns + stage.input_tail_ns[inputs]);
  if (forwards == micro_batches_) {
    return bound_ns;
  }
  const int64_t forward_head_ns = forward_head_ns_[s];
  const int64_t forward_tail_ns = stage.forward_tail_ns[forwards];
  const int64_t input_tail_ns = stage.input_tail_ns[inputs];
  int64_t forward_first_ns = std::max(forward_head_ns + forward_tail_ns,
                                      std::max(input_head_ns, forward_head_ns + forward_ns) + input_tail_ns);
  int64_t input_first_ns =
      std::max(input_head_ns + input_tail_ns, std::max(forward_head_ns, input_head_ns + input_ns) + forward_tail_ns);
  if (inputs == forwards) {
    input_first_ns = kNotYet;
  }
  if (!HasRoom(s) && !(pipeline_.split && weights < inputs)) {
    forward_first_ns = kNotYet;
  }
  return std::max(bound_ns, std::min(forward_first_ns, input_first_ns));
}

// The bound by outputs on their way to the stage.
int64_t StateSearch::ArrivalsBound(size_t s) const {
  const ReducedStage& stage = pipeline_.stages[s];
  int64_t bound_ns = 0;
  if (s > 0) {
    for (int32_t j = Done(s, Phase::kForward); j < Done(s - 1, Phase::kForward); ++j) {
      bound_ns = std::max(bound_ns, Arrival(Way(s - 1, Phase::kForward), j) + stage.forward_tail_ns[j]);
    }
  }
  const bool top = s + 1 == stages_;
  const size_t way = top ? Way(s, Phase::kForward) : Way(s + 1, Phase::kInput);
  const int32_t made = top ? Done(s, Phase::kForward) : Done(s + 1, Phase::kInput);
  for (int32_t j = Done(s, Phase::kInput); j < made; ++j) {
    bound_ns = std::max(bound_ns, Arrival(way, j) + stage.input_tail_ns[j]);
  }
  return bound_ns;
}

// Writes all times that matter to later actions, moved to where they begin to matter; after Bound.
void StateSearch::Encode() {
  encoded_.clear();
  std::fill(link_next_ns_.begin(), link_next_ns_.end(), kNotYet);
  for (size_t s = 0; s < stages_; ++s) {
    encoded_.push_back(now_.free_ns[s]);
  }
  for (const Route& route : routes_) {
    const int32_t made = Done(route.from, route.phase);
    const int32_t link = WayOf(route.from, route.phase).link;
    if (made < micro_batches_) {
      link_next_ns_[link] = std::min(link_next_ns_[link], now_.free_ns[route.from] + WorkNs(route.from, route.phase));
    }
    const size_t way = Way(route.from, route.phase);
    int64_t earliest_ns = now_.free_ns[route.to];
    for (int32_t j = Done(route.to, route.used_by); j < made; ++j) {
      encoded_.push_back(std::max(Arrival(way, j), earliest_ns));
      earliest_ns += WorkNs(route.to, route.used_by);
      if (shared_[link]) {
        const int64_t waits_ns = now_.waits_ns[way * static_cast<size_t>(micro_batches_) + static_cast<size_t>(j)];
        link_next_ns_[link] = std::min(link_next_ns_[link], waits_ns > 0 ? waits_ns : kNotYet);
        encoded_.push_back(waits_ns);
      }
    }
  }
  for (size_t link = 0; link < shared_.size(); ++link) {
    const int64_t next_ns = link_next_ns_[link];
    encoded_.push_back(next_ns == kNotYet ? 0 : std::max(now_.link_free_ns[link], next_ns));
  }
}

void StateSearch::Decode(const Layer& layer, int32_t index) {
  const auto first_done = layer.done.begin() + static_cast<std::ptrdiff_t>(index * now_.done.size());
  std::copy_n(first_done, now_.done.size(), now_.done.begin());
  const int64_t* time_ns = &layer.times[layer.states[index].times];
  for (size_t s = 0; s < stages_; ++s) {
    now_.free_ns[s] = *time_ns++;
  }
  for (const Route& route : routes_) {
    const size_t row = Way(route.from, route.phase) * static_cast<size_t>(micro_batches_);
    const bool shared = shared_[WayOf(route.from, route.phase).link];
    for (int32_t j = Done(route.to, route.used_by); j < Done(route.from, route.phase); ++j) {
      now_.arrival_ns[row + static_cast<size_t>(j)] = *time_ns++;
      if (shared) {
        now_.waits_ns[row + static_cast<size_t>(j)] = *time_ns++;
      }
    }
  }
  for (int64_t& link_free_ns : now_.link_free_ns) {
    link_free_ns = *time_ns++;
  }
}

bool StateSearch::SameDone(int32_t index) const {
  return std::equal(now_.done.begin(), now_.done.end(),
                    next_.done.begin() + static_cast<std::ptrdiff_t>(index * now_.done.size()));
}

// Keeps the state unless another one in next_ that has done the same is nowhere later, and drops those that are nowhere
// earlier than it.
void StateSearch::Keep(State state) {
  Encode();
  int32_t& newest = index_.try_emplace(HashOf(now_.done), -1).first->second;
  int32_t* link = &newest;
  while (*link >= 0) {
    State& other = next_.states[*link];
    if (SameDone(*link)) {
      // The bound alone knows how far the way out of the first kept stage has grown.
      bool other_later = other.bound_ns > state.bound_ns;
      bool this_later = other.bound_ns < state.bound_ns;
      const int64_t* other_ns = &next_.times[other.times];
      for (size_t i = 0; i < encoded_.size() && !(other_later && this_later); ++i) {
        other_later = other_later || other_ns[i] > encoded_[i];
        this_later = this_later || other_ns[i] < encoded_[i];
      }
      if (!other_later) {
        return;
      }
      if (!this_later) {
        other.dropped = true;
        *link = other.alike;
        continue;
      }
    }
    link = &other.alike;
  }
  state.times = next_.times.size();
  state.alike = newest;
  newest = static_cast<int32_t>(next_.states.size());
  next_.states.push_back(state);
  next_.times.insert(next_.times.end(), encoded_.begin(), encoded_.end());
  next_.done.insert(next_.done.end(), now_.done.begin(), now_.done.end());
}

// The earliest end of an action that could run next, and which one it is; kNotYet: none could.
int64_t StateSearch::FirstEnd(size_t& stage, Phase& phase) const {
  int64_t first_end_ns = kNotYet;
  for (size_t s = 0; s < stages_; ++s) {
    for (const Phase candidate : kAllPhases) {
      const int64_t start_ns = Start(s, candidate);
      if (start_ns < kNotYet && start_ns + WorkNs(s, candidate) < first_end_ns) {
        first_end_ns = start_ns + WorkNs(s, candidate);
        stage = s;
        phase = candidate;
      }
    }
  }
  return first_end_ns;
}

// Adds the continuations of `state` to next_.
void StateSearch::Extend(const State& state, int32_t index, const StateSearchOptions& options) {
  Decode(layer_, index);
  size_t stage = 0;
  Phase first = Phase::kForward;
  int64_t first_end_ns = FirstEnd(stage, first);
  // Outputs made from now on are made later.
  while (has_shared_ && LetOneThrough(first_end_ns)) {
    first_end_ns = FirstEnd(stage, first);
  }
  for (const Phase phase : kAllPhases) {
    const int64_t start_ns = Start(stage, phase);
    if (start_ns >= first_end_ns && phase != first) {
      continue;
    }
    free_before_ns_ = now_.free_ns;
    const int32_t link = WayOf(stage, phase).link;
    const int64_t link_free_ns = now_.link_free_ns[link];
    Take(stage, phase, start_ns);
    ++made_;
    const int64_t bound_ns = std::max(Bound(), state.bound_ns);
    if (bound_ns < options.shorter_than_ns) {
      Keep({.bound_ns = bound_ns,
            .promise_ns = promise_ns_,
            .parent = index,
            .stage = static_cast<int32_t>(stage),
            .phase = phase});
    }
    now_.free_ns = free_before_ns_;
    now_.link_free_ns[link] = link_free_ns;
    --now_.done[stage * kPhases + static_cast<size_t>(phase)];
  }
}

// Moves the states to continue with to layer_. Returns the least bound of the others.
int64_t StateSearch::Compact(int64_t width) {
  std::vector<int32_t> left;
  for (size_t i = 0; i < next_.states.size(); ++i) {
    if (!next_.states[i].dropped) {
      left.push_back(static_cast<int32_t>(i));
    }
  }
  int64_t given_up_ns = kNotYet;
  if (std::ssize(left) > width) {
    const auto promises_more = [this](int32_t a, int32_t b) {
      const State& x = next_.states[a];
      const State& y = next_.states[b];
      return std::tie(x.bound_ns, x.promise_ns, a) < std::tie(y.bound_ns, y.promise_ns, b);
    };
    const auto end = left.begin() + static_cast<std::ptrdiff_t>(width);
    std::nth_element(left.begin(), end, left.end(), promises_more);
    for (auto index = end; index != left.end(); ++index) {
      given_up_ns = std::min(given_up_ns, next_.states[*index].bound_ns);
    }
    left.erase(end, left.end());
    std::sort(left.begin(), left.end());
  }
  layer_.Clear();
  std::vector<Turn>& turns = turns_.emplace_back();
  for (const int32_t index : left) {
    State state = next_.states[index];
    const auto after = static_cast<size_t>(index) + 1;
    const size_t end = after < next_.states.size() ? next_.states[after].times : next_.times.size();
    const size_t begin = std::exchange(state.times, layer_.times.size());
    const auto times = next_.times.begin();
    layer_.times.insert(layer_.times.end(), times + static_cast<std::ptrdiff_t>(begin),
                        times + static_cast<std::ptrdiff_t>(end));
    const auto done = next_.done.begin() + static_cast<std::ptrdiff_t>(index * now_.done.size());
    layer_.done.insert(layer_.done.end(), done, done + static_cast<std::ptrdiff_t>(now_.done.size()));
    layer_.states.push_back(state);
    turns.push_back({state.parent, state.stage, state.phase});
  }
  return given_up_ns;
}

StateSearchResult StateSearch::Run(const StateSearchOptions& options) {
  StateSearchResult result{.turns = {}, .end_ns = options.shorter_than_ns, .bound_ns = 0, .states = 0};
  std::fill(now_.done.begin(), now_.done.end(), 0);
  std::fill(now_.free_ns.begin(), now_.free_ns.end(), 0);
  std::fill(now_.link_free_ns.begin(), now_.link_free_ns.end(), 0);
  turns_.clear();
  next_.Clear();
  index_.clear();
  made_ = 0;
  int64_t given_up_ns = kNotYet;
  if (const int64_t bound_ns = Bound(); bound_ns < options.shorter_than_ns) {
    Keep({.bound_ns = bound_ns, .promise_ns = promise_ns_});
  }
  Compact(1);
  const int64_t actions = int64_t{micro_batches_} * phases_ * static_cast<int64_t>(stages_);
  int64_t kept = 1;
  for (int64_t layer = 0; layer < actions && !layer_.states.empty(); ++layer) {
    next_.Clear();
    index_.clear();
    for (size_t i = 0; i < layer_.states.size(); ++i) {
      if (made_ < options.states) {
        Extend(layer_.states[i], static_cast<int32_t>(i), options);
      } else {
        given_up_ns = std::min(given_up_ns, layer_.states[i].bound_ns);
      }
    }
    // The width lets as many new states be made per kept state as before.
    const int64_t left = std::max<int64_t>(0, options.states - made_) / (actions - layer) * options.shares;
    given_up_ns = std::min(given_up_ns, Compact(std::max<int64_t>(1, left * kept / std::max<int64_t>(1, made_))));
    kept += std::ssize(layer_.states);
  }
  result.states = made_;
  if (!layer_.states.empty()) {
    const auto shortest = std::min_element(layer_.states.begin(), layer_.states.end(),
                                           [](const State& a, const State& b) { return a.bound_ns < b.bound_ns; });
    result.end_ns = shortest->bound_ns;
    result.turns.resize(stages_);
    auto index = static_cast<size_t>(shortest - layer_.states.begin());
    for (size_t layer = turns_.size() - 1; layer > 0; --layer) {
      const Turn& turn = turns_[layer][index];
      result.turns[turn.stage].push_back(turn.phase);
      index = static_cast<size_t>(turn.parent);
    }
    for (std::vector<Phase>& turns : result.turns) {
      std::reverse(turns.begin(), turns.end());
    }
  }
  result.bound_ns = std::max(std::min(result.end_ns, given_up_ns), std::min(RootBoundNs(pipeline_), result.end_ns));
  return result;
}

}  // namespace geopipe
