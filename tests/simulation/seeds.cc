#include "tests/simulation/seeds.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

namespace geopipe::simulation {
namespace {

using SteadyClock = std::chrono::steady_clock;

thread_local uint64_t seed_under_way = 0;

// State that the threads share.
class Campaign {
 public:
  Campaign(const SeedsOptions& options, const std::function<void(const Options&, const Outcome&)>& on_broken)
      : options_(options), on_broken_(on_broken), next_(options.first) {}

  // One thread's part.
  void Run() {
    while (const std::optional<uint64_t> seed = Next()) {
      Options each = options_.each;
      each.seed = seed_under_way = *seed;
      const Outcome outcome = Simulate(each);
      Add(*seed, outcome);
      if (!outcome.broken.empty() && on_broken_) {
        on_broken_(each, outcome);
      }
      seed_under_way = 0;
    }
  }

  const Tally& tally() const { return tally_; }

 private:
  std::optional<uint64_t> Next() {
    const std::lock_guard lock(mutex_);
    if (next_ > options_.last || (options_.stop_at_broken && tally_.broken > 0)) {
      return std::nullopt;
    }
    return next_++;
  }

  void Add(uint64_t seed, const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    ++tally_.seeds;
    tally_.sum.simulated_ns += outcome.simulated_ns;
    tally_.sum.events += outcome.events;
    tally_.sum.iterations += outcome.iterations;
    tally_.sum.completed += outcome.completed;
    tally_.sum.failed += outcome.failed;
    tally_.sum.epochs += outcome.epochs;
    tally_.sum.coverage.Add(outcome.coverage);
    if (!outcome.broken.empty()) {
      ++tally_.broken;
      if (!tally_.first_broken.has_value() || seed < tally_.first_broken->first) {
        tally_.first_broken = {seed, outcome.broken};
      }
    }
    if (options_.show_progress && SteadyClock::now() - shown_ >= std::chrono::seconds(10)) {
      shown_ = SteadyClock::now();
      fmt::print(stderr, "{} of {} seeds, {} broken, {:.0f} s\n", tally_.seeds, options_.last - options_.first + 1,
                 tally_.broken, std::chrono::duration<double>(shown_ - begun_).count());
    }
  }

  const SeedsOptions& options_;
  const std::function<void(const Options&, const Outcome&)>& on_broken_;
  const SteadyClock::time_point begun_ = SteadyClock::now();
  std::mutex mutex_;  // guards what follows
  uint64_t next_;
  SteadyClock::time_point shown_ = begun_;
  Tally tally_;
};

}  // namespace

Tally SimulateSeeds(const SeedsOptions& options, const std::function<void(const Options&, const Outcome&)>& on_broken) {
  Campaign campaign(options, on_broken);
  std::vector<std::jthread> threads;
  for (int32_t i = 0; i < options.jobs; ++i) {
    threads.emplace_back([&campaign] { campaign.Run(); });
  }
  threads.clear();  // joins them
  return campaign.tally();
}

uint64_t SeedUnderWay() { return seed_under_way; }

}  // namespace geopipe::simulation
