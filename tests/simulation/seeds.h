// Many seeds, several at a time: a run has one thread and shares nothing with another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "tests/simulation/simulation.h"

namespace geopipe::simulation {

struct SeedsOptions {
  Options each;  // but for its seed
  uint64_t first = 1;
  uint64_t last = 100;
  int32_t jobs = 1;             // threads
  bool stop_at_broken = false;  // begins no seed after one that breaks a rule
  bool show_progress = false;   // on standard error, every ten seconds
};

// Results over a range of seeds.
struct Tally {
  uint64_t seeds = 0;
  uint64_t broken = 0;                                           // seeds that broke a rule
  std::optional<std::pair<uint64_t, std::string>> first_broken;  // the smallest such seed of the range, and the rule
  Outcome sum;                                                   // its counts
};

// Runs the seeds in order. `on_broken` is called for each that breaks a rule, by the thread that ran it, so by several
// at once.
Tally SimulateSeeds(const SeedsOptions& options,
                    const std::function<void(const Options&, const Outcome&)>& on_broken = nullptr);

// The seed that the calling thread runs; 0: none. For the handler of a signal.
uint64_t SeedUnderWay();

}  // namespace geopipe::simulation
