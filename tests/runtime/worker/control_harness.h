// A worker's control driven by hand, and the messages that it is given.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/worker/worker_control.h"

namespace geopipe {

inline constexpr int64_t kSecondNs = 1'000'000'000;

// A control, an agent that takes all it is sent, and the effects so far.
class Harness {
 public:
  Harness() : control_(Options(), now_ns_) { Step(WorkerTick{}); }

  static WorkerControlOptions Options() {
    WorkerControlOptions options;
    options.worker.set_site("north");
    options.version = "1";
    options.orphan_grace_ns = 30 * kSecondNs;
    options.exchange_address = "10.0.0.1:4000";
    return options;
  }

  void Step(WorkerEvent event) {
    for (WorkerEffect& effect : control_.Step(now_ns_, std::move(event))) {
      if (const auto* dial = std::get_if<DialAgent>(&effect)) {
        stream_ = dial->stream;
        hellos.push_back(dial->hello.report().hello());
      } else if (const auto* send = std::get_if<TellAgent>(&effect)) {
        CHECK(send->stream == stream_);
        ++unwritten_;
        const v1::WorkerReport& report = send->request.report();
        (report.sequence() > 0 ? reports : heartbeats).push_back(report);
        commands_taken = send->request.commands_taken();
      }
      effects.push_back(std::move(effect));
    }
    while (writes && unwritten_ > 0) {
      --unwritten_;
      Step(ReportWritten{stream_});
    }
  }
  void Open() { Step(StreamOpened{stream_}); }
  void Message(v1::AttachResponse message) {
    message.set_agent_incarnation(agent);
    Step(AgentSaid{stream_, std::move(message)});
  }
  void Beat(uint64_t reports_taken = 0) {
    v1::AttachResponse message;
    message.set_reports_taken(reports_taken);
    Message(std::move(message));
  }
  void Command(v1::WorkerCommand command, uint64_t sequence = 0) {
    v1::AttachResponse message;
    *message.mutable_command() = std::move(command);
    message.set_sequence(sequence != 0 ? sequence : ++sequence_);
    Message(std::move(message));
  }
  void Break(const absl::Status& status = absl::UnavailableError("gone")) { Step(StreamClosed{stream_, status}); }
  // Passes the time in steps of a second, each with what `each` does.
  template <class Each>
  void Pass(int64_t seconds, const Each& each) {
    for (int64_t i = 0; i < seconds; ++i) {
      now_ns_ += kSecondNs;
      each();
      Step(WorkerTick{});
    }
  }
  void Pass(int64_t seconds) {
    Pass(seconds, [] {});
  }
  void Jump(int64_t ns) { now_ns_ += ns; }
  // Looks at the clock when the control wants it to, until there is such an effect.
  template <class Effect>
  void Until() {
    for (const int count = Count<Effect>(); Count<Effect>() == count;) {
      REQUIRE(control_.next_deadline_ns() > now_ns_);
      now_ns_ = control_.next_deadline_ns();
      Step(WorkerTick{});
    }
  }

  // Counts the effects of one kind.
  template <class Effect>
  int Count() const {
    int count = 0;
    for (const WorkerEffect& effect : effects) {
      count += std::holds_alternative<Effect>(effect) ? 1 : 0;
    }
    return count;
  }
  template <class Effect>
  Effect Last() const {
    for (auto effect = effects.rbegin(); effect != effects.rend(); ++effect) {
      if (std::holds_alternative<Effect>(*effect)) {
        return std::get<Effect>(*effect);
      }
    }
    FAIL("there is no such effect");
    return {};
  }
  std::string LastLog() const { return Last<WorkerLog>().text; }
  v1::WorkerPhase phase() const { return control_.status().phase(); }
  const WorkerControl& control() const { return control_; }
  int64_t now_ns() const { return now_ns_; }
  AgentStreamId stream() const { return stream_; }

  std::vector<WorkerEffect> effects;
  std::vector<v1::WorkerReport> reports;
  std::vector<v1::WorkerReport> heartbeats;
  std::vector<v1::WorkerHello> hellos;
  uint64_t commands_taken = 0;
  uint64_t agent = 5;
  bool writes = true;

 private:
  int64_t now_ns_ = 1'000 * kSecondNs;
  WorkerControl control_;
  AgentStreamId stream_ = 0;
  uint64_t sequence_ = 0;
  int unwritten_ = 0;
};

inline v1::WorkerCommand PrepareOf(uint64_t epoch, int64_t first_iteration = 0) {
  v1::WorkerCommand command;
  command.set_epoch(epoch);
  command.mutable_prepare()->set_rank(1);
  command.mutable_prepare()->set_first_iteration(first_iteration);
  return command;
}

inline v1::WorkerCommand CommitOf(uint64_t epoch, int64_t end_iteration = 10) {
  v1::WorkerCommand command;
  command.set_epoch(epoch);
  command.mutable_commit()->set_end_iteration(end_iteration);
  return command;
}

inline v1::WorkerCommand EndOf(uint64_t epoch, std::optional<int64_t> next_iteration = std::nullopt) {
  v1::WorkerCommand command;
  command.set_epoch(epoch);
  command.mutable_end_epoch();
  if (next_iteration.has_value()) {
    command.mutable_end_epoch()->set_next_iteration(*next_iteration);
  }
  return command;
}

inline v1::WorkerCommand StopOf() {
  v1::WorkerCommand command;
  command.mutable_stop()->set_reason("enough");
  return command;
}

inline RunStates StatesAt(uint64_t epoch, int64_t next_iteration) {
  return {.run_incarnation = 1, .held = StateIdentity{.iteration = next_iteration, .epoch = epoch}};
}

inline Prepared PreparedOf(uint64_t epoch, int64_t next_iteration = 0) {
  v1::PreparedReport report;
  report.set_rank(1);
  report.set_address("here");
  return {.epoch = epoch, .report = report, .states = StatesAt(epoch, next_iteration)};
}

inline IterationFinished FinishedOf(uint64_t epoch, int64_t iteration) {
  IterationFinished finished{.epoch = epoch, .report = {}};
  finished.report.set_iteration(iteration);
  return finished;
}

inline TrainingReturned ReturnedOf(uint64_t epoch, int64_t next_iteration, absl::Status status = absl::OkStatus(),
                                   std::vector<int64_t> unmet_requests = {}) {
  return {.epoch = epoch,
          .status = std::move(status),
          .states = StatesAt(epoch, next_iteration),
          .peaks = {},
          .unmet_requests = std::move(unmet_requests)};
}

// Drives the worker to training.
inline void Train(Harness& worker, uint64_t epoch, int64_t first_iteration = 0) {
  worker.Command(PrepareOf(epoch, first_iteration));
  worker.Step(PreparedOf(epoch, first_iteration));
  worker.Command(CommitOf(epoch));
  worker.Step(Connected{epoch});
  REQUIRE(worker.phase() == v1::WORKER_PHASE_TRAINING);
}

inline v1::WorkerCommand CheckpointOf(uint64_t epoch, int64_t iteration) {
  v1::WorkerCommand command;
  command.set_epoch(epoch);
  command.mutable_checkpoint()->set_iteration(iteration);
  return command;
}

inline CheckpointTaken TakenOf(int64_t iteration, absl::Status status = absl::OkStatus()) {
  return {.epoch = 3, .iteration = iteration, .status = std::move(status)};
}

inline CheckpointWritten WrittenOf(int64_t iteration) {
  CheckpointWritten written{.epoch = 3, .report = {}};
  written.report.set_iteration(iteration);
  return written;
}

// The reports of checkpoints so far: iterations and errors.
using Told = std::vector<std::pair<int64_t, std::string>>;
inline Told ToldBy(const Harness& worker) {
  Told told;
  for (const v1::WorkerReport& report : worker.reports) {
    if (report.has_checkpoint()) {
      told.emplace_back(report.checkpoint().iteration(), report.checkpoint().error());
    }
  }
  return told;
}

inline const absl::Status kBusy = absl::UnavailableError("the one before is still being written");

// A worker in epoch 3, which ends at iteration 10.
struct Training : Harness {
  Training() {
    Open();
    Train(*this, 3);
  }
};

}  // namespace geopipe
