// Says of jobs what their states do not.
#include <fmt/format.h>

#include <utility>

#include "coordinator/core/coordinator.h"
#include "runtime/base/utf8.h"

namespace geopipe {

void Coordinator::Notify(Now now, Job& job, LogLevel level, v1::JobNotice notice) {
  outbox_.Log(level, job.name(), notice.text());
  notice.set_unix_time_ns(now.unix_ns);
  notice.set_text(ToUtf8(notice.text()));
  notice.set_is_warning(level != LogLevel::kInfo);
  job.notices.Add(std::move(notice));
  outbox_.NoteChanged(job.name());
}

// Notes which nodes are in trouble, and for how long that alone has kept the job from an iteration: a pause between two
// troubles begins anew.
void Coordinator::NoteTroubles(Now now, Job& job, const Reaction& reaction) {
  constexpr int64_t kPauseNs = 180'000'000'000;
  if (reaction.iterations_finished > 0) {
    job.unfit_since_ns.reset();
  }
  if (!reaction.loss.has_value()) {
    return;
  }
  for (const LostWorker& lost : reaction.loss->workers) {
    if (!lost.of_node && !lost.of_peer) {
      continue;
    }
    if (lost.of_node) {
      membership_.NoteTrouble(lost.worker.node_key(), now.ns, lost.cause);
    }
    if (!job.unfit_since_ns.has_value() || now.ns - job.unfit_last_ns > kPauseNs) {
      job.unfit_since_ns = now.ns;
    }
    job.unfit_last_ns = now.ns;
  }
}

// A job that loses workers again before it finishes an iteration gets nowhere, whichever worker is lost.
void Coordinator::NoteLosses(Now now, Job& job, const Reaction& reaction) {
  v1::JobSummary& summary = *job.detail.mutable_summary();
  const bool runs = job.state() == v1::JOB_STATE_RUNNING && job.run != nullptr;
  if (runs && job.run->crew().reached > job.run->life().epoch->first_iteration && summary.losses() > 0) {
    const int32_t losses = summary.losses();
    summary.set_losses(0);
    if (losses >= kNotableLosses) {
      v1::JobNotice notice;
      notice.set_text(fmt::format("an iteration is finished again, after {} losses", losses));
      Notify(now, job, LogLevel::kInfo, std::move(notice));
    }
  }
  if (!reaction.loss.has_value()) {
    return;
  }
  summary.set_losses(summary.losses() + 1);
  if (summary.losses() >= kNotableLosses) {
    v1::JobNotice notice;
    notice.set_losses(summary.losses());
    notice.set_text(fmt::format("the job has lost workers {} times without finishing an iteration; last: {}",
                                summary.losses(), reaction.loss->cause));
    Notify(now, job, LogLevel::kWarning, std::move(notice));
  }
}

// Notifies once when checkpoints begin to fail, and once when one is complete again.
void Coordinator::NoteSaving(Now now, Job& job, const Reaction& reaction) {
  v1::JobNotice notice;
  if (reaction.checkpoint_trouble.has_value()) {
    job.detail.set_checkpoint_trouble(ToUtf8(*reaction.checkpoint_trouble));
    if (!std::exchange(job.saving_fails, true)) {
      notice.set_text(*reaction.checkpoint_trouble);
      Notify(now, job, LogLevel::kWarning, std::move(notice));
    }
  } else if (reaction.checkpoint.has_value() && std::exchange(job.saving_fails, false)) {
    notice.set_text(fmt::format("checkpoints are written again: that of iteration {} is complete",
                                reaction.checkpoint->identity.iteration));
    Notify(now, job, LogLevel::kInfo, std::move(notice));
  }
}

void Coordinator::SayWait(Now now, Job& job) {
  constexpr int64_t kEveryNs = 10'000'000'000;
  if (job.run == nullptr || !job.run->At(now.ns).AllDone()) {
    job.say_wait_at_ns = 0;
    return;
  }
  if (job.say_wait_at_ns == 0) {
    job.say_wait_at_ns = now.ns + kEveryNs;
  }
  if (now.ns < job.say_wait_at_ns) {
    return;
  }
  job.say_wait_at_ns = now.ns + kEveryNs;
  v1::JobNotice notice;
  notice.set_is_waiting(true);
  notice.set_text(job.run->WaitsFor());
  if (notice.text().empty()) {
    notice.set_text("all iterations are done; the last reports of its workers are awaited");
  }
  Notify(now, job, LogLevel::kInfo, std::move(notice));
}

void Coordinator::NoteStays(Now now, Job& job) {
  v1::JobNotice notice;
  notice.set_text(
      fmt::format("the job is not cancelled but stays PAUSED before iteration {}, for its checkpoint cannot "
                  "be written: {}",
                  *job.run->life().ended_at, job.run->crew().checkpoint_trouble));
  notice.set_stays(true);
  job.closing.clear();
  outbox_.Emit(PersistRecord{job.name(), RecordOf(job)});
  Notify(now, job, LogLevel::kWarning, std::move(notice));
}

}  // namespace geopipe
