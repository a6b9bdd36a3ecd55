// Follows a playground's job on a thread of its own: prints what happens and keeps what it saw.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/progress.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"

namespace geopipe {

class PlaygroundFollower {
 public:
  struct Options {
    int done_fd = -1;                                         // an eventfd, not owned: becomes readable at the end
    int alarm_fd = -1;                                        // the same: when the job is to be ended, see verdict()
    int64_t patience_ns = 0;                                  // for the job's end when training is over
    std::function<absl::Status(const v1::JobDetail&)> admit;  // whether a plan may run here
  };
  // Lines go to `lines`, with a progress bar below them where that is a terminal. `client` and `job` must outlive the
  // follower.
  PlaygroundFollower(ControlClient& client, const JobSpec& job, std::FILE* lines, Options options);
  ~PlaygroundFollower();
  PlaygroundFollower(const PlaygroundFollower&) = delete;
  PlaygroundFollower& operator=(const PlaygroundFollower&) = delete;

  // Waits for the end of the watch. Afterwards iterations() and status() may be read.
  void Join();

  const std::vector<v1::IterationSummary>& iterations() const { return iterations_; }
  const absl::Status& status() const { return status_; }
  // Tells why the job is to be ended: its plan is not admitted, it loses workers again and again, its last state cannot
  // be written, or it does not end as it was told to. OK: it is not. Any thread, any time.
  absl::Status verdict() const;

 private:
  void Run();
  void OnEvent(const v1::WatchJobResponse& event);
  void OnNotice(const v1::JobNotice& notice);
  void EndWith(absl::Status verdict);
  void PrintPlan();
  void Print(const std::string& line);
  void PrintBar();

  ControlClient& client_;
  const JobSpec& job_;
  std::FILE* lines_;
  const bool terminal_;
  const Options options_;
  int64_t total_ = 0;             // the watching thread's until Join, as what is below
  std::optional<Plan> plan_;      // that was printed
  int64_t waiting_since_ns_ = 0;  // 0: training is not over
  std::vector<v1::IterationSummary> iterations_;
  absl::Status status_;
  ProgressMeter planning_;
  mutable std::mutex mutex_;
  absl::Status verdict_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace geopipe
