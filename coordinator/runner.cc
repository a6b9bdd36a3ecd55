#include "coordinator/runner.h"

#include <chrono>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "coordinator/core/run/epoch.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

absl::StatusOr<ControlReply> BackUp(JobStore& store, int64_t now_unix_ns) {
  GP_ASSIGN_OR_RETURN(const std::string path, store.Backup(now_unix_ns));
  v1::BackupStoreResponse response;
  response.set_path(path);
  std::error_code error;
  response.set_bytes(static_cast<int64_t>(std::filesystem::file_size(path, error)));
  return response;
}

}  // namespace

Runner::Runner(std::unique_ptr<Coordinator> core, const RunnerParts& parts) : core_(std::move(core)), parts_(parts) {}

absl::Status Runner::Start() {
  std::vector<Event> failed;
  return CarryOut(core_->Start({parts_.clock.NowNs(), parts_.clock.UnixNowNs()}), &failed);
}

absl::Status Runner::Run() {
  int64_t next_tick_ns = parts_.clock.NowNs() + parts_.tick_ns;
  while (!parts_.inbox.closed()) {
    const int64_t wait_ns = next_tick_ns - parts_.clock.NowNs();
    if (std::optional<Event> event = parts_.inbox.Pop(std::chrono::nanoseconds(wait_ns > 0 ? wait_ns : 0));
        event.has_value()) {
      parts_.port.RoomMade();
      GP_RETURN_IF_ERROR(Take(*std::move(event)));
    }
    if (const int64_t now_ns = parts_.clock.NowNs(); now_ns >= next_tick_ns) {
      next_tick_ns = now_ns + parts_.tick_ns;
      GP_RETURN_IF_ERROR(Take(Tick{}));
    }
  }
  return absl::OkStatus();
}

absl::Status Runner::Take(Event event) {
  const Now now{parts_.clock.NowNs(), parts_.clock.UnixNowNs()};
  if (parts_.observer != nullptr) {
    parts_.observer->OnEvent(event);
  }
  const bool submits = std::holds_alternative<ApplyJob>(event);
  std::vector<Event> next;
  GP_RETURN_IF_ERROR(CarryOut(core_->Step(now, std::move(event)), &next));
  if (submits && next.empty()) {
    next.emplace_back(JobStored{});
  }
  while (!next.empty()) {  // a step on an answer may ask the store for something, too
    std::vector<Event> answers = std::exchange(next, {});
    for (Event& each : answers) {
      GP_RETURN_IF_ERROR(CarryOut(core_->Step(now, std::move(each)), &next));
    }
  }
  return absl::OkStatus();
}

absl::Status Runner::CarryOut(Effects effects, std::vector<Event>* answers) {
  for (Effect& effect : effects) {
    absl::Status status = std::visit(
        [&](auto& each) -> absl::Status {
          using Kind = std::decay_t<decltype(each)>;
          if constexpr (std::is_same_v<Kind, PersistNewJob>) {
            return parts_.store.InsertJob(each.detail, each.record, each.forget, each.keep_below, each.keep_as);
          } else if constexpr (std::is_same_v<Kind, PersistTransition>) {
            return parts_.store.AddTransition(each.job, each.sequence, each.transition,
                                              each.outcome.has_value() ? &*each.outcome : nullptr,
                                              each.record.has_value() ? &*each.record : nullptr,
                                              each.progress.has_value() ? &*each.progress : nullptr);
          } else if constexpr (std::is_same_v<Kind, PersistRecord>) {
            return parts_.store.SetRecord(each.job, each.record, each.outcome.has_value() ? &*each.outcome : nullptr);
          } else if constexpr (std::is_same_v<Kind, PersistDrained>) {
            return parts_.store.SetDrained(each.site, each.drained);
          } else if constexpr (std::is_same_v<Kind, PersistProgress>) {
            return parts_.store.AddProgress(each.progress, each.links);
          } else if constexpr (std::is_same_v<Kind, LoadIterations>) {
            answers->push_back(IterationsLoaded{each.job, parts_.store.LoadIterations(each.job)});
          } else if constexpr (std::is_same_v<Kind, LoadTimelines>) {
            answers->push_back(TimelinesLoaded{each.job, each.call, parts_.store.LoadTimelines(each.job)});
          } else if constexpr (std::is_same_v<Kind, WriteBackup>) {
            parts_.calls.Reply(each.call, BackUp(parts_.store, parts_.clock.UnixNowNs()));
          } else if constexpr (std::is_same_v<Kind, SendToAgent>) {
            parts_.agents.Send(each.session, std::move(each.message));
          } else if constexpr (std::is_same_v<Kind, CloseSession>) {
            parts_.agents.Close(each.session, each.status);
          } else if constexpr (std::is_same_v<Kind, ReplyToCall>) {
            parts_.calls.Reply(each.call, std::move(each.reply));
          } else if constexpr (std::is_same_v<Kind, SendToWatcher>) {
            parts_.calls.SendToWatcher(each.call, std::move(each.messages));
          } else if constexpr (std::is_same_v<Kind, EndWatch>) {
            parts_.calls.EndWatch(each.call, each.status);
          } else if constexpr (std::is_same_v<Kind, StartPlanning>) {
            parts_.planner.Start(std::move(each));
          } else if constexpr (std::is_same_v<Kind, StopPlanning>) {
            parts_.planner.Stop(each);
          } else if constexpr (std::is_same_v<Kind, DrawSecret>) {
            answers->push_back(SecretDrawn{each.job, each.incarnation, RandomBytes(kEpochSecretBytes)});
          } else if constexpr (std::is_same_v<Kind, IterationsFinished> || std::is_same_v<Kind, LinkMeasured>) {
            // Only the observer uses these.
          } else {
            static_assert(std::is_same_v<Kind, LogEntry>);
            LogLine(each.level, LogContext{.job = each.job, .epoch = {}, .site = {}, .worker = {}}, each.text);
          }
          return absl::OkStatus();
        },
        effect);
    if (!status.ok()) {
      if (const auto* submission = std::get_if<PersistNewJob>(&effect); submission != nullptr) {
        answers->push_back(PersistFailed{submission->detail.summary().name(), submission->call, status});
        return absl::OkStatus();
      }
      if (const auto* drained = std::get_if<PersistDrained>(&effect); drained != nullptr) {
        answers->push_back(DrainNotStored{drained->site, drained->drained, drained->call, status});
        return absl::OkStatus();
      }
      if (auto* progress = std::get_if<PersistProgress>(&effect); progress != nullptr) {
        answers->push_back(ProgressNotStored{std::move(*progress), status});
        return absl::OkStatus();
      }
      return status;
    }
    if (parts_.observer != nullptr) {
      parts_.observer->OnEffect(effect);
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
