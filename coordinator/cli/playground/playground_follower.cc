#include "coordinator/cli/playground/playground_follower.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/run_report.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"

namespace geopipe {
namespace {

absl::Status GivenUp(std::string why) { return WithExitCode(absl::AbortedError(std::move(why)), kExitFailed); }

}  // namespace

PlaygroundFollower::PlaygroundFollower(ControlClient& client, const JobSpec& job, std::FILE* lines, Options options)
    : client_(client), job_(job), lines_(lines), terminal_(isatty(fileno(lines)) != 0), options_(std::move(options)) {
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
  (void)!write(options_.done_fd, &one, sizeof(one));
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
  if (event.has_evaluation()) {
    Print(EvaluationLine(event.evaluation()));
    PrintBar();
    return;
  }
  if (event.has_notice()) {
    OnNotice(event.notice());
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

// Ends what the coordinator would continue for ever, since a person may mend the cause there but not in a playground.
void PlaygroundFollower::OnNotice(const v1::JobNotice& notice) {
  constexpr int32_t kMaxLosses = 3;
  constexpr int64_t kSaidEveryNs = 10'000'000'000;
  Print(NoticeLine(notice));
  if (notice.losses() >= kMaxLosses) {
    EndWith(GivenUp(fmt::format("job {} gets nowhere: {}", job_.name, notice.text())));
  } else if (notice.stays()) {
    EndWith(GivenUp(notice.text()));
  } else if (notice.is_waiting()) {
    const int64_t now_ns = Clock::Real().NowNs();
    waiting_since_ns_ = waiting_since_ns_ == 0 ? now_ns - kSaidEveryNs : waiting_since_ns_;
    if (now_ns - waiting_since_ns_ >= options_.patience_ns) {
      EndWith(GivenUp(fmt::format(
          "job {} has done all its iterations and has not ended {} later: {}; mend that and go on from its newest "
          "checkpoint",
          job_.name, FormatDuration(options_.patience_ns), notice.text())));
    }
  }
}

void PlaygroundFollower::EndWith(absl::Status verdict) {
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_.ok()) {
      return;  // the first one counts
    }
    verdict_ = std::move(verdict);
  }
  const uint64_t one = 1;
  (void)!write(options_.alarm_fd, &one, sizeof(one));
}

absl::Status PlaygroundFollower::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
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
    if (absl::Status admitted = options_.admit ? options_.admit(*detail) : absl::OkStatus(); !admitted.ok()) {
      EndWith(std::move(admitted));
    }
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
