#include "coordinator/core/watches.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/wire/control_wire.h"

namespace geopipe {
namespace {

// The next evaluation, once the iterations before it are told; nullptr: none is to be told yet.
const v1::EvaluationSummary* NextEvaluation(const Watches::Watch& watch, const Job& job) {
  const auto& all = job.detail.evaluations();
  const auto next = std::ranges::upper_bound(all, watch.evaluation, {}, &v1::EvaluationSummary::iteration);
  return next != all.end() && next->iteration() <= watch.next_iteration ? &*next : nullptr;
}

}  // namespace

void Watches::On(Now /*now*/, const WatchStart& event) {
  const absl::StatusOr<Job*> found = jobs_.Named(event.name, event.run);
  if (!found.ok()) {
    outbox_.Emit(EndWatch{event.call, found.status()});
    return;
  }
  const Job& job = **found;
  if (watches_.size() >= options_.max_watches) {
    outbox_.Emit(EndWatch{
        event.call, absl::ResourceExhaustedError(fmt::format(
                        "{} watches are open, which is this coordinator's limit; try again later", watches_.size()))});
    return;
  }
  // Iterations no longer kept are passed over: a late watcher gets what there is.
  const int64_t from = std::max<int64_t>(event.from_iteration, 0);
  const bool loading = job.stored.has_more && event.from_iteration < job.iterations().oldest();
  watches_[event.call] = {.job = job.name(),
                          .next_transition = 0,
                          .from_iteration = from,
                          .next_iteration = loading ? from : std::max(from, job.iterations().oldest()),
                          .evaluation = from - 1,
                          .credits = event.credits,
                          .loading = loading,
                          .next_notice = job.notices.next()};
  if (loading) {
    outbox_.Emit(LoadIterations{job.name()});
  } else {
    Feed(event.call);
  }
}

void Watches::On(Now /*now*/, const WatchMore& event) {
  if (const auto watch = watches_.find(event.call); watch != watches_.end()) {
    watch->second.credits += event.credits;
    Feed(event.call);
  }
}

void Watches::OnLoaded(const Job& job) {
  for (auto& [call, watch] : watches_) {
    if (watch.job == job.name() && std::exchange(watch.loading, false)) {
      watch.next_iteration = std::max(watch.next_iteration, job.past.oldest());
    }
  }
  Feed(job.name());
}

Watches::Ended Watches::EndAll(const std::string& job) {
  Ended ended;
  std::erase_if(watches_, [&](const auto& entry) {
    if (entry.second.job != job) {
      return false;
    }
    outbox_.Emit(
        EndWatch{entry.first, absl::AbortedError(fmt::format("{} was replaced", DisplayName(RunNameOf(job))))});
    ended.insert(entry);
    return true;
  });
  return ended;
}

void Watches::Feed(const std::string& job) {
  std::vector<CallId> calls;
  for (const auto& [call, watch] : watches_) {
    if (watch.job == job) {
      calls.push_back(call);
    }
  }
  for (const CallId call : calls) {
    Feed(call);
  }
}

// A transition comes after the iterations that were finished before it.
std::optional<v1::WatchJobResponse> Watches::Next(Watch& watch, const Job& job) {
  const IterationLog& log = job.iterations();
  v1::WatchJobResponse message;
  if (const v1::EvaluationSummary* evaluation = NextEvaluation(watch, job); evaluation != nullptr) {
    watch.evaluation = evaluation->iteration();
    *message.mutable_evaluation() = *evaluation;
    return message;
  }
  if (watch.next_transition < job.detail.transitions_size() &&
      std::min(job.iterations_before[watch.next_transition], log.next()) <= watch.next_iteration) {
    *message.mutable_transition() = job.detail.transitions(watch.next_transition++);
    return message;
  }
  if (watch.next_iteration < log.next()) {
    *message.mutable_iteration() = log.Get(watch.next_iteration++);
    return message;
  }
  if (!std::exchange(watch.greeted, true)) {
    if (std::string trouble = TroubleOf(job); !trouble.empty()) {
      message.mutable_notice()->set_text(std::move(trouble));
      message.mutable_notice()->set_is_warning(true);
      return message;
    }
  }
  if (const v1::JobNotice* notice = job.notices.Read(watch.next_notice); notice != nullptr) {
    *message.mutable_notice() = *notice;
    return message;
  }
  return std::nullopt;
}

void Watches::Feed(CallId call) {
  const auto found = watches_.find(call);
  if (found == watches_.end() || found->second.loading) {
    return;
  }
  Watch& watch = found->second;
  const Job& job = *jobs_.Find(watch.job);
  const IterationLog& log = job.iterations();
  if (job.run != nullptr && !job.run->life().checkpoints.resumable.empty()) {  // earlier ones were of another run
    const int64_t first = job.run->life().checkpoints.FirstIteration();
    const bool none_told = log.next() <= first;  // where it begins may still change
    watch.next_iteration =
        std::max(none_told && log.oldest() == log.next() ? watch.from_iteration : watch.next_iteration,
                 std::min(first, log.oldest()));
  }
  if (watch.next_iteration < log.oldest()) {
    outbox_.Emit(
        EndWatch{call, absl::ResourceExhaustedError(fmt::format(
                           "this watch of job {} fell more than {} iterations behind; watch again from iteration {}",
                           watch.job, options_.run.max_iterations_kept, log.oldest()))});
    watches_.erase(found);
    return;
  }
  SendToWatcher batch{.call = call, .messages = {}};
  for (; watch.credits > 0; --watch.credits) {
    std::optional<v1::WatchJobResponse> next = Next(watch, job);
    if (!next.has_value()) {
      break;
    }
    batch.messages.push_back(*std::move(next));
  }
  if (!batch.messages.empty()) {
    outbox_.Emit(std::move(batch));
  }
  if (IsFinal(job.state()) && watch.next_transition == job.detail.transitions_size() &&
      watch.next_iteration >= log.next() && NextEvaluation(watch, job) == nullptr) {
    outbox_.Emit(EndWatch{call, absl::OkStatus()});
    watches_.erase(found);
  }
}

}  // namespace geopipe
