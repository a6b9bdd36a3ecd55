// Writes a rank's part of checkpoints on a thread of its own, while training goes on. It holds one copy of the state at
// a time: a disk that is slower than training must cost checkpoints, not memory.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "runtime/base/clock.h"
#include "runtime/base/inbox.h"
#include "runtime/checkpoint/checkpoint_root.h"
#include "runtime/checkpoint/state/state_snapshot.h"
#include "runtime/worker/worker_events.h"

namespace geopipe {

// Job, rank and epoch of the checkpoints that a rank writes.
struct CheckpointContext {
  JobSpec job;
  int64_t sequence_length = 0;
  uint64_t incarnation = 0;
  uint64_t epoch = 0;
  int32_t rank = 0;
  CheckpointMark mark = {};

  bool wanted() const { return !job.checkpoint.path.empty(); }
};

// A rank's state before an iteration, to be filled in place.
struct RankSnapshot {
  std::shared_ptr<const void> memory;  // keeps what the stages lie in
  std::vector<StateSnapshot> stages;
  Completion copied;  // the stages are whole
  CheckpointContext context;
  int64_t iteration = 0;
  int64_t taken_ns = 0;  // when copying began
};

class CheckpointWriter {
 public:
  // `post` is called on the writer's thread and may wait for room. `clock` outlives the writer.
  CheckpointWriter(Clock& clock, std::function<void(WorkerEvent)> post);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Waits for the file under way; the rest is not written.
  ~CheckpointWriter();

  // Takes the only snapshot, with the memory that it had; nullptr: it is being written. Any thread.
  std::unique_ptr<RankSnapshot> Take();
  // Give it back: unwritten, or to be written once it is whole, which CheckpointWritten answers.
  void GiveBack(std::unique_ptr<RankSnapshot> snapshot);
  void Write(std::unique_ptr<RankSnapshot> snapshot);
  // Answered by ManifestWritten, after the snapshot that is being written.
  void WriteManifest(CheckpointContext context, v1::WriteManifestCommand command);

  // CheckCheckpointRoot, and lists the checkpoints that are complete. Errors are one sentence. Any thread.
  static absl::StatusOr<std::vector<v1::CheckpointIdentity>> Find(const std::string& path, const CheckpointMark& mark);
  // FailedPrecondition: the folder has a checkpoint that the run has written after `known_epoch`, the last one that the
  // coordinator knows: its store is older than the run. What cannot be read counts as nothing.
  static absl::Status CheckNoneLater(const std::string& path, uint64_t run_incarnation, uint64_t known_epoch);

 private:
  struct Manifest {
    CheckpointContext context;
    v1::WriteManifestCommand command;
  };
  using Order = std::variant<std::unique_ptr<RankSnapshot>, Manifest>;

  void Loop();
  void Do(std::unique_ptr<RankSnapshot> snapshot);
  void Do(const Manifest& order);
  absl::Status WriteFiles(const RankSnapshot& snapshot, v1::CheckpointReport& report);
  absl::Status Complete(const Manifest& order);
  static void RemoveOldOnes(const Manifest& order);

  Clock& clock_;
  const std::function<void(WorkerEvent)> post_;
  Inbox<Order> orders_;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::unique_ptr<RankSnapshot> free_;
  std::thread thread_;
};

}  // namespace geopipe
