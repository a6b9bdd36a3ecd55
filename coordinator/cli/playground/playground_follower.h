// Follows a playground's job on a thread of its own: prints what happens and keeps what it saw.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <cstdio>
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
  // Lines go to `lines`, with a progress bar below them where that is a terminal; how long planning takes is told on
  // standard error. `done_fd` (an eventfd, not owned)
  // becomes readable at the end. `client` and `job` must outlive the follower.
  PlaygroundFollower(ControlClient& client, const JobSpec& job, std::FILE* lines, int done_fd);
  ~PlaygroundFollower();
  PlaygroundFollower(const PlaygroundFollower&) = delete;
  PlaygroundFollower& operator=(const PlaygroundFollower&) = delete;

  // Waits for the end of the watch. Afterwards iterations() and status() may be read.
  void Join();

  const std::vector<v1::IterationSummary>& iterations() const { return iterations_; }
  const absl::Status& status() const { return status_; }

 private:
  void Run();
  void OnEvent(const v1::WatchJobResponse& event);
  void PrintPlan();
  void Print(const std::string& line);
  void PrintBar();

  ControlClient& client_;
  const JobSpec& job_;
  std::FILE* lines_;
  const bool terminal_;
  const int done_fd_;
  int64_t total_ = 0;         // the watching thread's until Join, as what is below
  std::optional<Plan> plan_;  // printed last
  std::vector<v1::IterationSummary> iterations_;
  absl::Status status_;
  ProgressMeter planning_;
  std::thread thread_;
};

}  // namespace geopipe
