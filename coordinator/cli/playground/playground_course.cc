#include "coordinator/cli/playground/playground_course.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/cli/job_checkpoints.h"
#include "coordinator/cli/playground/playground_follower.h"
#include "coordinator/cli/playground/playground_memory.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/output.h"
#include "runtime/base/poll.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

constexpr int64_t kAnswerTimeoutNs = 10'000'000'000;
// Together with PlaygroundCluster::Stop's grace it keeps the promise that everything is gone five seconds after a
// signal that is to end it at once.
constexpr int64_t kCancelTimeoutNs = 1'000'000'000;
constexpr int64_t kLastWordsTimeoutNs = 8'000'000'000;

std::string_view CancelReason(int signal) {
  return signal == SIGHUP    ? "the terminal was closed"
         : signal == SIGTERM ? "the playground was told to stop (SIGTERM)"
                             : "interrupted at the terminal";
}

// Checks that this host holds what its processes would take with the plan that the job has got.
absl::Status AdmitPlan(const Course& course, const v1::JobDetail& detail) {
  const std::optional<int64_t> available = AvailableMemoryBytes();
  const absl::StatusOr<Plan> plan = FromProto(detail.plan());
  const absl::StatusOr<Schedule> schedule = FromProto(detail.schedule());
  if (!available.has_value() || !plan.ok() || !schedule.ok()) {
    return absl::OkStatus();
  }
  absl::Status held = CheckHostHolds(course.job, course.run.backend, *plan, *schedule, *available);
  return held.ok() ? held : WithExitCode(std::move(held), kExitInfeasible);
}

class Follow {
 public:
  Follow(ControlClient& client, const Course& course, int done_fd, int alarm_fd)
      : course_(course),
        follower_(client, course.job, course.lines,
                  {.done_fd = done_fd,
                   .alarm_fd = alarm_fd,
                   .patience_ns = course.limits.patience_ns,
                   .admit = [&course](const v1::JobDetail& detail) { return AdmitPlan(course, detail); }}),
        fds_{{done_fd, POLLIN, 0}, {course.shutdown.fd(), POLLIN, 0}, {alarm_fd, POLLIN, 0}} {
    for (const int pidfd : course.cluster.pidfds()) {
      fds_.push_back({pidfd, POLLIN, 0});
    }
  }

  absl::StatusOr<Outcome> Run(ControlClient& client) {
    PollFor(fds_, -1);
    Outcome outcome;
    if (!is_done() && is_signalled()) {
      outcome.signal = course_.shutdown.Wait(0);
      End(CancelReason(outcome.signal));
    } else if (!is_done() && is_alarmed()) {
      outcome.given_up = follower_.verdict();
      Cancel("the playground has given it up");
    } else if (!is_done()) {
      // An agent that ends fails the job: the coordinator's own words come first when it still can say them.
      PollFor(std::span(fds_).first(2), kLastWordsTimeoutNs);
      if (const absl::Status ended = course_.cluster.Check(); !ended.ok() && !is_done()) {
        return ended;
      }
    }
    client.StopWatching();
    follower_.Join();
    const bool is_ended = outcome.signal != 0 || !outcome.given_up.ok();
    if (!follower_.status().ok() && !absl::IsCancelled(follower_.status()) && !is_ended) {
      GP_RETURN_IF_ERROR(course_.cluster.Check());
      return follower_.status();
    }
    ControlClient last(course_.cluster.endpoint(), is_ended ? kCancelTimeoutNs : kAnswerTimeoutNs);
    const absl::StatusOr<v1::JobDetail> detail = last.GetJob(course_.job.name);
    if (detail.ok()) {
      outcome.report.detail = *detail;
    } else if (!is_ended) {
      return detail.status();
    }
    outcome.report.iterations = follower_.iterations();
    if (is_ended && detail.ok() && !course_.job.checkpoint.path.empty() && !outcome.completed()) {
      SayHowToGoOn(*detail);
    }
    return outcome;
  }

 private:
  bool is_done() { return PollFor(std::span(fds_).first(1), 0) > 0; }
  bool is_signalled() const { return (fds_[1].revents & POLLIN) != 0; }
  bool is_alarmed() const { return (fds_[2].revents & POLLIN) != 0; }

  // Ends the job, with a checkpoint if there can be one and it is there in time.
  void End(std::string_view why) {
    if (course_.job.checkpoint.path.empty() || course_.limits.grace_ns == 0) {
      PrintErr("\n{}: cancelling the job\n", why);
      Cancel(why);
      return;
    }
    ControlClient canceller(course_.cluster.endpoint(), kCancelTimeoutNs);
    const absl::Status asked = canceller.CancelJob(course_.job.name, std::string(why), /*checkpoint=*/true).status();
    if (asked.ok()) {
      PrintErr(
          "\n{}: the job ends with a checkpoint behind the iteration under way, within {}; another signal ends it "
          "at once\n",
          why, FormatDuration(course_.limits.grace_ns));
      PollFor(std::span(fds_).first(3), course_.limits.grace_ns);
      if (is_done()) {
        return;
      }
      PrintErr("{}: cancelling the job without it\n",
               is_signalled() ? "told again to stop"
               : is_alarmed()
                   ? std::string(follower_.verdict().message())
                   : fmt::format("the checkpoint is not complete after {}", FormatDuration(course_.limits.grace_ns)));
    }
    Cancel(why);
  }

  void Cancel(std::string_view why) {
    ControlClient canceller(course_.cluster.endpoint(), kCancelTimeoutNs);
    (void)canceller.CancelJob(course_.job.name, std::string(why));
    PollFor(std::span(fds_).first(1), kCancelTimeoutNs);
  }

  void SayHowToGoOn(const v1::JobDetail& detail) const {
    const std::string folder = NewestCheckpointFolder(detail);
    const int64_t done = detail.summary().iterations_done();
    if (folder.empty()) {
      // A checkpoint that the job was to resume from is still there.
      PrintErr("no checkpoint of this run is complete{}\n",
               done == 0 ? "" : fmt::format(": its {} are lost", Counted(done, "iteration")));
      return;
    }
    const int64_t saved = detail.checkpoints().rbegin()->identity().iteration();
    PrintErr("the job is saved before iteration {}{}: {}\n", saved,
             saved < done ? fmt::format(", and the {} after it are lost", Counted(done - saved, "iteration")) : "",
             folder);
    if (!course_.resume_command.empty()) {
      PrintErr("go on with: {}\n", course_.resume_command);
    }
  }

  const Course& course_;
  PlaygroundFollower follower_;
  std::vector<pollfd> fds_;
};

}  // namespace

absl::StatusOr<Outcome> FollowCourse(ControlClient& client, const Course& course) {
  const UniqueFd done(eventfd(0, EFD_CLOEXEC));
  const UniqueFd alarm(eventfd(0, EFD_CLOEXEC));
  if (done.get() < 0 || alarm.get() < 0) {
    return ErrnoStatus(errno, "eventfd");
  }
  Follow follow(client, course, done.get(), alarm.get());
  return follow.Run(client);
}

}  // namespace geopipe
