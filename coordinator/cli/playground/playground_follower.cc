#include "coordinator/cli/playground/playground_follower.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/run_report.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"

namespace geopipe {

PlaygroundFollower::PlaygroundFollower(ControlClient& client, const JobSpec& job, std::FILE* lines, int done_fd)
    : client_(client), job_(job), lines_(lines), terminal_(isatty(fileno(lines)) != 0), done_fd_(done_fd) {
  thread_ = std::thread([this] { Run(); });
}

PlaygroundFollower::~PlaygroundFollower() {
  client_.StopWatching();
  Join();
}

void PlaygroundFollower::Join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void PlaygroundFollower::Run() {
  status_ = client_.WatchJob(job_.name, 0, [this](const v1::WatchJobResponse& event) {
    OnEvent(event);
    return true;
  });
  // An eventfd takes 8 bytes or is full, and then it is readable already.
  const uint64_t one = 1;
  (void)!write(done_fd_, &one, sizeof(one));
}

void PlaygroundFollower::OnEvent(const v1::WatchJobResponse& event) {
  planning_.End();
  if (event.has_iteration()) {
    if (total_ == 0) {
      const absl::StatusOr<v1::JobDetail> detail = client_.GetJob(job_.name);
      total_ = detail.ok() ? detail->summary().iterations_total() : job_.training.iterations;
    }
    iterations_.push_back(event.iteration());
    Print(IterationLine(event.iteration(), total_, job_.training.tokens_per_iteration));
    PrintBar();
    return;
  }
  const v1::JobState state = event.transition().state();
  Print(fmt::format("{:<10} {}", JobStateName(state), event.transition().cause()));
  if (state == v1::JOB_STATE_PLANNING) {
    planning_.Begin({.what = "planning"});
  }
  if (state == v1::JOB_STATE_DEPLOYING) {
    PrintPlan();
  }
}

void PlaygroundFollower::PrintPlan() {
  const absl::StatusOr<v1::JobDetail> detail = client_.GetJob(job_.name);
  if (!detail.ok() || !detail->has_plan()) {
    return;
  }
  const absl::StatusOr<Plan> plan = FromProto(detail->plan());
  const absl::StatusOr<Prediction> prediction = FromProto(detail->prediction());
  if (plan.ok() && prediction.ok() && plan_ != *plan) {  // unchanged after a loss
    plan_ = *plan;
    Print(fmt::format("\nplan          {}\n{}{}\n{}", PlanHeadline(*plan),
                      WarningText({detail->warnings().begin(), detail->warnings().end()}), PredictionText(*prediction),
                      StageTable(*plan, {Rows::kFolded, TextColumns()})));
  }
}

void PlaygroundFollower::Print(const std::string& line) {
  PrintTo(lines_, "{}{}\n", terminal_ ? "\r\033[K" : "", WrapLines(line, TextColumns()));
  (void)FlushOutput();
}

void PlaygroundFollower::PrintBar() {
  constexpr size_t kWidth = 40;
  const auto total = static_cast<size_t>(total_);
  if (!terminal_ || total == 0 || iterations_.size() >= total) {
    return;
  }
  const size_t filled = std::min(kWidth, iterations_.size() * kWidth / total);
  PrintTo(lines_, "[{}{}] {}/{}", std::string(filled, '='), std::string(kWidth - filled, ' '), iterations_.size(),
          total);
  (void)FlushOutput();
}

}  // namespace geopipe
