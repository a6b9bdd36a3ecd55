#include "coordinator/core/run/worker_commands.h"

#include "proto/wire/schedule_wire.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {

v1::ConnectResponse StartMessage(const std::string& job, uint64_t run, uint64_t incarnation,
                                 const std::vector<int32_t>& devices) {
  v1::ConnectResponse message;
  v1::StartWorkers& start = *message.mutable_start_workers();
  start.set_job(job);
  start.set_run_incarnation(run);
  start.set_incarnation(incarnation);
  start.mutable_devices()->Assign(devices.begin(), devices.end());
  return message;
}

v1::ConnectResponse StopMessage(const std::string& job, int64_t grace_ns, const std::string& reason,
                                const std::vector<int32_t>& devices, uint64_t incarnation, bool keeps_state) {
  v1::ConnectResponse message;
  v1::StopWorkers& stop = *message.mutable_stop_workers();
  stop.set_job(job);
  stop.set_grace_ns(grace_ns);
  stop.set_reason(reason);
  stop.mutable_devices()->Assign(devices.begin(), devices.end());
  stop.set_incarnation(incarnation);
  stop.set_keeps_state(keeps_state);
  return message;
}

v1::ProfileCommand ProfileMessage(const JobSpec& job, BackendKind backend, int32_t round,
                                  const ProfileCandidate& candidate) {
  v1::ProfileCommand message;
  message.set_round(round);
  message.set_manifest(WriteManifest(job));
  message.set_micro_batch_size(candidate.micro_batch_size);
  message.set_sequence_length(candidate.sequence_length);
  message.set_skip_compute(candidate.skip_compute);
  message.set_backend(ToProto(backend));
  message.set_message_bytes(candidate.message_bytes);
  return message;
}

v1::PrepareCommand PrepareForAll(const JobSpec& job, const RunOptions& run, const PlanResult& plan) {
  v1::PrepareCommand message;
  message.set_manifest(WriteManifest(job));
  *message.mutable_plan() = ToProto(plan.plan);
  *message.mutable_schedule() = ToProto(plan.schedule);
  *message.mutable_costs() = ToProto(plan.costs);
  *message.mutable_run() = ToProto(run);
  message.mutable_run()->clear_explicit_costs();
  message.set_threads(1);
  return message;
}

}  // namespace geopipe
