// What really happened, as no process of the control plane can know it, and the rules that it is held against.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "optimizer/model/state_identity.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

// The loss that the last rank computes: any run of the job, in any epoch, must tell this one.
inline double LossOf(int64_t iteration) { return 5.0 - 0.01 * static_cast<double>(iteration); }

// One run of a job: what its ranks did.
struct RunTruth {
  std::string job;
  std::map<int32_t, int64_t> next;  // by rank: iterations finished
  uint64_t epoch = 0;               // the latest that any rank has begun
  StateIdentity epoch_from;         // that it begins with
  int64_t progress_ns = 0;          // when an iteration was finished last
  bool keeps = false;               // its ranks keep their states in memory
  bool lost_memory = false;         // some memory that a state was kept in is gone
};

class Ledger {
 public:
  explicit Ledger(World& world) : world_(world) {}

  // A rank begins to train in the epoch.
  void OnEpochBegun(const std::string& job, uint64_t run, uint64_t epoch, int32_t rank, const StateIdentity& from);
  void Keeps(uint64_t run) { runs_[run].keeps = true; }
  void LoseMemory(uint64_t run) { runs_[run].lost_memory = true; }
  // A rank has finished an iteration.
  void OnIteration(uint64_t run, uint64_t epoch, int32_t rank, int64_t iteration);

  // Something was done to the job that it may fail of.
  void Excuse(const std::string& job, const std::string& why) { excuses_[job].insert(why); }
  void Forget(const std::string& job) { excuses_.erase(job); }
  bool excused(const std::string& job) const { return excuses_.contains(job); }

  const RunTruth* Find(uint64_t run) const {
    const auto found = runs_.find(run);
    return found == runs_.end() ? nullptr : &found->second;
  }
  int64_t iterations() const { return iterations_; }

 private:
  World& world_;
  std::map<uint64_t, RunTruth> runs_;
  std::map<std::string, std::set<std::string>> excuses_;
  int64_t iterations_ = 0;  // of all ranks of all runs
};

}  // namespace geopipe::simulation
