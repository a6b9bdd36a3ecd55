// One rank of one plan on this worker, from preparation to the end of training: the engines of its stages, data,
// transport, executor.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/model/run_options.h"
#include "optimizer/schedule/schedule.h"
#include "runtime/backend/backend.h"
#include "runtime/base/clock.h"
#include "runtime/data/training_data.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/interruptible_clock.h"
#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/ucx/ucx_transport.h"
#include "runtime/worker/job_extension.h"

namespace geopipe {

// A PrepareCommand in values.
struct RankPreparation {
  uint64_t epoch = 0;
  JobSpec job;
  Plan plan;
  Schedule schedule;  // lowered
  int32_t rank = 0;   // in plan.grid
  PipelineCosts costs;
  RunOptions run;
  int64_t memory_limit_bytes = 0;  // 0: none
  int32_t threads = 1;
  std::vector<v1::LinkShape> shapes;

  int32_t pipeline_rank() const { return plan.grid.At(rank).pipeline; }
};

// Converts and checks that the parts fit each other: plan, schedule and costs of the same shape, a valid schedule, and
// nothing that this worker cannot run (tensor or data parallelism, a backend that is not built). InvalidArgument and
// Unimplemented name the key, its value and the remedy.
absl::StatusOr<RankPreparation> DecodePreparation(uint64_t epoch, const v1::PrepareCommand& command);

// The other ranks of the plan that are at the rank's site.
std::set<int32_t> RanksOfSite(const Plan& plan, int32_t rank);

// The resources a rank uses at one moment.
struct RankUsage {
  int32_t rank = 0;
  std::vector<std::string> sites;  // of all ranks
  std::array<Allocator::Usage, kMemoryCategories> memory;
  int64_t memory_limit_bytes = 0;  // 0: none
  TransportStats transport;
  int64_t transport_cpu_ns = 0;
};

using OpenTransport = std::function<absl::StatusOr<std::unique_ptr<UcxTransport>>(UcxTransportOptions)>;

// Thread: Prepare, Connect and Train on one thread; Interrupt and the rest on any.
class RankJob {
 public:
  // Reads weights and data, builds the engines and opens the transport. Errors: those of weights, data, memory (the
  // allocator's limit), transport and extension. `clock` outlives the job.
  static absl::StatusOr<std::unique_ptr<RankJob>> Prepare(RankPreparation preparation, Clock& clock,
                                                          const OpenTransport& open_transport,
                                                          const ExtendJob& extend = nullptr);
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  const std::string& address() const { return transport_->address(); }
  // Of the data this rank reads; nothing where it reads none.
  DataFingerprint fingerprint() const { return data_ == nullptr ? DataFingerprint{} : data_->fingerprint(); }
  int32_t rank() const { return preparation_.rank; }
  // That the rank computes with; 0 where it computes nothing.
  int32_t threads() const { return modelled() ? 0 : preparation_.threads; }
  const Allocator& allocator() const { return allocator_; }
  std::map<int32_t, PeerClock> peer_clocks() const { return transport_->peer_clocks(); }
  RankUsage usage() const;

  // Connects to the peers with the epoch's secret. Errors: those of UcxTransport::Connect.
  absl::Status Connect(const std::vector<UcxPeer>& peers, const std::string& secret);

  // Runs the iterations [start, end). The callbacks come from this thread. Errors: those of Executor::Run.
  absl::Status Train(int64_t start_iteration, int64_t end_iteration, std::function<void(int64_t)> on_begin,
                     std::function<void(IterationStats)> on_report);

  // Makes Connect and Train return Cancelled soon: wakes what sleeps or waits; an action's arithmetic is not broken
  // off.
  void Interrupt();

 private:
  RankJob(RankPreparation preparation, std::unique_ptr<Device> device, Clock& clock);

  absl::Status BuildEngines();
  absl::StatusOr<std::unique_ptr<StageEngine>> BuildTransformer(int32_t stage);
  absl::Status OpenChannels(const OpenTransport& open_transport);
  bool modelled() const { return !CapabilitiesOf(preparation_.run.backend).computes; }
  bool exchanges_norms() const;

  const RankPreparation preparation_;
  InterruptibleClock clock_;
  std::unique_ptr<Device> device_;
  Allocator allocator_;
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<JobExtension> extension_;            // may be null
  std::vector<std::unique_ptr<StageEngine>> engines_;  // by stage; null where it is another rank's
  std::unique_ptr<UcxTransport> transport_;
  std::atomic<bool> stop_ = false;
};

// Longest wait for one message before a peer counts as stuck: ten times what the whole iteration would take were
// nothing done at the same time, but at least a minute.
int64_t ProgressDeadlineNs(const PipelineCosts& costs);

}  // namespace geopipe
