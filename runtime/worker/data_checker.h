// The thread that reads all of a job's data while the job trains on it (runtime/data/data_check.h), at a tenth of one
// processor at most.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "geopipe/v1/worker_service.pb.h"
#include "runtime/base/clock.h"
#include "runtime/data/corpus.h"
#include "runtime/executor/interruptible_clock.h"

namespace geopipe {

class DataChecker {
 public:
  // Takes the findings so far, every ten seconds at most, and at the end; or last of all the error that ended the
  // check. Called on the checker's thread; may wait.
  using Tell = std::function<void(absl::StatusOr<v1::DataCheckReport>)>;

  // Starts the thread. `corpus` and `clock` outlive the checker; `clock` as InterruptibleClock's.
  DataChecker(const Corpus& corpus, Clock& clock, Tell tell);
  DataChecker(const DataChecker&) = delete;
  DataChecker& operator=(const DataChecker&) = delete;
  // Waits at most for the piece under way.
  ~DataChecker();

  // Rest after a piece: nine times its duration, but ten seconds if the process was stopped meanwhile.
  static int64_t RestNs(int64_t took_ns);

 private:
  void Run();

  const Corpus& corpus_;
  InterruptibleClock clock_;
  const Tell tell_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace geopipe
