// Simulated time, and the processes that live in it. One thread; everything random comes from one seed, so a run can be
// played again.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/splitmix64.h"

namespace geopipe::simulation {

inline constexpr int64_t kMillisecondNs = 1'000'000;
inline constexpr int64_t kSecondNs = 1'000'000'000;

// Thrown out of the effect at which a process dies.
struct Crashed {};

// One life of a process.
struct Process {
  std::string name;
  bool alive = true;
  bool paused = false;
  int64_t paused_ns = 0;                      // when it was, if it is
  int64_t crash_in = -1;                      // effects until it dies; -1: it does not
  std::deque<std::function<void()>> waiting;  // what came while it was paused
  std::function<void()> on_death;

  // Called before each effect that others see.
  void BeforeEffect() {
    if (crash_in >= 0 && crash_in-- == 0) {
      throw Crashed{};
    }
  }
};
using ProcessPtr = std::shared_ptr<Process>;

class World {
 public:
  World(uint64_t seed, bool trace) : random_(seed), trace_(trace) {}

  int64_t now_ns() const { return now_ns_; }
  // Uniform in [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.Uniform() * static_cast<double>(high - low + 1));
  }
  bool Chance(double probability) { return random_.Uniform() < probability; }
  uint64_t Number() { return random_.Next(); }

  void In(int64_t delay_ns, std::function<void()> act) {
    queue_.push({.at_ns = now_ns_ + delay_ns, .order = next_order_++, .act = std::move(act)});
  }
  // Acts in the process, if it still lives then; a paused one acts when it goes on.
  void In(int64_t delay_ns, const ProcessPtr& process, std::function<void()> act);
  // Runs until the time, or until a rule is broken.
  void RunUntil(int64_t at_ns);

  void Kill(const ProcessPtr& process);
  void Pause(const ProcessPtr& process);
  void Resume(const ProcessPtr& process);

  // The first rule that was broken; empty: none.
  const std::string& broken() const { return broken_; }
  void Break(std::string rule) {
    if (broken_.empty()) {
      Trace("BROKEN: {}", rule);
      broken_ = std::move(rule);
      broken_ns_ = now_ns_;
    }
  }
  int64_t broken_ns() const { return broken_ns_; }

  bool trace() const { return trace_; }
  template <class... Args>
  void Trace(fmt::format_string<Args...> format, Args&&... args) {
    if (trace_) {
      fmt::print("{:9.3f} {}\n", static_cast<double>(now_ns_) * 1e-9, fmt::format(format, std::forward<Args>(args)...));
    }
  }
  int64_t events() const { return static_cast<int64_t>(next_order_); }

 private:
  struct Event {
    int64_t at_ns = 0;
    uint64_t order = 0;
    std::function<void()> act;
    friend bool operator<(const Event& a, const Event& b) {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.order > b.order;
    }
  };
  void Enter(const ProcessPtr& process, const std::function<void()>& act);

  SplitMix64 random_;
  const bool trace_;
  int64_t now_ns_ = kSecondNs;
  uint64_t next_order_ = 0;
  std::priority_queue<Event> queue_;
  std::string broken_;
  int64_t broken_ns_ = 0;
};

}  // namespace geopipe::simulation
