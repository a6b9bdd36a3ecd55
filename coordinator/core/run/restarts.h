// Limits how often a job may go on after a loss: so many losses of each worker an hour, and longer and longer delays as
// long as no iteration is completed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "coordinator/cluster/names.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe {

class Restarts {
 public:
  static constexpr int64_t kHourNs = 3'600'000'000'000;
  static constexpr int64_t kFirstDelayNs = 1'000'000'000;
  static constexpr int64_t kMaxDelayNs = 60'000'000'000;
  static constexpr int64_t kMaxNodeDelayNs = 10'000'000'000;  // after a node's trouble, which may be over any moment
  static constexpr int64_t kMaxFirstNodeDelayNs = 3'000'000'000;  // as most are within seconds
  static constexpr int32_t kFirstNodeDelays = 10;                 // about 20 s

  // `per_hour`: of one worker. `seed`: of the delays' jitter.
  Restarts(int64_t per_hour, uint64_t seed) : per_hour_(per_hour), jitter_(seed) {}

  // Returns why the job fails with this loss of a worker, too: all its losses within the last hour, each with its
  // cause; nullopt: the worker may be started again.
  std::optional<std::string> Enough(int64_t at_ns, const WorkerKey& worker, const std::string& cause) const;
  void OnLost(int64_t at_ns, const WorkerKey& worker, std::string cause);

  // Delay before the job goes on: none the first time, then twice as long each time up to a limit, with jitter, until
  // OnProgress. `of_node`: the last loss was by a node's trouble.
  int64_t NextDelayNs(bool of_node = false);
  void OnProgress() { attempts_ = 0; }
  // Counts an earlier attempt that failed as well.
  void CountAttempt() { ++attempts_; }

 private:
  struct Loss {
    int64_t at_ns = 0;
    WorkerKey worker;
    std::string cause;
  };

  int64_t per_hour_;
  SplitMix64 jitter_;
  std::deque<Loss> losses_;  // those of the last hour, at least
  int32_t attempts_ = 0;     // since the last progress
};

}  // namespace geopipe
