// Does a worker's checkpoint work beside its training: writes files, completes checkpoints on its node, and fetches
// files from the nodes of other workers. Stands in for the writer, the replicator and the supplied state of
// runtime/worker, on simulated disks.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/worker/worker_events.h"
#include "tests/simulation/checkpoint_disk.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class Checkpointer {
 public:
  // The disk that the worker at the address serves files of the path from, to one that has its secret; nullptr: it
  // cannot be asked.
  using FindServer = std::function<const CheckpointDisk*(const std::string& address)>;

  // The rank's preparation.
  struct Context {
    std::string path;
    int64_t keep = 1;
    uint64_t run = 0;
    uint64_t epoch = 0;
    int32_t rank = 0;
    int32_t ranks = 1;
    int64_t sequence_length = 0;
    CheckpointMark mark = {};
  };

  Checkpointer(World& world, ProcessPtr process, std::string site, CheckpointDisk& disk, FindServer find_server,
               std::function<void(WorkerEvent)> post)
      : world_(world),
        process_(std::move(process)),
        site_(std::move(site)),
        disk_(disk),
        find_server_(std::move(find_server)),
        post_(std::move(post)) {}

  // CheckpointWritten follows, once if this state is being written. Unavailable: another still is.
  absl::Status Write(Context context, int64_t iteration, uint64_t lineage);
  // ManifestWritten follows.
  void Complete(Context context, v1::WriteManifestCommand command);
  // ReplicaFetched follows; of orders that wait the newest counts.
  void Fetch(Context context, v1::ReplicateCommand command);
  // Reads the rank's units; what the node lacks is fetched from the addresses first. `done`: the lineage of the state.
  // DataLoss, NotFound: it is intact on no node that was asked.
  using Restored = std::function<void(const absl::StatusOr<uint64_t>& lineage)>;
  void Restore(Context context, const CheckpointIdentity& identity, std::vector<std::string> addresses, Restored done);

 private:
  struct Snapshot {
    Context context;
    int64_t iteration = 0;
    uint64_t lineage = 0;
    int64_t taken_ns = 0;
  };
  struct Manifest {
    Context context;
    v1::WriteManifestCommand command;
  };
  struct Replica {
    Context context;
    v1::ReplicateCommand command;
  };
  struct Reading {
    Context context;
    CheckpointIdentity identity;
    std::vector<std::string> addresses;
    Restored done;
  };
  void WriteNext();
  absl::Status WriteUnits(const Snapshot& snapshot, int32_t from, int32_t to);
  void EndWriting(const Snapshot& snapshot, const absl::Status& status);
  void FetchNext();
  absl::Status TryFetch(const Replica& replica);
  void Answer(const Replica& replica, const absl::Status& status);
  absl::StatusOr<uint64_t> TryRead(const Reading& reading);
  absl::Status FindManifest(const Reading& reading);
  // One file of the folder from the first address that has it. Unavailable: one could not be asked.
  absl::Status FetchFile(const std::string& path, int64_t iteration, const std::string& file,
                         const std::vector<std::string>& addresses);
  // Calls `attempt` until it says something else than Unavailable or patience is over, then `done`.
  void Retry(int64_t until_ns, std::function<absl::Status()> attempt, std::function<void(absl::Status)> done);

  World& world_;
  const ProcessPtr process_;
  const std::string site_;
  CheckpointDisk& disk_;
  const FindServer find_server_;
  const std::function<void(WorkerEvent)> post_;
  std::optional<std::pair<uint64_t, int64_t>> snapshot_;  // epoch and iteration of what waits to be written, or is
  bool writing_ = false;
  std::deque<std::variant<Snapshot, Manifest>> orders_;
  bool fetching_ = false;
  std::deque<Replica> replicas_;
};

}  // namespace geopipe::simulation
