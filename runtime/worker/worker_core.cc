#include "runtime/worker/worker_core.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"

namespace geopipe {
namespace {

constexpr size_t kEventCapacity = 1024;

WorkerControlOptions WithKept(WorkerControlOptions options, const KeptStates* kept) {
  if (kept != nullptr && kept->owner().has_value()) {
    options.kept.run_incarnation = kept->owner()->run_incarnation;
    options.kept.kept = kept->List(options.kept.run_incarnation);
  }
  return options;
}

}  // namespace

WorkerCore::WorkerCore(WorkerIdentity identity, WorkerControlOptions options, Clock& clock, Hooks hooks,
                       std::unique_ptr<KeptStates> kept)
    : clock_(clock),
      hooks_(std::move(hooks)),
      control_(WithKept(std::move(options), kept.get()), clock.NowNs()),
      events_(kEventCapacity),
      trainer_(std::move(identity), clock,
               {.post = [this](WorkerEvent event) { Post(std::move(event)); },
                .on_iteration = hooks_.on_iteration,
                .open_transport = hooks_.open_transport,
                .open_profile = hooks_.open_profile,
                .extend_job = hooks_.extend_job,
                .file_server = hooks_.file_server,
                .pace_exchange = hooks_.pace_exchange,
                .gpu_library = hooks_.gpu_library},
               std::move(kept)) {}

WorkerCore::~WorkerCore() {
  trainer_.Interrupt();
  events_.Close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void WorkerCore::Start() {
  thread_ = std::thread([this] { Run(); });
}

void WorkerCore::Post(WorkerEvent event) { events_.Push(std::move(event)); }

bool WorkerCore::WaitExit(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return exited_condition_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return exited_; });
}

void WorkerCore::Run() {
  NameThisThread("control");
  WorkerEffects effects = control_.Step(clock_.NowNs(), WorkerTick{});
  while (!events_.closed()) {
    for (WorkerEffect& effect : effects) {
      if (!CarryOut(std::move(effect))) {
        return;
      }
    }
    const int64_t now_ns = clock_.NowNs();
    const std::chrono::nanoseconds wait(std::max<int64_t>(0, control_.next_deadline_ns() - now_ns));
    std::optional<WorkerEvent> event = wait.count() > 0 ? events_.Pop(wait) : std::nullopt;
    if (!event.has_value()) {
      WorkerTick tick = trainer_.Progress();
      tick.has_home = !hooks_.has_home || hooks_.has_home();
      event = std::move(tick);
    } else if (auto* returned = std::get_if<TrainingReturned>(&*event)) {
      returned->unmet_requests = trainer_.TakeRequests();  // here: the control asks until it has heard of the return
    }
    effects = control_.Step(clock_.NowNs(), *std::move(event));
  }
}

bool WorkerCore::CarryOut(WorkerEffect effect) {
  if (auto* dial = std::get_if<DialAgent>(&effect)) {
    hooks_.dial(std::move(*dial));
  } else if (const auto* hang_up = std::get_if<HangUp>(&effect)) {
    hooks_.hang_up(hang_up->stream);
  } else if (auto* send = std::get_if<TellAgent>(&effect)) {
    hooks_.send(std::move(*send));
  } else if (auto* profile = std::get_if<RunProfile>(&effect)) {
    trainer_.Run(std::move(*profile));
  } else if (auto* prepare = std::get_if<RunPrepare>(&effect)) {
    trainer_.Run(std::move(*prepare));
  } else if (auto* commit = std::get_if<RunCommit>(&effect)) {
    trainer_.Run(std::move(*commit));
  } else if (const auto* checkpoint = std::get_if<RunCheckpoint>(&effect)) {
    trainer_.Run(*checkpoint);
  } else if (const auto* request = std::get_if<RequestCheckpoint>(&effect)) {
    trainer_.Request(*request);
  } else if (auto* manifest = std::get_if<CompleteCheckpoint>(&effect)) {
    trainer_.Complete(std::move(*manifest));
  } else if (auto* replica = std::get_if<FetchReplica>(&effect)) {
    trainer_.Replicate(std::move(*replica));
  } else if (const auto* end = std::get_if<EndTraining>(&effect)) {
    trainer_.End(end->abandon_from);
  } else if (std::holds_alternative<InterruptTrainer>(effect)) {
    trainer_.Interrupt();
  } else if (const auto* epoch = std::get_if<EnterEpoch>(&effect)) {
    if (hooks_.on_epoch) {
      hooks_.on_epoch(epoch->epoch);
    }
  } else if (const auto* line = std::get_if<WorkerLog>(&effect)) {
    Log(line->level, LogContext{}, "{}", line->text);
  } else {
    hooks_.on_exit(std::get<ExitWorker>(effect));
    events_.Close();
    const std::lock_guard lock(mutex_);
    exited_ = true;
    exited_condition_.notify_all();
    return false;
  }
  return true;
}

}  // namespace geopipe
