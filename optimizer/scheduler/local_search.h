// Improves sequences by small changes where they matter: on the longest path, an action that waits for its device moves
// before the ones that keep it waiting. A change that makes the iteration longer is kept when it costs less than a
// random threshold that shrinks as the search goes on (simulated annealing; the moves are the job shop's: van
// Laarhoven, Aarts and Lenstra, Operations Research 1992). Integers only, so that a seed means the same on every
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/sequence_timer.h"
#include "optimizer/search/prng.h"

namespace geopipe {

struct LocalSearchOptions {
  int64_t evaluations = 0;  // sequences timed
  int64_t enough_ns = 0;    // done when the end of the last action is not later
  // Scale of the random threshold at the beginning; at the end it is a hundredth of it.
  int64_t threshold_ns = 0;
  std::function<bool()> stop = {};  // asked now and then; empty: never
};

class LocalSearch {
 public:
  // REQUIRES: both outlive this.
  LocalSearch(const Instance& instance, SequenceTimer& timer);

  // REQUIRES: `sequences` run, within memory. Returns how many sequences were timed.
  int64_t Run(const Sequences& sequences, const LocalSearchOptions& options, Prng& prng);

  // The best sequences that the last Run met, and the end of their last action.
  const Sequences& best() const { return best_; }
  int64_t best_ns() const { return best_ns_; }

 private:
  struct Place {
    int32_t device = 0;
    int32_t position = 0;
  };
  // The micro-batch of each action, and the memory that its device holds after it.
  struct Track {
    std::vector<int32_t> micro_batch;  // [position]
    std::vector<int64_t> bytes;        // [position]
  };

  void Load(const Sequences& sequences);
  void FindWaits(Prng& prng);
  Place ProducerOf(int64_t output) const;
  bool Change(Prng& prng);
  bool Swap(Place place);
  void SwapUnchecked(Place place);
  bool MayPass(Place place) const;
  int64_t BytesBefore(Place place) const;

  const Instance& instance_;
  SequenceTimer& timer_;
  Sequences current_;
  std::vector<Track> tracks_;       // [device]
  std::vector<int32_t> positions_;  // [work][micro-batch]
  std::vector<Place> waits_;        // actions of the longest path that their device kept waiting
  std::vector<Place> swapped_;      // by the change that is being tried, in order
  Sequences best_;
  int64_t best_ns_ = 0;
};

}  // namespace geopipe
