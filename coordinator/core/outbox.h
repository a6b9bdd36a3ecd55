// Consequences of the step under way: its effects, which are carried out strictly in order, and what the coordinator
// still has to do before the step is over. Every part of the core writes to it; the coordinator empties it.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/events.h"

namespace geopipe {

class Outbox {
 public:
  void Emit(Effect effect) { effects_.push_back(std::move(effect)); }
  // `job`: empty for none in particular.
  void Log(LogLevel level, std::string job, std::string text) {
    Emit(LogEntry{level, std::move(job), std::move(text)});
  }
  template <class First, class... Rest>
  void Log(LogLevel level, std::string job, fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest) {
    Log(level, std::move(job), fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...));
  }
  void Reply(CallId call, absl::StatusOr<ControlReply> reply) { Emit(ReplyToCall{call, std::move(reply)}); }

  // Devices or jobs have come or gone: jobs that wait are looked at again.
  void AskToSchedule() { schedule_ = ""; }
  // A job has come: it is looked at.
  void AskToSchedule(const std::string& job) { schedule_ = schedule_.has_value() ? "" : job; }
  // The job's watchers have something to see.
  void NoteChanged(const std::string& job) { changed_.insert(job); }

  // --- Of the coordinator alone. ---
  Effects TakeEffects() { return std::exchange(effects_, {}); }
  // The job that is to be looked at; empty: all. nullopt: none is.
  std::optional<std::string> TakeSchedule() { return std::exchange(schedule_, std::nullopt); }
  std::set<std::string> TakeChanged() { return std::exchange(changed_, {}); }

 private:
  Effects effects_;
  std::optional<std::string> schedule_;
  std::set<std::string> changed_;
};

}  // namespace geopipe
