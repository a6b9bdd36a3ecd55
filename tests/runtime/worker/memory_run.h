// Whole ranks of one plan in one process (engine, data, UCX transport, collectives, executor), whose memory is
// measured.
#pragma once

#include <absl/status/status.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/plan/rank_memory.h"
#include "runtime/worker/rank_job.h"
#include "tests/support/durations.h"
#include "tests/support/temp_dir.h"

namespace geopipe {

// A pipeline of a small model: one rank of it per stage, each of `tensor` times `data` ranks.
struct MemorySetting {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  std::string sites;  // one letter per stage
  std::vector<int32_t> delta_n;
  int64_t batch = 1;
  int64_t sequence = 64;
  bool tied = false;
  bool clips = true;
  CommMode comm = CommMode::kNonBlocking;
  int64_t latency_ns =
      10 * kMs;  // between sites: longer than the warm-up, so that nothing is acknowledged before its end
  int32_t tensor = 1;
  int32_t data = 1;
  bool nodes = false;  // each replica on a node of its own
  int32_t zero_stage = 0;
  bool sequence_parallel = false;
  std::vector<Recompute> recompute = {};  // by pipeline rank; empty: none
  Precision precision = Precision::kFp32;
  bool offloads_optimizer = false;
  Documents documents = Documents::kPacked;
  int64_t layers = 8;
  int32_t micro_batches = 12;
  bool evaluates = true;
  ModelFamily family = ModelFamily::kLlama;
  bool biases = false;           // of q, k, v and o
  std::string gpu_library = {};  // of GPUs; empty: processors

  std::string name() const;
};

JobSpec JobOf(const MemorySetting& setting, const std::string& text_path);
Plan PlanOf(const MemorySetting& setting, const ModelSpec& model);
Schedule ScheduleOf(const Plan& plan);

// A file to train on.
std::string WriteText(const TempDir& folder);
// Makes UCX use the loopback device; UCX looks when it is opened.
void UseLoopbackDevice();

// Modelled peak of each pipeline rank.
std::vector<int64_t> PeaksOf(const std::vector<RankMemory>& modelled);

// Called by each rank's thread: before each iteration and after the last, and after that with all at rest.
struct MemoryObserver {
  std::function<void(int32_t rank, const RankJob& job, int64_t next_iteration)> on_state = nullptr;
  std::function<void(int32_t rank, RankJob& job)> at_end = nullptr;
};

// All ranks of one plan, over UCX on the loopback device.
class MemoryRun {
 public:
  MemoryRun(const MemorySetting& setting, const JobSpec& job, const Plan& plan, const Schedule& schedule);

  // Prepares all ranks with the limits of their pipeline ranks, of the device and of the host's memory that it moves
  // data through (0, or none: no limit), connects them and trains. `kept`: memory for the states of rank 0, or null.
  // The first error, if there is one.
  absl::Status Run(const std::vector<int64_t>& limits, const std::vector<int64_t>& host_limits = {},
                   const MemoryObserver& observer = {}, KeptStates* kept = nullptr);

  // Bytes in use when the rank was prepared; peaks of the whole run.
  int64_t prepared_bytes(size_t rank) const { return prepared_bytes_[rank]; }
  const RankMemory& peaks(size_t rank) const { return usage_[rank]; }

 private:
  void Deduplicate();
  void RunRank(int32_t rank, RankPreparation preparation, const MemoryObserver& observer, KeptStates* kept,
               std::barrier<>& all);
  absl::Status Train(int32_t rank, const MemoryObserver& observer);

  const int64_t count_;
  RankPreparation common_;
  std::vector<absl::Status> statuses_;
  std::vector<int64_t> prepared_bytes_;
  std::vector<RankMemory> usage_;
  std::vector<std::unique_ptr<RankJob>> jobs_;
};

}  // namespace geopipe
